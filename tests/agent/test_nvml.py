"""NvmlVendor against the stand-in library, in a child process that obeys one command a line."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuq.agent.gpus import Health, HealthTracker, ProcessKind, ProcessTable
from gpuq.agent.nvml_calls import Failure, Nvml, NvmlError
from gpuq.agent.nvml_readings import trusted_process_calls
from tests.nvml import mock
from tests.nvml.mock import MockNvml

pytestmark = pytest.mark.e2e

# To run the same tests on an older Python; GPUQ_PYNVML is then a directory with pynvml.py for it.
AGENT_PYTHON = os.environ.get("GPUQ_AGENT_PYTHON", sys.executable)
ROOT = Path(__file__).parents[2]

# Time stands still in the child until it is told to advance.
CHILD = """
import json, sys
from gpuq.agent.nvml import NvmlVendor
options = json.loads(sys.argv[1])
now = [0.0]
vendor = NvmlVendor(clock=lambda: now[0], sysfs="/nonexistent", **options)
for line in sys.stdin:
    verb, _, argument = line.strip().partition(" ")
    samples = []
    if verb == "advance":
        now[0] += float(argument)
    elif verb == "refresh":
        vendor.refresh()
    elif verb == "sample":
        samples = [sample.wire() for sample in vendor.sample(argument == "processes")]
    print(json.dumps({
        "gpus": [device.wire() for device in vendor.inventory()],
        "driver": vendor.driver().wire(),
        "samples": samples,
        "fresh": vendor.needs_fresh_process(),
    }), flush=True)
vendor.close()
"""


class Child:
    """The vendor in its own process."""

    def __init__(self, environment: dict[str, str], **options: Any) -> None:
        path = [str(ROOT), environment.get("GPUQ_PYNVML", "")]
        self.process = subprocess.Popen(
            [AGENT_PYTHON, "-c", CHILD, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**environment, "PYTHONPATH": os.pathsep.join(path)},
            text=True,
        )

    def tell(self, *commands: str) -> dict[str, Any]:
        """Send commands, and return the state after the last."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        answer: dict[str, Any] = {}
        for command in commands:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline())
        return answer

    def end(self) -> int:
        """Close its stdin, and return its exit code."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait(timeout=30)
        self.process.stdout.close()
        return code


class Machine:
    """A made-up machine, and the vendors that look at it."""

    def __init__(self, directory: Path, driver: int) -> None:
        self.nvml = MockNvml(directory, driver)
        self.children: list[Child] = []

    def vendor(self, extra: dict[str, str] | None = None, **options: Any) -> Child:
        """A vendor in a new process."""
        child = Child({**self.nvml.environment(), **(extra or {})}, **options)
        self.children.append(child)
        return child


@pytest.fixture
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    """A machine without GPUs; parametrise indirectly for another driver than 580."""
    machine = Machine(tmp_path, getattr(request, "param", 580))
    with machine.nvml:
        yield machine
        codes = [child.end() for child in machine.children]
    assert not any(codes), "a vendor ended with a traceback"


def healths(answer: dict[str, Any]) -> dict[str, str]:
    return {gpu["uuid"]: gpu["health"] for gpu in answer["gpus"]}


# -- inventory


def test_inventory_describes_a_card(machine: Machine) -> None:
    """Every field of the inventory record is filled from the driver, and the driver itself is named."""
    uuid = machine.nvml.add_gpu(mock.A100, bus=0xC7, minor=3, numa=1)
    answer = machine.vendor().tell("refresh")
    assert answer["gpus"] == [
        {
            "uuid": uuid,
            "index": 0,
            "vendor": "nvidia",
            "name": "NVIDIA A100-SXM4-80GB",
            "memory_mib": 81920,
            "pci_bus_id": "00000000:C7:00.0",
            "minor": 3,
            "numa_node": 1,
            "compute_capability": "8.0",
            "power_limit_w": 400.0,
            "mig": None,
            "parent": None,
            "usable": True,
            "reason": None,
            "health": "ok",
            "peers": {},
        }
    ]
    assert answer["driver"] == {"vendor": "nvidia", "version": "580.95.05", "cuda": "13.0", "error": None}


def test_forbidden_gpu_is_left_out(machine: Machine) -> None:
    """A GPU that the control group hides is counted by the driver but is neither listed nor an error."""
    machine.nvml.add_gpu(forbidden=1)
    visible = machine.nvml.add_gpu()
    assert healths(machine.vendor().tell("refresh")) == {visible: "ok"}


def test_own_visible_devices_do_not_matter(machine: Machine) -> None:
    """A MIG identifier in the agent's own CUDA_VISIBLE_DEVICES neither hides a GPU nor raises."""
    uuid = machine.nvml.add_gpu()
    child = machine.vendor({"CUDA_VISIBLE_DEVICES": "MIG-00000000-0000-4000-8000-000000000009"})
    assert healths(child.tell("refresh")) == {uuid: "ok"}


