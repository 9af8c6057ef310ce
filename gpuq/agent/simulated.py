"""GPUs that exist only on paper, so that everything else can run and be tested on any machine.

Owns: the simulated devices, and the state file through which tests and demonstrations steer them.
May import: the standard library and `gpus`.
One thing to know: nothing is made up. Without a state file such a GPU is healthy and empty, and its
utilization, power and temperature are unknown.

The state file is one JSON object, read again whenever it changes. Its keys are UUIDs or indices (as strings)
of devices; each value may have `health` ("ok", "suspect", "lost"), `reason`, `utilization` (0 to 1),
`memory_used_mib`, `power_w`, `temperature_c`, `processes` (a list of {pid, memory_mib, kind}, or null for
unknown) and `mig` (a list of profiles such as "3g.40gb", which puts the card into MIG mode). The key
`hang_s` makes the next reading take that long, as with a driver that hangs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
import uuid
from typing import Any, Dict, Iterable, List, Optional, Tuple

from .gpus import Device, Driver, GpuProcess, Health, ProcessKind, ProcessTable, Sample, Vendor

_NAMESPACE = uuid.UUID("5b0e7c3a-5d0f-5c43-9a55-1f6f2f1b8f7e")


class SimulatedVendor(Vendor):
    """The GPUs of `models` (name, memory_mib, power_limit_w, compute_capability), index in list order.

    UUIDs follow from `seed`, index and name: the same after a restart, different on another node or spool.
    """

    def __init__(self, models: Iterable[Dict[str, Any]], seed: str = "", state_path: Optional[str] = None) -> None:
        self._models = list(models)
        self._seed = seed
        self._state_path = state_path
        self._state_version: Optional[Tuple[int, int, int]] = None
        self._state: Dict[str, Any] = {}
        self._error: Optional[str] = None
        self._table = ProcessTable()
        self._processes: Dict[str, Optional[Tuple[GpuProcess, ...]]] = {}
        self._devices: List[Device] = []
        self.refresh()

    def driver(self) -> Driver:
        return Driver("simulated", error=self._error)

    def inventory(self) -> List[Device]:
        return list(self._devices)

    def refresh(self) -> None:
        self._read_state()
        self._devices = []
        for index, model in enumerate(self._models):
            self._devices.extend(self._card_and_slices(index, model))

    def sample(self, with_processes: bool) -> List[Sample]:
        if self._read_state():
            self.refresh()
        time.sleep(float(self._state.get("hang_s") or 0))
        return [self._sample(device, with_processes) for device in self._devices]

    # -- devices

    def _card_and_slices(self, index: int, model: Dict[str, Any]) -> List[Device]:
        name = str(model["name"])
        card_uuid = f"GPU-{self._identity(index, name)}"
        state = self._state_of(card_uuid, index)
        card = self._in_state(
            Device(
                uuid=card_uuid,
                index=index,
                vendor="simulated",
                name=name,
                memory_mib=model.get("memory_mib"),
                compute_capability=model.get("compute_capability"),
                power_limit_w=model.get("power_limit_w"),
            ),
            state,
        )
        profiles = state.get("mig")
        if not profiles:
            return [card]
        slices = [self._slice(card, slot, profile) for slot, profile in enumerate(profiles)]
        if card.health is Health.OK:
            card = dataclasses.replace(card, usable=False, reason="in MIG mode: use its slices")
        return [card, *slices]

    def _slice(self, card: Device, slot: int, profile: str) -> Device:
        memory = re.search(r"(\d+)gb", profile)
        slice_uuid = f"MIG-{self._identity(card.index, f'{card.name}/{slot}/{profile}')}"
        sliced = dataclasses.replace(
            card,
            uuid=slice_uuid,
            parent=card.uuid,
            mig=profile,
            memory_mib=None if memory is None else int(memory.group(1)) * 1024,
            power_limit_w=None,
        )
        return self._in_state(sliced, self._state.get(slice_uuid) or {})

    def _identity(self, index: int, name: str) -> uuid.UUID:
        return uuid.uuid5(_NAMESPACE, f"{self._seed}/{index}/{name}")

    def _in_state(self, device: Device, state: Dict[str, Any]) -> Device:
        health = Health(state.get("health", device.health))
        if health is Health.OK:
            return device
        reason = state.get("reason") or f"simulated as {health.value}"
        return dataclasses.replace(device, health=health, usable=False, reason=reason)

    # -- samples

    def _sample(self, device: Device, with_processes: bool) -> Sample:
        if device.health is Health.LOST:
            self._processes.pop(device.uuid, None)
            return Sample(device.uuid)
        by_index = device.index if device.parent is None else None
        state = self._state_of(device.uuid, by_index)
        if with_processes or device.uuid not in self._processes:
            self._processes[device.uuid] = self._listed_processes(state)
        processes = self._processes[device.uuid]
        held_mib = sum(process.memory_mib or 0 for process in processes or ())
        return Sample(
            uuid=device.uuid,
            utilization=state.get("utilization"),
            memory_used_mib=state.get("memory_used_mib", held_mib),
            memory_total_mib=device.memory_mib,
            power_w=state.get("power_w"),
            power_limit_w=device.power_limit_w,
            temperature_c=state.get("temperature_c"),
            processes=processes,
        )

    def _listed_processes(self, state: Dict[str, Any]) -> Optional[Tuple[GpuProcess, ...]]:
        listed = state.get("processes", [])
        if listed is None:
            return None
        return tuple(
            self._table.describe(int(one["pid"]), ProcessKind(one.get("kind", "compute")), one.get("memory_mib"))
            for one in listed
        )

    # -- the state file

    def _state_of(self, device_uuid: str, index: Optional[int]) -> Dict[str, Any]:
        return self._state.get(device_uuid) or self._state.get(str(index)) or {}

    def _read_state(self) -> bool:
        """Read the file if it is another than last time; true if so. A bad one leaves the last good state."""
        if self._state_path is None:
            return False
        try:
            status = os.stat(self._state_path)
            version: Optional[Tuple[int, int, int]] = (status.st_mtime_ns, status.st_ino, status.st_size)
        except OSError:
            version = None
        if version == self._state_version:
            return False
        self._state_version = version
        self._error = None
        if version is None:
            self._state = {}
            return True
        try:
            with open(self._state_path, encoding="utf-8") as file:
                state = json.load(file)
            _check_state(state)
            self._state = state
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            self._error = (
                f"The state of the simulated GPUs in {self._state_path} cannot be used ({error}); "
                "correct the file: the last good state holds until then."
            )
        return True


def _check_state(state: Dict[str, Any]) -> None:
    """Raise if any entry has a value that would fail later, when it is too late to keep the last state."""
    float(state.get("hang_s") or 0)
    for key, entry in state.items():
        if key == "hang_s":
            continue
        Health(entry.get("health", "ok"))
        for profile in entry.get("mig") or ():
            re.search("gb", profile)
        for process in entry.get("processes") or ():
            int(process["pid"])
            ProcessKind(process.get("kind", "compute"))
