"""The sampler: its rhythm on a false clock, and as a real process on simulated and made-up NVIDIA GPUs."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuq.agent.gpus import Device, Driver, Sample, Vendor
from gpuq.agent.sampler import Sampler, SamplerConfig, config_from_line
from tests.nvml import mock
from tests.nvml.mock import MockNvml

pytestmark = pytest.mark.e2e

# To run the same tests on an older Python; GPUQ_PYNVML is then a directory with pynvml.py for it.
AGENT_PYTHON = os.environ.get("GPUQ_AGENT_PYTHON", sys.executable)
ROOT = Path(__file__).parents[2]
PROGRAM = "import sys; from gpuq.agent.sampler import run; sys.exit(run())"
DEADLINE_S = 30.0

Frame = dict[str, Any]


class FakeVendor(Vendor):
    """Notes what it is asked, and answers what it is told to."""

    def __init__(self, *devices: Device) -> None:
        self.devices = list(devices)
        self.state = Driver("nvidia")
        self.asked: list[str] = []
        self.stale = False

    def refresh(self) -> None:
        self.asked.append("refresh")

    def sample(self, with_processes: bool) -> list[Sample]:
        self.asked.append("processes" if with_processes else "sample")
        return [Sample(device.uuid) for device in self.devices]

    def inventory(self) -> list[Device]:
        return list(self.devices)

    def driver(self) -> Driver:
        return self.state

    def needs_fresh_process(self) -> bool:
        return self.stale


class Rig:
    """A sampler whose time runs only as far as a test lets it."""

    def __init__(self, vendor: FakeVendor, **config: Any) -> None:
        self.now_s = 1000.0
        self.vendor = vendor
        self.frames: list[Frame] = []
        self.sampler = Sampler(
            SamplerConfig(**config), vendor, self.frames.append, clock=lambda: self.now_s, wall_clock=lambda: 5e9
        )

    def run_for(self, seconds: float) -> list[Frame]:
        """Let the sampler do all that is due in that time, and return what it wrote."""
        self.frames.clear()
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            wait_s = self.sampler.step()
            assert wait_s > 0, "the sampler would spin"
            self.now_s += wait_s
        return list(self.frames)


def device(uuid: str = "GPU-1", **fields: Any) -> Device:
    return Device(uuid=uuid, index=0, vendor="nvidia", name="A100", **fields)


def kinds(frames: list[Frame]) -> list[str]:
    return [frame["type"] for frame in frames]


# -- rhythm


def test_inventory_is_first_and_then_only_on_change() -> None:
    """The first frame is the inventory; it comes again when a device changes, and not otherwise."""
    rig = Rig(FakeVendor(device()))
    assert kinds(rig.run_for(1))[0] == "inventory"
    assert "inventory" not in kinds(rig.run_for(60))
    rig.vendor.devices = [device(usable=False, reason="gone")]
    changed = [frame for frame in rig.run_for(2) if frame["type"] == "inventory"]
    assert [frame["gpus"][0]["reason"] for frame in changed] == ["gone"]


def test_intervals_are_kept() -> None:
    """Samples, process lists and refreshes each come at their own interval."""
    vendor = FakeVendor(device())
    frames = Rig(vendor, sample_every_s=1.0, processes_every_s=3.0, health_every_s=30.0).run_for(60)
    assert kinds(frames).count("samples") == 60
    assert vendor.asked.count("processes") == 20
    assert vendor.asked.count("refresh") == 2


def test_beats_without_gpus() -> None:
    """Without GPUs there are no samples but a beat at least every 5 seconds."""
    rig = Rig(FakeVendor())
    frames = rig.run_for(60)
    assert kinds(frames).count("beat") >= 12
    assert "samples" not in kinds(frames)
    assert "sample" not in rig.vendor.asked


def test_missing_driver_is_retried_at_its_own_interval() -> None:
    """A driver in trouble is asked every retry_every_s, a good one every health_every_s."""
    vendor = FakeVendor()
    vendor.state = Driver("none", error="No driver.")
    Rig(vendor, health_every_s=5.0, retry_every_s=20.0).run_for(60)
    assert vendor.asked.count("refresh") == 3


def test_no_burst_after_a_pause() -> None:
    """After a long stop, such as a suspended laptop, one sample is due and not all those missed."""
    rig = Rig(FakeVendor(device()))
    rig.run_for(3)
    rig.now_s += 7200
    assert kinds(rig.run_for(3)).count("samples") <= 4


def test_start_over_waits_for_the_retry() -> None:
    """A stale driver library asks for a new process only when the driver is due to be tried again."""
    vendor = FakeVendor()
    vendor.state, vendor.stale = Driver("none", error="Versions differ."), True
    rig = Rig(vendor, retry_every_s=20.0)
    rig.sampler.step()
    assert not rig.sampler.must_start_over()
    rig.now_s += 20
    assert rig.sampler.must_start_over()


def test_config_ignores_what_it_does_not_know() -> None:
    """Unknown fields are ignored, null means the default, and lists are taken over."""
    line = '{"simulate": [{"name": "A100"}], "sample_every_s": 2.5, "pynvml_path": null, "future": 1}'
    config = config_from_line(line)
    assert config.simulate == ({"name": "A100"},)
    assert (config.sample_every_s, config.health_every_s, config.pynvml_path) == (2.5, 30.0, None)
    assert config_from_line('{"simulate": null}').simulate is None


# -- as a process


class SamplerProcess:
    """A real sampler, and the frames it has written."""

    def __init__(self, environment: dict[str, str], **config: Any) -> None:
        path = os.pathsep.join((str(ROOT), environment.get("GPUQ_PYNVML", "")))
        self.process = subprocess.Popen(
            [AGENT_PYTHON, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment, "PYTHONPATH": path},
        )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"sample_every_s": 0.05, **config}).encode() + b"\n")
        self.process.stdin.flush()
        self._frames: queue.Queue[Frame] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._frames.put(json.loads(line))

    def frame(self, kind: str, such: Callable[[Frame], bool] = lambda frame: True) -> Frame:
        """The next frame of a kind for which a condition holds."""
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            frame = self._frames.get(timeout=max(0.01, deadline_s - time.monotonic()))
            if frame["type"] == kind and such(frame):
                return frame

    def forget_frames(self) -> None:
        """Drop what it has written so far."""
        while self.has_frames():
            self._frames.get_nowait()

    def has_frames(self) -> bool:
        """Whether it has written anything that was not taken yet."""
        return not self._frames.empty()

    def end(self) -> tuple[int, str]:
        """Close its stdin; returns its exit code and what it wrote to stderr."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.wait()

    def wait(self) -> tuple[int, str]:
        """Its exit code and what it wrote to stderr, when it has ended by itself."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        code = self.process.wait(timeout=DEADLINE_S)
        self._reader.join(timeout=DEADLINE_S)
        complaint = self.process.stderr.read().decode()
        self.process.stdout.close()
        self.process.stderr.close()
        return code, complaint


@pytest.fixture
def nvml(tmp_path: Path) -> Iterator[MockNvml]:
    """A machine without GPUs yet, driver 580."""
    with MockNvml(tmp_path) as machine:
        yield machine


def test_simulated_process(tmp_path: Path) -> None:
    """A simulated GPU is listed and sampled, follows its state file, and stdin's end ends the process."""
    state = tmp_path / "state.json"
    sampler = SamplerProcess(
        dict(os.environ), simulate=[{"name": "A100", "memory_mib": 40960}], simulated_state=str(state)
    )
    assert sampler.frame("inventory")["driver"]["vendor"] == "simulated"
    assert sampler.frame("samples")["gpus"][0]["memory_used_mib"] == 0
    state.write_text(json.dumps({"0": {"health": "lost"}}))
    assert sampler.frame("inventory")["gpus"][0]["health"] == "lost"
    assert sampler.end() == (0, "")