def test_unified_memory_is_unknown(machine: Machine) -> None:
    """A GPU without memory of its own has unknown memory and is healthy all the same."""
    machine.nvml.add_gpu(mock.RTX3090, name="NVIDIA GB10", unified=1)
    answer = machine.vendor().tell("refresh", "sample processes")
    assert answer["gpus"][0]["memory_mib"] is None
    assert answer["gpus"][0]["health"] == "ok"
    assert answer["samples"][0]["memory_used_mib"] is None
    assert answer["samples"][0]["memory_total_mib"] is None


def test_peers(machine: Machine) -> None:
    """The closest link of each pair is named: direct NVLink, NVSwitch, else the common PCIe ancestor."""
    uuids = [machine.nvml.add_gpu() for _ in range(4)]
    machine.nvml.connect(0, 1, ancestor=mock.SYSTEM, nvlinks=4)
    machine.nvml.connect(0, 2, ancestor=mock.ONE_SWITCH)
    machine.nvml.connect(0, 3, ancestor=mock.MANY_SWITCHES)
    machine.nvml.connect(1, 2, ancestor=mock.HOST_BRIDGE)
    machine.nvml.connect(1, 3, ancestor=mock.NUMA_NODE)
    machine.nvml.connect(2, 3, ancestor=mock.SYSTEM)
    peers = {gpu["uuid"]: gpu["peers"] for gpu in machine.vendor().tell("refresh")["gpus"]}
    assert peers[uuids[0]] == {uuids[1]: "nvlink", uuids[2]: "pix", uuids[3]: "pxb"}
    assert peers[uuids[1]] == {uuids[0]: "nvlink", uuids[2]: "phb", uuids[3]: "node"}
    assert peers[uuids[3]] == {uuids[0]: "pxb", uuids[1]: "node", uuids[2]: "sys"}


def test_peers_through_a_switch(machine: Machine) -> None:
    """Two GPUs that are both linked to NVSwitch are NVLink peers; one without such links is not."""
    uuids = [machine.nvml.add_gpu(switch_links=count) for count in (12, 12, 0)]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        machine.nvml.connect(one, other, ancestor=mock.NUMA_NODE)
    peers = {gpu["uuid"]: gpu["peers"] for gpu in machine.vendor().tell("refresh")["gpus"]}
    assert peers[uuids[0]] == {uuids[1]: "nvlink", uuids[2]: "node"}


def test_mig_slices_are_devices(machine: Machine) -> None:
    """A card in MIG mode is not usable; its slices are devices of their own with their own memory."""
    card = machine.nvml.add_gpu()
    slices = [
        machine.nvml.add_slice(0, 0, slices=3, memory_mib=40960),
        machine.nvml.add_slice(0, 1, slices=3, memory_mib=40960),
    ]
    machine.nvml.add_process(0, os.getpid(), memory_mib=900, gi=2)
    answer = machine.vendor().tell("refresh", "sample processes")
    parent, *rest = answer["gpus"]
    assert (parent["uuid"], parent["usable"], parent["reason"]) == (card, False, "in MIG mode: use its slices")
    assert [(one["uuid"], one["parent"], one["mig"], one["memory_mib"], one["usable"]) for one in rest] == [
        (uuid, card, "3g.40gb", 40960, True) for uuid in slices
    ]
    samples = {sample["uuid"]: sample for sample in answer["samples"]}
    assert samples[slices[0]]["processes"] == []
    assert [process["pid"] for process in samples[slices[1]]["processes"]] == [os.getpid()]
    assert samples[slices[1]]["utilization"] is None
    assert samples[slices[1]]["power_w"] is None


