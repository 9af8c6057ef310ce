"""Faults of other queues with GPUs: desktops, order, MIG, lost cards; simulated and with a made-up NVML library."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import Queue, eventually, holds_for
from tests.nvml.mock import A100, GPU_IS_LOST, GRAPHICS, MIB, NOT_SUPPORTED, RTX3090, MockNvml

pytestmark = pytest.mark.e2e

FAST_SAMPLES = '[gpus]\nsample_every = "0.3s"\n'
PRINT_DEVICES = 'echo "$CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES $GPUQ_GPUS"'


@pytest.fixture
def nvml(tmp_path: Path) -> Iterator[MockNvml]:
    """A made-up driver without any GPU yet."""
    with MockNvml(tmp_path) as mock:
        yield mock


@pytest.fixture
def nvml_queue(new_queue: Callable[..., Queue], nvml: MockNvml) -> Callable[..., Queue]:
    """A function that starts a queue whose agent sees the made-up driver."""

    def start(**fields: object) -> Queue:
        queue = new_queue(gpus=(), settings=FAST_SAMPLES, environment=nvml.environment({}), **fields).start()
        queue.node_ready()
        return queue

    return start


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process outside gpuq."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_a03_a_desktop_does_not_take_the_gpu(
    nvml: MockNvml, nvml_queue: Callable[..., Queue], stranger: subprocess.Popen[bytes]
) -> None:
    """A graphics process of 150 MB is shown and blocks nothing."""
    nvml.add_gpu(RTX3090)
    nvml.add_process(0, stranger.pid, memory_mib=150, kind=GRAPHICS)
    queue = nvml_queue()
    assert queue.ended(queue.submit("true"))["state"] == "COMPLETED"
    eventually(lambda: queue.gpus()[0]["processes"], "the process is shown")
    assert queue.gpus()[0]["processes"][0]["pid"] == stranger.pid
    assert queue.gpus()[0]["state"] == "free"


def test_a03_a_foreign_computation_takes_the_gpu(
    nvml: MockNvml, nvml_queue: Callable[..., Queue], stranger: subprocess.Popen[bytes]
) -> None:
    """A stranger's compute process makes the GPU busy, is named in the reason, and frees it by ending."""
    nvml.add_gpu(RTX3090)
    row = nvml.add_process(0, stranger.pid, memory_mib=11_000)
    queue = nvml_queue()
    id_ = queue.submit("true")
    assert str(stranger.pid) in queue.gpu_becomes(0, "foreign")["reason"]
    eventually(lambda: queue.job(id_)["reason"] == "GpuForeignUse", lambda: f"the reason: {queue.job(id_)['reason']}")
    assert str(stranger.pid) in queue.job(id_)["message"]
    assert queue.job(id_)["state"] == "PENDING"
    nvml.end_process(row)
    assert queue.ended(id_)["state"] == "COMPLETED"


def test_a03_a_job_s_own_processes_are_not_foreign(nvml: MockNvml, nvml_queue: Callable[..., Queue]) -> None:
    """What a job computes on its own GPU is never taken for a stranger, also by the next job in the queue."""
    nvml.add_gpu(RTX3090)
    queue = nvml_queue()
    id_ = queue.submit("echo $$; until test -e go; do sleep 0.05; done")
    (pid,) = queue.printed_pids(id_, 1)
    row = nvml.add_process(0, pid, memory_mib=9000)
    eventually(lambda: queue.gpus()[0]["processes"], "the process is seen")
    assert queue.gpus()[0]["state"] == "busy"
    nvml.end_process(row)
    (queue.work / "go").touch()
    assert queue.ended(id_)["state"] == "COMPLETED"
    assert queue.ended(queue.submit("true"))["state"] == "COMPLETED"