def test_ends_without_configuration() -> None:
    """A sampler whose agent died before it said anything ends quietly."""
    done = subprocess.run(
        [AGENT_PYTHON, "-c", PROGRAM], input=b"", capture_output=True, cwd=ROOT, timeout=DEADLINE_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_ends_quietly_when_nobody_reads(tmp_path: Path) -> None:
    """When the agent is killed, the sampler ends at its next line without a traceback."""
    read_end, write_end = os.pipe()
    errors = tmp_path / "stderr"
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            [AGENT_PYTHON, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=write_end, stderr=stderr, cwd=ROOT
        )
    os.close(write_end)
    os.close(read_end)
    assert process.stdin is not None
    process.stdin.write(b'{"simulate": [{"name": "A100"}]}\n')
    process.stdin.flush()
    assert process.wait(timeout=DEADLINE_S) == 0
    process.stdin.close()
    assert errors.read_text() == ""


def test_nvml_process_reports_a_foreign_process_and_a_loss(nvml: MockNvml) -> None:
    """Through the whole sampler: a stranger's process shows with its user, a lost card with a reason."""
    nvml.add_gpu()
    lost = nvml.add_gpu(mock.RTX3090)
    nvml.add_process(0, os.getpid(), memory_mib=5000)
    sampler = SamplerProcess(nvml.environment(), processes_every_s=0.1)
    assert [gpu["health"] for gpu in sampler.frame("inventory")["gpus"]] == ["ok", "ok"]
    (process,) = sampler.frame("samples")["gpus"][0]["processes"]
    assert (process["pid"], process["memory_mib"]) == (os.getpid(), 5000)
    assert process["user"] is not None
    nvml.set_gpu(1, lost=1)
    frame = sampler.frame("inventory", lambda frame: frame["gpus"][1]["health"] == "lost")
    assert frame["gpus"][1]["uuid"] == lost
    assert frame["gpus"][0]["health"] == "ok"
    assert sampler.end() == (0, "")


def test_hung_driver_stops_the_frames_and_can_be_ended(nvml: MockNvml) -> None:
    """While a driver call hangs nothing is written, not even a beat, and the end of stdin still ends it."""
    nvml.add_gpu()
    sampler = SamplerProcess(nvml.environment())
    sampler.frame("samples")
    nvml.add_fault("nvmlDeviceGetUtilizationRates", delay_ms=600_000)
    assert quiet_for(nvml, 0.5), "the driver is still being called"
    sampler.forget_frames()
    assert quiet_for(nvml, 3.0), "the driver is still being called"
    assert not sampler.has_frames()
    assert sampler.end() == (0, "")


def quiet_for(nvml: MockNvml, seconds: float) -> bool:
    """Whether, before the deadline, so much time has passed without a call of the driver."""
    deadline_s = time.monotonic() + DEADLINE_S
    quiet_since_s, calls = time.monotonic(), nvml.get("top", 0, "calls")
    while time.monotonic() < deadline_s:
        time.sleep(0.05)
        if nvml.get("top", 0, "calls") != calls:
            quiet_since_s, calls = time.monotonic(), nvml.get("top", 0, "calls")
        if time.monotonic() - quiet_since_s >= seconds:
            return True
    return False


def test_driver_that_comes_later_is_found(nvml: MockNvml) -> None:
    """A driver that is missing at first is found at a later try, by the same process."""
    nvml.set_top(init_err=mock.DRIVER_NOT_LOADED)
    sampler = SamplerProcess(nvml.environment(), retry_every_s=0.2)
    assert sampler.frame("inventory")["driver"]["vendor"] == "none"
    uuid = nvml.add_gpu()
    nvml.set_top(init_err=0)
    assert sampler.frame("inventory")["gpus"][0]["uuid"] == uuid
    assert sampler.end() == (0, "")


def mapped_files(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


def test_updated_driver_library_is_loaded_afresh(nvml: MockNvml, tmp_path: Path) -> None:
    """After a version mismatch the sampler maps the new library by becoming a new process of the same pid."""
    link = tmp_path / "driver"
    link.symlink_to(mock.library_directory(470))
    uuid = nvml.add_gpu()
    environment = {**nvml.environment(), "LD_LIBRARY_PATH": str(link)}
    nvml.set_top(init_err=mock.LIB_RM_VERSION_MISMATCH)
    sampler = SamplerProcess(environment, retry_every_s=0.3)
    assert "different versions" in sampler.frame("inventory")["driver"]["error"]
    assert str(mock.library_directory(470)) in mapped_files(sampler.process.pid)
    link.unlink()
    link.symlink_to(mock.library_directory(580))
    nvml.set_top(init_err=0)
    frame = sampler.frame("inventory", lambda frame: bool(frame["gpus"]))
    assert (frame["gpus"][0]["uuid"], frame["driver"]["error"]) == (uuid, None)
    maps = mapped_files(sampler.process.pid)
    assert str(mock.library_directory(580)) in maps
    assert str(mock.library_directory(470)) not in maps
    assert sampler.end() == (0, "")