def test_removed_slice_is_forgotten(machine: Machine) -> None:
    """A slice that somebody destroyed is not listed as lost, and its sibling stays."""
    machine.nvml.add_gpu()
    kept = machine.nvml.add_slice(0, 0, slices=1, memory_mib=10240)
    removed = machine.nvml.add_slice(0, 1, slices=1, memory_mib=10240)
    child = machine.vendor()
    assert removed in healths(child.tell("refresh"))
    machine.nvml.remove_slice(0, 1)
    after = healths(child.tell("sample", "sample", "sample", "sample", "refresh"))
    assert removed not in after
    assert after[kept] == "ok"


# -- samples


def test_sample_values(machine: Machine) -> None:
    """A sample has the driver's values in our units; power above the limit shows as a power cap."""
    machine.nvml.add_gpu(util=97, demand_mw=450_000, energy_base_mj=7_000, temp=71, sm_mhz=1410)
    machine.nvml.add_process(0, os.getpid(), memory_mib=2048)
    sample = machine.vendor().tell("refresh", "sample")["samples"][0]
    assert sample["utilization"] == 0.97
    assert (sample["memory_used_mib"], sample["memory_total_mib"]) == (2048, 81920)
    assert sample["memory_includes_reserve"] is False
    assert (sample["power_w"], sample["power_limit_w"]) == (400.0, 400.0)
    assert sample["energy_j"] >= 7.0
    assert (sample["temperature_c"], sample["clock_mhz"]) == (71, 1410)
    assert sample["throttle"] == ["power_cap"]


def test_missing_values_are_none(machine: Machine) -> None:
    """Values that a GPU does not have are null, the others are there, and the GPU is healthy."""
    machine.nvml.add_gpu(mock.RTX3090, no_energy=1)
    machine.nvml.add_fault("nvmlDeviceGetPowerUsage", mock.NOT_SUPPORTED)
    answer = machine.vendor().tell("refresh", "sample", "sample", "sample")
    assert answer["samples"][0]["power_w"] is None
    assert answer["samples"][0]["energy_j"] is None
    assert answer["samples"][0]["temperature_c"] == 30
    assert answer["gpus"][0]["health"] == "ok"


def test_unknown_error_of_a_value_never_seen_is_no_fault(machine: Machine) -> None:
    """A call that has never worked on this GPU does not make it suspect, whatever error it gives."""
    machine.nvml.add_gpu()
    machine.nvml.add_fault("nvmlDeviceGetClockInfo", mock.UNKNOWN)
    answer = machine.vendor().tell("refresh", "sample", "sample", "sample")
    assert answer["samples"][0]["clock_mhz"] is None
    assert answer["gpus"][0]["health"] == "ok"


def test_processes_with_owner_and_kind(machine: Machine) -> None:
    """Compute, graphics and MPS processes are listed with user, command and memory; a dead pid is not."""
    machine.nvml.add_gpu()
    me = os.getpid()
    machine.nvml.add_process(0, me, memory_mib=1000)
    machine.nvml.add_process(0, os.getppid(), memory_mib=150, kind=mock.GRAPHICS)
    ended = subprocess.Popen(["true"])
    ended.wait()
    machine.nvml.add_process(0, ended.pid, memory_mib=4000, kind=mock.MPS)
    listed = machine.vendor().tell("refresh", "sample processes")["samples"][0]["processes"]
    assert {one["pid"]: (one["kind"], one["memory_mib"]) for one in listed} == {
        me: ("compute", 1000),
        os.getppid(): ("graphics", 150),
    }
    mine = next(one for one in listed if one["pid"] == me)
    assert mine["user"] == pwd.getpwuid(os.getuid()).pw_name
    assert mine["name"] == Path("/proc/self/comm").read_text().strip()


