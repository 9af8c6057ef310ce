"""SimulatedVendor: stable identities, honest unknowns, and steering through the state file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpuq.agent.gpus import Health, ProcessKind
from gpuq.agent.simulated import SimulatedVendor

A100 = {
    "name": "A100",
    "memory_mib": 40960,
    "power_limit_w": 400.0,
    "bandwidth_gbps": 1555.0,
    "compute_capability": "8.0",
}
V100 = {"name": "V100", "memory_mib": 16384}


class StateFile:
    """The file that steers simulated GPUs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, state: dict[str, Any] | str) -> None:
        """Replace the state in one step, as a careful writer would."""
        text = state if isinstance(state, str) else json.dumps(state)
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.replace(self.path)


@pytest.fixture
def state(tmp_path: Path) -> StateFile:
    """A state file that does not exist yet."""
    return StateFile(tmp_path / "gpus.json")


def test_devices_follow_the_models() -> None:
    """Devices have the index of their place in the list and the figures of their model."""
    first, second = SimulatedVendor([A100, V100]).inventory()
    assert (first.index, first.name, first.memory_mib, first.power_limit_w) == (0, "A100", 40960, 400.0)
    assert (first.vendor, first.compute_capability, first.usable) == ("simulated", "8.0", True)
    assert (second.index, second.name, second.power_limit_w) == (1, "V100", None)


def test_uuids_are_stable_and_differ_between_spools() -> None:
    """The same seed gives the same UUIDs after a restart; another seed, index or name gives others."""
    here = [device.uuid for device in SimulatedVendor([A100, A100, V100], seed="node-a/spool-1").inventory()]
    again = [device.uuid for device in SimulatedVendor([A100, A100, V100], seed="node-a/spool-1").inventory()]
    there = [device.uuid for device in SimulatedVendor([A100, A100, V100], seed="node-a/spool-2").inventory()]
    assert here == again
    assert len({*here, *there}) == 6
    assert all(uuid.startswith("GPU-") for uuid in here)


def test_nothing_is_made_up_without_a_state_file() -> None:
    """An unsteered GPU is empty; its utilization, power and temperature are unknown."""
    (sample,) = SimulatedVendor([A100]).sample(with_processes=True)
    assert (sample.memory_used_mib, sample.memory_total_mib, sample.processes) == (0, 40960, ())
    assert (sample.utilization, sample.power_w, sample.temperature_c, sample.energy_j) == (None,) * 4


def test_state_by_index_and_by_uuid(state: StateFile) -> None:
    """The state of a device is found under its UUID as well as under its index."""
    vendor = SimulatedVendor([A100, V100], state_path=str(state.path))
    uuid = vendor.inventory()[1].uuid
    state.write({"0": {"utilization": 0.5, "power_w": 250}, uuid: {"utilization": 0.25, "temperature_c": 60}})
    first, second = vendor.sample(with_processes=True)
    assert (first.utilization, first.power_w) == (0.5, 250)
    assert (second.utilization, second.temperature_c) == (0.25, 60)


def test_processes_come_from_the_state(state: StateFile) -> None:
    """Listed processes get their user and command from the system and fill the memory; null is unknown."""
    state.write(
        {
            "0": {
                "processes": [
                    {"pid": os.getpid(), "memory_mib": 900},
                    {"pid": 4_000_000, "memory_mib": 100, "kind": "graphics"},
                ]
            },
            "1": {"processes": None},
        }
    )
    first, second = SimulatedVendor([A100, V100], state_path=str(state.path)).sample(with_processes=True)
    assert first.processes is not None
    assert [process.kind for process in first.processes] == [ProcessKind.COMPUTE, ProcessKind.GRAPHICS]
    assert first.processes[0].user is not None
    assert first.processes[1].user is None
    assert first.memory_used_mib == 1000
    assert second.processes is None


def test_health_is_steered_and_comes_back(state: StateFile) -> None:
    """A change of the file is seen at the next sample; a lost GPU has no values; removing the file heals."""
    vendor = SimulatedVendor([A100, V100], state_path=str(state.path))
    state.write({"1": {"health": "lost"}})
    samples = vendor.sample(with_processes=True)
    assert [device.health for device in vendor.inventory()] == [Health.OK, Health.LOST]
    assert [device.usable for device in vendor.inventory()] == [True, False]
    assert (samples[1].memory_used_mib, samples[1].processes) == (None, None)
    state.path.unlink()
    vendor.sample(with_processes=True)
    assert [device.health for device in vendor.inventory()] == [Health.OK, Health.OK]


def test_mig_slices(state: StateFile) -> None:
    """A card with MIG profiles is not usable; its slices are devices with their own memory and parent."""
    state.write({"0": {"mig": ["3g.20gb", "3g.20gb"], "utilization": 0.9}})
    vendor = SimulatedVendor([A100, V100], state_path=str(state.path))
    card, *slices, other = vendor.inventory()
    assert (card.usable, card.reason) == (False, "in MIG mode: use its slices")
    assert [(one.parent, one.mig, one.memory_mib, one.usable) for one in slices] == [
        (card.uuid, "3g.20gb", 20480, True)
    ] * 2
    assert len({card.uuid, slices[0].uuid, slices[1].uuid}) == 3
    assert other.name == "V100"
    assert vendor.sample(with_processes=True)[1].utilization is None


@pytest.mark.parametrize(
    "bad", ["{", "[]", '{"0": {"health": "fine"}}', '{"0": {"processes": [{"memory_mib": 3}]}}', '{"0": 3}']
)
def test_bad_state_is_named_and_changes_nothing(state: StateFile, bad: str) -> None:
    """A state file that cannot be used leaves the last good state, and the driver's error names the file."""
    state.write({"0": {"utilization": 0.5}})
    vendor = SimulatedVendor([A100], state_path=str(state.path))
    state.write(bad)
    assert vendor.sample(with_processes=True)[0].utilization == 0.5
    error = vendor.driver().error
    assert error is not None
    assert str(state.path) in error
    state.write({"0": {"utilization": 0.75}})
    assert vendor.sample(with_processes=True)[0].utilization == 0.75
    assert vendor.driver().error is None