def test_a03_a_stranger_of_unknown_size_takes_the_gpu(
    nvml: MockNvml, nvml_queue: Callable[..., Queue], stranger: subprocess.Popen[bytes]
) -> None:
    """A stranger's compute process whose memory the driver does not tell makes a GPU busy that was free before."""
    nvml.add_gpu(RTX3090)
    queue = nvml_queue()
    assert queue.ended(queue.submit("true"))["state"] == "COMPLETED"
    row = nvml.add_process(0, stranger.pid, memory_mib=0)
    nvml.set("process", row, mem=2**64 - 1)
    queue.gpu_becomes(0, "foreign", "unknown")
    id_ = queue.submit("true")
    holds_for(lambda: queue.job(id_)["state"] == "PENDING", "nothing starts beside a stranger", 1.0)
    nvml.set("process", row, ended=1)
    assert queue.ended(id_)["state"] == "COMPLETED"


def test_a03_unknown_use_is_busy(nvml: MockNvml, nvml_queue: Callable[..., Queue]) -> None:
    """While the list of processes cannot be read, a GPU is not given away, and the reason says so."""
    nvml.add_gpu(RTX3090)
    queue = nvml_queue()
    assert queue.ended(queue.submit("true"))["state"] == "COMPLETED"
    names = ("nvmlDeviceGetComputeRunningProcesses" + suffix for suffix in ("", "_v2", "_v3"))
    rows = [nvml.add_fault(name, NOT_SUPPORTED) for name in names]
    queue.gpu_becomes(0, "unknown")
    id_ = queue.submit("true")
    holds_for(lambda: queue.job(id_)["state"] == "PENDING", "nothing starts on a GPU of unknown use", 1.0)
    assert queue.job(id_)["reason"] == "GpuUnknown"
    for row in rows:
        nvml.clear_fault(row)
    assert queue.ended(id_)["state"] == "COMPLETED"


def test_a04_the_job_runs_on_the_gpu_that_status_names(nvml: MockNvml, nvml_queue: Callable[..., Queue]) -> None:
    """Two models, the slower first on the bus: CUDA gets the UUID of the reserved card and the bus order."""
    slow, fast = nvml.add_gpu(RTX3090, bus=0x10), nvml.add_gpu(A100, bus=0x20)
    queue = nvml_queue()
    for index, uuid in enumerate((slow, fast)):
        id_ = queue.gpuq("submit", "--gpu-ids", str(index), "--", "bash", "-c", PRINT_DEVICES).id
        job = queue.ended(id_)
        assert [gpu["uuid"] for gpu in job["gpus"]] == [uuid]
        assert queue.output(id_) == f"PCI_BUS_ID {uuid} {uuid}\n"


def test_a04_indices_on_request_are_in_bus_order(nvml: MockNvml, nvml_queue: Callable[..., Queue]) -> None:
    """With --visible index the number is the card's place in PCI order, whatever its NVML index."""
    nvml.add_gpu(RTX3090, bus=0x20)
    second = nvml.add_gpu(RTX3090, bus=0x10)
    queue = nvml_queue()
    wanted = "bash", "-c", 'echo "$CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES $GPUQ_GPUS"'
    id_ = queue.gpuq("submit", "--gpu-ids", second, "--visible", "index", "--", *wanted).id
    queue.ended(id_)
    assert queue.output(id_) == f"PCI_BUS_ID 0 {second}\n"


def test_a04_a_job_without_gpus_sees_none(queue: Queue) -> None:
    """CUDA_VISIBLE_DEVICES is empty for a job that asked for no GPU, also over a captured value."""
    environment = {"CUDA_VISIBLE_DEVICES": "0,1"}
    shown = "bash", "-c", 'echo "[$CUDA_VISIBLE_DEVICES]"'
    id_ = queue.gpuq("submit", "--gpus", "0", "--", *shown, environment=environment).id
    queue.ended(id_)
    assert queue.output(id_) == "[]\n"