def test_process_list_is_kept_between_scans(machine: Machine) -> None:
    """The costly process list is read only when asked for; samples in between repeat it."""
    machine.nvml.add_gpu()
    row = machine.nvml.add_process(0, os.getpid(), memory_mib=1000)
    child = machine.vendor()
    child.tell("refresh", "sample processes")
    machine.nvml.end_process(row)
    assert len(child.tell("sample")["samples"][0]["processes"]) == 1
    assert child.tell("sample processes")["samples"][0]["processes"] == []


@pytest.mark.parametrize("machine", [470], indirect=True)
def test_old_driver(machine: Machine) -> None:
    """A driver without the newer symbols gives processes and memory; the reserve in "used" is flagged."""
    machine.nvml.add_gpu(mock.RTX3090)
    machine.nvml.add_process(0, os.getpid(), memory_mib=500)
    answer = machine.vendor().tell("refresh", "sample processes")
    sample = answer["samples"][0]
    assert answer["driver"]["version"] == "470.95.05"
    assert [process["pid"] for process in sample["processes"]] == [os.getpid()]
    assert (sample["memory_used_mib"], sample["memory_includes_reserve"]) == (810, True)
    assert sample["temperature_c"] == 30
    assert answer["gpus"][0]["health"] == "ok"


def test_process_records_of_early_535_drivers_are_not_believed() -> None:
    """With the drivers whose `_v3` record was longer only `_v2` is used."""
    assert trusted_process_calls("530.30.02") == ("_v2",)
    assert trusted_process_calls("535.54.03") == ("_v2",)
    for version in ("525.60.13", "535.104.05", "580.95.05", None, "unknown"):
        assert trusted_process_calls(version) == ("_v3", "_v2")


# -- health


def test_lost_gpu_in_mid_run_leaves_the_others(machine: Machine) -> None:
    """GPU_IS_LOST makes a GPU lost at once, with nulls for samples; the others go on."""
    uuids = [machine.nvml.add_gpu() for _ in range(3)]
    child = machine.vendor()
    assert set(healths(child.tell("refresh", "sample processes")).values()) == {"ok"}
    machine.nvml.set_gpu(1, lost=1)
    answer = child.tell("sample")
    assert healths(answer) == {uuids[0]: "ok", uuids[1]: "lost", uuids[2]: "ok"}
    lost = answer["gpus"][1]
    assert (lost["usable"], lost["name"]) == (False, "NVIDIA A100-SXM4-80GB")
    assert "lost" in lost["reason"]
    assert answer["samples"][1]["processes"] is None
    samples = child.tell("sample")["samples"]
    assert [sample["temperature_c"] for sample in samples] == [34, None, 34]
    assert samples[1]["processes"] is None


@pytest.mark.parametrize("lost", [1, 2])
def test_lost_gpu_at_start(machine: Machine, lost: int) -> None:
    """A GPU that never told its UUID is listed as lost under a stand-in name until it answers."""
    machine.nvml.add_gpu()
    second = machine.nvml.add_gpu(lost=lost)
    child = machine.vendor()
    before = child.tell("refresh", "sample", "refresh")
    assert [gpu["health"] for gpu in before["gpus"]] == ["ok", "lost"]
    assert before["gpus"][1]["usable"] is False
    machine.nvml.set_gpu(1, lost=0)
    after = child.tell("refresh")
    assert [gpu["uuid"] for gpu in after["gpus"]] == [before["gpus"][0]["uuid"], second]


def test_three_errors_make_a_gpu_lost(machine: Machine) -> None:
    """One failing call makes a GPU suspect and unusable, the third makes it lost."""
    machine.nvml.add_gpu()
    child = machine.vendor()
    child.tell("refresh", "sample")
    machine.nvml.add_fault("nvmlDeviceGetTemperatureV", mock.UNKNOWN)
    machine.nvml.add_fault("nvmlDeviceGetTemperature", mock.UNKNOWN)
    suspect = child.tell("sample")["gpus"][0]
    assert (suspect["health"], suspect["usable"]) == ("suspect", False)
    assert child.tell("sample")["gpus"][0]["health"] == "suspect"
    assert child.tell("sample")["gpus"][0]["health"] == "lost"


