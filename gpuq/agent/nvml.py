"""NVIDIA GPUs through NVML: which there are, and how each has been doing.

Owns: the cards and MIG slices of this node under their UUIDs, their health over time.
May import: the standard library, `gpus` and the `nvml_*` modules beside it.
One thing to know: a card keeps its entry for as long as this process lives. One that falls off the bus, or
that a reloaded driver no longer counts, is listed as lost under the UUID it had; only MIG slices may go.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Tuple

from .gpus import (
    RECOVERY_S,
    Device,
    Driver,
    GpuProcess,
    Health,
    HealthTracker,
    ProcessTable,
    Sample,
    Vendor,
)
from .nvml_calls import LIB_RM_VERSION_MISMATCH, NO_PERMISSION, DriverUnavailable, Failure, Nvml, NvmlError
from .nvml_calls import sentence_about as sentence_about_driver
from .nvml_events import AlarmQueue
from .nvml_readings import (
    Condition,
    Reading,
    read_condition,
    read_processes,
    read_sample,
    trusted_process_calls,
)
from .nvml_topology import card_facts, links_between, slice_facts

_MIG_ENABLED = 1
_NO_GPUS = "The NVIDIA driver of this node is loaded but lists no GPU; look for errors in 'dmesg' and 'lspci'."


class _Found:
    """One entry of an enumeration; `uuid` is None for a GPU too broken to tell its own, `card` set for a slice."""

    def __init__(self, index: int, handle: Any, uuid: Optional[str], card: Optional[str] = None) -> None:
        self.index = index
        self.handle = handle
        self.uuid = uuid
        self.card = card


class _Entry:
    """A card or slice we know; `handle` is None while the driver does not list it."""

    def __init__(self, device: Device, recovery_s: float) -> None:
        self.device = device
        self.handle: Any = None
        self.in_mig_mode = False
        self.is_nameless = False
        self.condition = Condition()
        self.tracker = HealthTracker(recovery_s)
        self.working_calls: Set[str] = set()
        self.processes: Optional[Tuple[GpuProcess, ...]] = None

    @property
    def is_lost(self) -> bool:
        return self.tracker.health is Health.LOST

    def judge(self, reading: Reading, now_s: float) -> None:
        """Let one round of questions count for or against the GPU."""
        if reading.lost is not None:
            self.tracker.lost(f"lost: {reading.lost}")
        elif reading.problem is not None:
            self.tracker.failed(f"does not answer as it should: {reading.problem}")
        else:
            self.tracker.answered(now_s)

    def described(self, peers: Dict[str, Any]) -> Device:
        """The device with its present health and whether jobs may be put on it."""
        health, usable, reason = self.tracker.health, True, self.condition.suspicious
        if health is not Health.OK:
            usable, reason = False, self.tracker.reason
        elif self.condition.blocking is not None:
            health, usable, reason = Health.SUSPECT, False, self.condition.blocking
        elif self.in_mig_mode:
            usable, reason = False, "in MIG mode: use its slices"
        elif reason is not None:
            health = Health.SUSPECT
        return dataclasses.replace(self.device, health=health, usable=usable, reason=reason, peers=peers)


class NvmlVendor(Vendor):
    """The NVIDIA GPUs of this node. `known` holds inventory records of an earlier process."""

    def __init__(
        self,
        pynvml_path: Optional[str] = None,
        known: Iterable[Dict[str, Any]] = (),
        recovery_s: float = RECOVERY_S,
        clock: Callable[[], float] = time.monotonic,
        sysfs: str = "/sys",
    ) -> None:
        self._nvml = Nvml(pynvml_path)
        self._alarms = AlarmQueue(self._nvml)
        self._recovery_s = recovery_s
        self._clock = clock
        self._sysfs = sysfs
        self._table = ProcessTable()
        self._entries: Dict[str, _Entry] = {}
        self._peers: Dict[str, Dict[str, Any]] = {}
        self._peers_of: Optional[Set[str]] = None
        self._driver = Driver("none")
        self._process_calls: Tuple[str, ...] = ()
        self._needs_fresh_process = False
        for record in known:
            self._remember(record)

    def driver(self) -> Driver:
        return self._driver

    def needs_fresh_process(self) -> bool:
        return self._needs_fresh_process

    def inventory(self) -> List[Device]:
        entries = sorted(
            self._entries.values(), key=lambda entry: (entry.device.index, entry.device.parent is not None)
        )
        return [entry.described(self._peers.get(entry.device.uuid, {})) for entry in entries]

    def close(self) -> None:
        self._alarms.close()
        self._nvml.close()

    def refresh(self) -> None:
        """Read inventory, health and topology anew; a driver that does not answer is lost, not an error."""
        try:
            if not self._nvml.is_open:
                self._open()
            self._update_entries()
            for entry in list(self._entries.values()):
                self._check(entry)
            self._update_peers()
            self._alarms.watch(self._handles())
        except DriverUnavailable as problem:
            self._lose_driver(str(problem), problem.code)
        except NvmlError as error:
            self._lose_driver(sentence_about_driver(error), error.code)

    def sample(self, with_processes: bool) -> List[Sample]:
        """One sample per known GPU; all values unknown while the driver does not answer."""
        if self._nvml.is_open:
            lost_before = self._lost()
            try:
                look_again = self._heed_alarms()
                samples = [self._sample(entry, with_processes) for entry in self._entries.values()]
            except NvmlError as error:
                self._lose_driver(sentence_about_driver(error), error.code)
            else:
                if look_again or self._lost() - lost_before:
                    self.refresh()
                return samples
        return [Sample(uuid) for uuid in self._entries]

    # -- the driver

    def _open(self) -> None:
        self._nvml.open()
        version = self._nvml.ask("nvmlSystemGetDriverVersion")
        version = version.decode() if isinstance(version, bytes) else version
        cuda = self._nvml.ask("nvmlSystemGetCudaDriverVersion_v2")
        cuda_text = None if not cuda else f"{cuda // 1000}.{cuda % 1000 // 10}"
        self._driver = Driver("nvidia", version, cuda_text)
        self._process_calls = trusted_process_calls(version)
        self._peers_of = None

    def _lose_driver(self, sentence: str, code: Optional[int]) -> None:
        self.close()
        # The library mapped into this process stays the old one, whatever is installed meanwhile.
        self._needs_fresh_process = code == LIB_RM_VERSION_MISMATCH
        vendor = "nvidia" if self._entries else "none"
        self._driver = Driver(vendor, self._driver.version, self._driver.cuda, sentence)
        for entry in self._entries.values():
            entry.handle = None
            entry.tracker.lost("lost: the driver of this node is gone")

    # -- which devices there are

    def _remember(self, record: Dict[str, Any]) -> None:
        if record.get("vendor") != "nvidia" or record.get("parent") is not None:
            return
        fields = {field.name for field in dataclasses.fields(Device)} - {"health", "usable", "reason", "peers"}
        device = Device(**{name: record[name] for name in fields if name in record})
        self._entries[device.uuid] = _Entry(device, self._recovery_s)

    def _update_entries(self) -> None:
        found = self._enumerate()
        broken = [one for one in found if one.uuid is None]
        seen = {one.uuid for one in found if one.uuid is not None}
        self._forget_gone_slices(seen)
        for one in found:
            if one.uuid is not None:
                self._adopt(one.uuid, one)
        for one in broken:
            seen.add(self._take_as_lost(one, seen))
        for uuid, entry in list(self._entries.items()):
            if uuid in seen:
                continue
            entry.handle = None
            if entry.is_nameless:
                del self._entries[uuid]  # it is listed under its own UUID again
            else:
                entry.tracker.lost("lost: the driver does not list it any more")
        error = None if self._entries else _NO_GPUS
        self._driver = dataclasses.replace(self._driver, error=error)

    def _enumerate(self) -> List[_Found]:
        found: List[_Found] = []
        for index in range(self._nvml.call("nvmlDeviceGetCount")):
            try:
                handle = self._nvml.call("nvmlDeviceGetHandleByIndex", index)
            except NvmlError as error:
                if error.failure is Failure.DRIVER:
                    raise
                # A control group may forbid a GPU that the driver counts: not ours, and not broken.
                if error.code != NO_PERMISSION:
                    found.append(_Found(index, None, None))
                continue
            uuid = self._uuid(handle)
            found.append(_Found(index, handle, uuid))
            if uuid is not None:
                found.extend(self._slices(index, handle, uuid))
        return found

    def _slices(self, index: int, handle: Any, card: str) -> List[_Found]:
        if not self._is_in_mig_mode(handle):
            return []
        slices = []
        for slot in range(self._ask_gpu("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            slice_handle = self._ask_gpu("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot)
            uuid = None if slice_handle is None else self._uuid(slice_handle)
            if uuid is not None:
                slices.append(_Found(index, slice_handle, uuid, card))
        return slices

    def _adopt(self, uuid: str, one: _Found) -> None:
        """Take a device that the driver lists into the entries, with its facts as they are now."""
        entry = self._entries.get(uuid)
        working_calls: Set[str] = set() if entry is None else entry.working_calls
        reading = Reading(self._nvml, one.handle, working_calls)
        if one.card is None:
            device = card_facts(reading, uuid, one.index, self._sysfs)
        else:
            device = slice_facts(reading, uuid, self._entries[one.card].device)
        if entry is None:
            entry = self._entries[uuid] = _Entry(device, self._recovery_s)
            entry.working_calls = working_calls
        elif reading.problem is None and reading.lost is None:
            entry.device = device
        entry.handle = one.handle
        entry.in_mig_mode = one.card is None and self._is_in_mig_mode(one.handle)

    def _take_as_lost(self, one: _Found, seen: Set[str]) -> str:
        """The UUID under which a GPU without an answer is listed: the missing one at its index, or made up."""
        for uuid, entry in self._entries.items():
            is_free = uuid not in seen and entry.device.parent is None
            if is_free and entry.device.index == one.index:
                break
        else:
            uuid = f"GPU-lost-at-index-{one.index}"
            device = Device(uuid=uuid, index=one.index, vendor="nvidia", name="NVIDIA GPU")
            entry = self._entries[uuid] = _Entry(device, self._recovery_s)
            entry.is_nameless = True
        entry.handle = None
        entry.tracker.lost("lost: it does not answer the driver")
        return uuid

    def _forget_gone_slices(self, seen: Set[str]) -> None:
        """Slices are made and removed by people; they are only lost if their card is."""
        for uuid, entry in list(self._entries.items()):
            if entry.device.parent in seen and uuid not in seen:
                del self._entries[uuid]

    def _is_in_mig_mode(self, handle: Any) -> bool:
        modes = self._ask_gpu("nvmlDeviceGetMigMode", handle)
        return modes is not None and modes[0] == _MIG_ENABLED

    def _uuid(self, handle: Any) -> Optional[str]:
        uuid = self._ask_gpu("nvmlDeviceGetUUID", handle)
        return uuid.decode() if isinstance(uuid, bytes) else uuid

    def _ask_gpu(self, function: str, *arguments: Any) -> Any:
        """The value, or None if the GPU fails or does not have it; only a missing driver raises."""
        try:
            return self._nvml.ask(function, *arguments)
        except NvmlError as error:
            if error.failure is Failure.DRIVER:
                raise
        return None

    def _update_peers(self) -> None:
        """Topology is read again only when another set of cards answers; it cannot change otherwise."""
        cards = {uuid: handle for uuid, handle in self._handles().items() if not self._is_slice(uuid)}
        if set(cards) != self._peers_of:
            self._peers = links_between(self._nvml, cards)
            self._peers_of = set(cards)

    def _handles(self) -> Dict[str, Any]:
        return {
            uuid: entry.handle
            for uuid, entry in self._entries.items()
            if entry.handle is not None and not entry.is_lost
        }

    def _is_slice(self, uuid: str) -> bool:
        return self._entries[uuid].device.parent is not None

    # -- how they are

    def _lost(self) -> Set[str]:
        return {uuid for uuid, entry in self._entries.items() if entry.is_lost}

    def _check(self, entry: _Entry) -> None:
        """Ask a device everything once, also a lost one: this is how it comes back."""
        if entry.handle is None:
            return
        reading = Reading(self._nvml, entry.handle, entry.working_calls)
        before = entry.condition.uncorrected_errors
        read_sample(reading, entry.device.uuid, None)
        entry.condition = read_condition(reading)
        entry.judge(reading, self._clock())
        now = entry.condition.uncorrected_errors
        if before is not None and now is not None and now > before:
            entry.tracker.failed(f"{now - before} new uncorrectable memory errors (ECC)")

    def _sample(self, entry: _Entry, with_processes: bool) -> Sample:
        if entry.handle is None or entry.is_lost:
            entry.processes = None
            return Sample(entry.device.uuid)
        reading = Reading(self._nvml, entry.handle, entry.working_calls)
        if with_processes:
            entry.processes = read_processes(reading, self._process_calls, self._table)
        sample = read_sample(reading, entry.device.uuid, entry.processes)
        entry.judge(reading, self._clock())
        if reading.lost is not None:  # what it said before it went is no longer true
            entry.processes = None
            return Sample(entry.device.uuid)
        return sample

    def _heed_alarms(self) -> bool:
        """Let the driver's alarms count against their GPUs; true if a closer look is due."""
        alarms = self._alarms.take()
        for alarm in alarms:
            entry = self._entries.get(alarm.uuid)
            if entry is not None and alarm.lost:
                entry.tracker.lost(f"lost: {alarm.reason}")
            elif entry is not None and alarm.reason is not None:
                entry.tracker.failed(alarm.reason)
        return bool(alarms)