def test_a05_mig_slices_are_devices_of_their_own(nvml: MockNvml, nvml_queue: Callable[..., Queue]) -> None:
    """A card in MIG mode is never handed out beside its slices; jobs get slices by their MIG UUID."""
    card = nvml.add_gpu(A100)
    slices = [nvml.add_slice(0, slot, slices=3, memory_mib=40_000) for slot in (0, 1)]
    queue = nvml_queue()
    shown = {gpu["uuid"]: gpu for gpu in queue.gpus()}
    assert set(shown) == {card, *slices}
    assert shown[card]["state"] == "unusable"
    assert "MIG" in shown[card]["reason"]
    assert {shown[uuid]["parent"] for uuid in slices} == {card}
    ids = [queue.submit(f"{PRINT_DEVICES}; until test -e go; do sleep 0.05; done") for _ in range(3)]
    devices = {queue.lines(id_, 1)[0].split()[1] for id_ in ids[:2]}
    assert devices == set(slices)
    assert queue.job(ids[2])["state"] == "PENDING"
    assert queue.gpuq("nodes").err == b""
    (queue.work / "go").touch()
    queue.ended(*ids)


def test_a05_gpuq_itself_started_with_a_mig_identifier(new_queue: Callable[..., Queue]) -> None:
    """A MIG identifier in the environment of client and daemon disturbs neither."""
    variables = {"CUDA_VISIBLE_DEVICES": "MIG-00000000-0000-4000-8000-000000000000"}
    queue = new_queue(environment=variables).start()
    id_ = queue.gpuq("submit", "--", "bash", "-c", PRINT_DEVICES, environment=variables).id
    job = queue.ended(id_)
    assert queue.output(id_).split()[1] == job["gpus"][0]["uuid"]


def test_a24_a_card_lost_from_the_start(nvml: MockNvml, nvml_queue: Callable[..., Queue]) -> None:
    """One of four cards answers every question with GPU_IS_LOST: the other three work, it is shown as failed."""
    for _ in range(4):
        nvml.add_gpu(A100)
    nvml.set_gpu(2, lost=1)
    queue = nvml_queue()
    ids = [queue.submit("until test -e go; do sleep 0.05; done") for _ in range(4)]
    for id_ in ids[:3]:
        queue.reaches(id_, "RUNNING")
    holds_for(lambda: queue.job(ids[3])["state"] == "PENDING", "the lost card gets no job", 1.0)
    states = [gpu["state"] for gpu in queue.gpus()]
    assert sorted(states) == ["busy", "busy", "busy", "lost"]
    assert "lost" in queue.gpuq("gpus").text.lower()
    (queue.work / "go").touch()
    queue.ended(*ids)


def test_a24_a_card_lost_in_mid_run(nvml: MockNvml, nvml_queue: Callable[..., Queue]) -> None:
    """A card is lost under a job: the job is named in a warning and left alone, the card gets no other job."""
    for _ in range(2):
        nvml.add_gpu(A100)
    queue = nvml_queue()
    id_ = queue.submit("until test -e go; do sleep 0.05; done; exit 9")
    queue.reaches(id_, "RUNNING")
    index = queue.job(id_)["gpus"][0]["index"]
    nvml.add_fault("", GPU_IS_LOST, index=index)
    nvml.set_gpu(index, lost=1)
    queue.gpu_becomes(index, "lost")
    eventually(lambda: f"job {id_}" in queue.log() and "lost" in queue.log(), "the log names the job")
    assert queue.job(id_)["state"] == "RUNNING"
    other = queue.submit("true")
    assert queue.ended(other)["state"] == "COMPLETED"
    assert queue.job(other)["gpus"][0]["index"] != index
    (queue.work / "go").touch()
    assert queue.ended(id_)["exit_code"] == 9
    holds_for(lambda: queue.gpus()[index]["state"] == "lost", "the card stays lost", 0.5)