def test_recovery_takes_a_minute_of_answers(machine: Machine) -> None:
    """A lost GPU is usable again only after answering for 60 seconds on end."""
    machine.nvml.add_gpu()
    child = machine.vendor()
    child.tell("refresh")
    machine.nvml.set_gpu(0, lost=1)
    child.tell("sample")
    machine.nvml.set_gpu(0, lost=0)
    assert child.tell("refresh", "advance 59", "refresh")["gpus"][0]["health"] == "lost"
    assert child.tell("advance 2", "refresh")["gpus"][0]["health"] == "ok"


def test_xid_79_is_lost_and_a_program_error_is_not(machine: Machine) -> None:
    """Xid 13 says nothing about the GPU, Xid 48 makes it suspect, Xid 79 means it is gone."""
    machine.nvml.add_gpu()
    machine.nvml.add_gpu()
    child = machine.vendor()
    child.tell("refresh")
    machine.nvml.report_xid(0, 13)
    assert child.tell("sample")["gpus"][0]["health"] == "ok"
    machine.nvml.report_xid(0, 48)
    suspect = child.tell("sample")["gpus"][0]
    assert suspect["health"] == "suspect"
    assert "Xid 48" in suspect["reason"]
    machine.nvml.report_xid(1, 79)
    assert "Xid 79" in child.tell("sample")["gpus"][1]["reason"]
    assert [gpu["health"] for gpu in child.tell("sample")["gpus"]] == ["suspect", "lost"]


def test_alarm_calls_for_a_closer_look(machine: Machine) -> None:
    """An alarm of the driver shows its advice at the next sample; a program's fault calls for no look."""
    machine.nvml.add_gpu()
    child = machine.vendor()
    child.tell("refresh")
    machine.nvml.set_gpu(0, recovery=1)
    machine.nvml.report_xid(0, 31)
    assert child.tell("sample")["gpus"][0]["health"] == "ok"
    machine.nvml.report_xid(0, 154)
    assert "reset" in child.tell("sample")["gpus"][0]["reason"]


def test_gpu_that_needs_a_reset_is_lost_at_once(machine: Machine) -> None:
    """RESET_REQUIRED is as final as GPU_IS_LOST: no job can run until somebody acts."""
    machine.nvml.add_gpu()
    child = machine.vendor()
    child.tell("refresh")
    machine.nvml.add_fault("nvmlDeviceGetMemoryInfo_v2", 16, index=0)
    assert child.tell("sample")["gpus"][0]["health"] == "lost"


def test_vanished_gpu_keeps_its_uuid(machine: Machine) -> None:
    """A GPU that the driver stops counting is listed as lost; those behind it keep their UUIDs."""
    uuids = [machine.nvml.add_gpu() for _ in range(3)]
    child = machine.vendor()
    child.tell("refresh")
    machine.nvml.unplug(1)
    assert healths(child.tell("refresh")) == {uuids[0]: "ok", uuids[1]: "lost", uuids[2]: "ok"}
    assert [sample["temperature_c"] for sample in child.tell("sample")["samples"]].count(None) == 1


def test_known_gpu_missing_at_start_is_lost(machine: Machine) -> None:
    """A GPU that an earlier process knew and that is not there now is lost, not forgotten."""
    there, gone = machine.nvml.add_gpu(), machine.nvml.add_gpu()
    known = machine.vendor().tell("refresh")["gpus"]
    machine.nvml.unplug(1)
    assert healths(machine.vendor(known=known).tell("refresh")) == {there: "ok", gone: "lost"}


@pytest.mark.parametrize(
    ("fields", "health", "usable", "word"),
    [
        ({"recovery": 1}, "suspect", False, "reset"),
        ({"recovery": 2}, "suspect", False, "reboot"),
        ({"remap_failed": 1}, "suspect", False, "replaced"),
        ({"remap_pending": 1}, "suspect", True, "reset"),
        ({"arch": 5, "retired_pending": 1}, "suspect", True, "reboot"),
    ],
)
def test_conditions(machine: Machine, fields: dict[str, int], health: str, usable: bool, word: str) -> None:
    """What the driver wants done about a GPU is shown; only what cannot wait takes it out of use."""
    machine.nvml.add_gpu(mock.A100, **fields)
    gpu = machine.vendor().tell("refresh")["gpus"][0]
    assert (gpu["health"], gpu["usable"]) == (health, usable)
    assert word in gpu["reason"]