def test_a24_simulated_loss_and_return(queue: Queue) -> None:
    """A simulated card that is lost gets no job until it is back."""
    queue.node_ready()
    queue.simulate(g0={"health": "lost"}, g1={"health": "lost"})
    queue.gpu_becomes(0, "lost")
    queue.gpu_becomes(1, "lost")
    id_ = queue.submit("true")
    holds_for(lambda: queue.job(id_)["state"] == "PENDING", "a lost card gets no job", 1.0)
    assert queue.job(id_)["reason"] in ("GpuUnknown", "Resources")
    queue.simulate()
    assert queue.ended(id_)["state"] == "COMPLETED"


def test_a24_simulated_foreign_process(queue: Queue, stranger: subprocess.Popen[bytes]) -> None:
    """A simulated stranger on both cards keeps a job waiting with a reason that names it."""
    queue.node_ready()
    process = {"pid": stranger.pid, "memory_mib": 4000, "kind": "compute"}
    queue.simulate(g0={"processes": [process]}, g1={"processes": [process]})
    queue.gpu_becomes(1, "foreign")
    id_ = queue.submit("true")
    eventually(lambda: queue.job(id_)["reason"] == "GpuForeignUse", lambda: f"the reason: {queue.job(id_)['reason']}")
    queue.simulate(g0={"processes": [process]})
    job = queue.ended(id_)
    assert (job["state"], job["gpus"][0]["index"]) == ("COMPLETED", 1)


def test_a24_a_driver_that_hangs(queue: Queue) -> None:
    """While the driver hangs, jobs on it go on, the queue answers, and work resumes afterwards."""
    queue.node_ready()
    running = queue.submit("until test -e go; do sleep 0.05; done")
    queue.reaches(running, "RUNNING")
    queue.simulate(hang_s=30)
    holds_for(lambda: queue.job(running)["state"] == "RUNNING", "the job runs on", 1.0)
    (queue.work / "go").touch()
    assert queue.ended(running)["state"] == "COMPLETED"
    queue.simulate()
    assert queue.ended(queue.submit("true"))["state"] == "COMPLETED"


def test_no_driver_is_a_reason_not_a_crash(new_queue: Callable[..., Queue]) -> None:
    """A machine without any driver runs jobs that ask for no GPU; one that does waits, and is told about the driver."""
    queue = new_queue(gpus=()).start()
    assert queue.ended(queue.submit("true", gpus=0))["state"] == "COMPLETED"
    ran = queue.gpuq("submit", "--gpus", "1", "--", "true")
    assert b"Traceback" not in ran.err
    eventually(lambda: queue.job(ran.id)["message"], "the waiting job has a reason")
    assert "driver" in queue.job(ran.id)["message"], "the reason names the obstacle"


def test_sampler_killed_is_replaced(queue: Queue) -> None:
    """kill -9 of the process that reads the GPUs costs nothing but a moment."""
    queue.node_ready()
    (sampler,) = eventually(lambda: queue.serving("sampler"), "the sampler runs")
    os.kill(sampler, signal.SIGKILL)
    eventually(lambda: [pid for pid in queue.serving("sampler") if pid != sampler], "another sampler runs")
    assert queue.ended(queue.submit("true"))["state"] == "COMPLETED"


def test_memory_request_picks_the_card_that_has_it(nvml: MockNvml, nvml_queue: Callable[..., Queue]) -> None:
    """--gpu-mem takes the card with enough memory; more than any card has is refused with the largest value."""
    nvml.add_gpu(RTX3090)
    large = nvml.add_gpu(A100)
    queue = nvml_queue()
    id_ = queue.gpuq("submit", "--gpu-mem", "40G", "--", "true").id
    assert queue.ended(id_)["gpus"][0]["uuid"] == large
    refusal = queue.gpuq("submit", "--gpu-mem", "999G", "--", "true", code=1).error
    assert "80" in refusal or "79" in refusal
    assert A100["mem_total"] == 81920 * MIB