def test_new_uncorrectable_errors_make_suspect(machine: Machine) -> None:
    """Old ECC errors do not count against a GPU; new ones do."""
    machine.nvml.add_gpu(ecc_uncorrected=2)
    child = machine.vendor()
    assert child.tell("refresh", "refresh")["gpus"][0]["health"] == "ok"
    machine.nvml.set_gpu(0, ecc_uncorrected=3)
    gpu = child.tell("refresh")["gpus"][0]
    assert (gpu["health"], gpu["usable"]) == ("suspect", False)
    assert "1 new uncorrectable" in gpu["reason"]


# -- the driver


def test_no_library() -> None:
    """Without the driver's library the error says what to install."""
    child = Child(dict(os.environ))
    answer = child.tell("refresh", "sample")
    assert child.end() == 0
    assert answer["gpus"] == []
    assert answer["driver"]["vendor"] == "none"
    assert "libnvidia-ml.so.1" in answer["driver"]["error"]


@pytest.mark.parametrize(
    ("code", "word", "fresh"),
    [
        (mock.DRIVER_NOT_LOADED, "modprobe", False),
        (mock.LIB_RM_VERSION_MISMATCH, "reboot", True),
        (mock.NO_PERMISSION, "rights", False),
        (mock.UNKNOWN, "nvidia-smi", False),
    ],
)
def test_driver_that_does_not_start(machine: Machine, code: int, word: str, fresh: bool) -> None:
    """Each way in which the driver does not start has its own advice, and is tried again without leaks."""
    uuid = machine.nvml.add_gpu()
    machine.nvml.set_top(init_err=code)
    child = machine.vendor()
    answer = child.tell("refresh", "refresh", "sample")
    assert answer["driver"]["vendor"] == "none"
    assert word in answer["driver"]["error"]
    assert answer["fresh"] is fresh
    machine.nvml.set_top(init_err=0)
    answer = child.tell("refresh")
    assert answer["driver"]["error"] is None
    assert healths(answer) == {uuid: "ok"}
    assert machine.nvml.get("top", 0, "opened") == 1


def test_driver_too_old(machine: Machine) -> None:
    """A driver without the basic calls is named as too old, with the version to install."""
    machine.nvml.add_gpu()
    machine.nvml.add_fault("nvmlDeviceGetCount_v2", 13)
    driver = machine.vendor().tell("refresh")["driver"]
    assert driver["vendor"] == "none"
    assert "too old" in driver["error"]


def test_driver_that_goes_and_comes_back(machine: Machine) -> None:
    """While the driver is away its GPUs are lost under their UUIDs; afterwards they recover."""
    uuid = machine.nvml.add_gpu()
    child = machine.vendor()
    child.tell("refresh", "sample")
    machine.nvml.set_top(init_err=mock.DRIVER_NOT_LOADED)
    fault = machine.nvml.add_fault("", mock.DRIVER_NOT_LOADED)
    away = child.tell("sample", "refresh")
    assert healths(away) == {uuid: "lost"}
    assert away["driver"]["vendor"] == "nvidia"
    assert "modprobe" in away["driver"]["error"]
    machine.nvml.clear_fault(fault)
    machine.nvml.set_top(init_err=0)
    back = child.tell("refresh", "advance 61", "refresh")
    assert healths(back) == {uuid: "ok"}
    assert back["driver"]["error"] is None


def test_driver_without_gpus_says_so(machine: Machine) -> None:
    """A loaded driver that lists nothing is told apart from a missing one."""
    answer = machine.vendor().tell("refresh")
    assert answer["driver"]["vendor"] == "nvidia"
    assert "lists no GPU" in answer["driver"]["error"]


def test_wrong_binding_is_recognised(machine: Machine, tmp_path: Path) -> None:
    """Another package's module pynvml gives one sentence, not a traceback."""
    machine.nvml.add_gpu()
    impostor = tmp_path / "impostor"
    impostor.mkdir()
    (impostor / "pynvml.py").write_text("def nvmlInit():\n    pass\n")
    program = (
        f"import sys; sys.path.insert(0, {str(impostor)!r}); sys.path.append({str(ROOT)!r})\n"
        "from gpuq.agent.nvml import NvmlVendor\n"
        "vendor = NvmlVendor(); vendor.refresh(); print(vendor.driver().error)\n"
    )
    done = subprocess.run([AGENT_PYTHON, "-c", program], capture_output=True, text=True, check=True)
    assert "not the one of nvidia-ml-py" in done.stdout
    assert str(impostor) in done.stdout


# -- parts that need no library


class FakeBinding:
    """Just enough of pynvml to raise its two kinds of exception."""

    class NVMLError(Exception):
        value = 999

        def __eq__(self, other: object) -> bool:
            raise AttributeError("as the real one does when compared with None")

        __hash__ = None  # type: ignore[assignment]

    class NVMLLibraryMismatchError(Exception):
        """Not an NVMLError, in the real binding either."""

    @classmethod
    def nvmlInit(cls) -> None:  # NVML's own name
        """Start."""

    @classmethod
    def fail(cls) -> None:
        """Fail as a driver does."""
        raise cls.NVMLError

    @classmethod
    def mismatch(cls) -> None:
        """Fail as the binding does with a driver that is too old for it."""
        raise cls.NVMLLibraryMismatchError


@pytest.mark.parametrize(
    ("function", "failure"),
    [("fail", Failure.GPU), ("mismatch", Failure.NO_VALUE), ("not_in_this_binding", Failure.NO_VALUE)],
)
def test_exceptions_of_the_binding_do_not_get_out(
    monkeypatch: pytest.MonkeyPatch, function: str, failure: Failure
) -> None:
    """Every failure becomes our own error, which is hashable and does not carry the binding's along."""
    monkeypatch.setattr("gpuq.agent.nvml_calls.load_binding", lambda extra_path: FakeBinding)
    nvml = Nvml(None)
    nvml.open()
    with pytest.raises(NvmlError) as caught:
        nvml.call(function)
    assert caught.value.failure is failure
    assert caught.value.__context__ is None
    hash(caught.value)


def test_health_tracker_counts_errors_until_a_quiet_while() -> None:
    """Errors add up until the GPU has answered long enough, and an error restarts that time."""
    tracker = HealthTracker(recovery_s=60)
    tracker.failed("one")
    tracker.answered(0)
    tracker.answered(59)
    tracker.failed("two")
    tracker.answered(61)
    tracker.answered(120)
    assert (tracker.health, tracker.reason) == (Health.SUSPECT, "two")
    tracker.answered(121)
    assert (tracker.health, tracker.reason) == (Health.OK, None)
    tracker.failed("three")
    assert tracker.health is Health.SUSPECT


def write_status(proc: Path, entry: str, pids: str, uid: int = 0) -> None:
    directory = proc / entry
    directory.mkdir(parents=True)
    (directory / "status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{pids}\n")
    (directory / "comm").write_text("python\n")


def test_host_pid_is_mapped_to_our_namespace(tmp_path: Path) -> None:
    """Where /proc shows the host's pids, a reported host pid becomes the one of our own namespace."""
    write_status(tmp_path, "self", "900 7")
    write_status(tmp_path, "901", "901 8")
    write_status(tmp_path, "55", "55", uid=4_000_000_000)
    table = ProcessTable(str(tmp_path))
    assert table.describe(901, ProcessKind.COMPUTE, 10).pid == 8
    stranger = table.describe(55, ProcessKind.COMPUTE, None)
    assert (stranger.pid, stranger.user, stranger.name) == (55, "4000000000", "python")


def test_unresolvable_pid_is_given_as_reported(tmp_path: Path) -> None:
    """A pid that /proc does not know stays as it is, with user and command unknown."""
    write_status(tmp_path, "self", "7")
    process = ProcessTable(str(tmp_path)).describe(4711, ProcessKind.GRAPHICS, 150)
    assert process.wire() == {
        "pid": 4711,
        "user": None,
        "name": None,
        "memory_mib": 150,
        "kind": "graphics",
        "attempt": None,
    }
