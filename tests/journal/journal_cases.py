"""Records for the journal's tests: one rich event of each type, an ended job, and programs run as other processes."""

from __future__ import annotations

import os
import subprocess
import sys
import typing
from pathlib import Path

from gpuq.core import events as ev
from gpuq.core.model import (
    Attempt,
    AttemptId,
    BlobId,
    Containment,
    Dependencies,
    Dependency,
    DependencyKind,
    Drain,
    Exit,
    Foreign,
    Gpu,
    GpuUuid,
    Hold,
    Job,
    JobId,
    JobSpec,
    Node,
    NodeName,
    Reach,
    Resources,
    Stamp,
    StopKind,
    StopOrder,
    User,
)
from gpuq.core.states import JobState, Reason
from gpuq.journal import ArchivedGpu, ArchivedJob, blob_id

ROOT = Path(__file__).resolve().parents[2]
STAMP = Stamp(wall_s=1_790_000_000.25, steady_s=12.5)
EVENT_TYPES = typing.get_args(ev.AnyEvent)
ENVIRONMENT = b"HOME=/home/ada\0LANG=C.UTF-8\0"
ADA = User(name="ada", uid=1000)
TRY = AttemptId("6b2a2f0e-6c3f-4a55-9d3e-0c1f6c1f0001")
NODE = NodeName("node1")
GPU = GpuUuid("GPU-5d1c0d1e-0000-4000-8000-000000000001")
SPEC = JobSpec(
    name="Traîning “ß”",
    argv=("python", "train.py", "--lr", "$(echo no)\n"),
    cwd="/home/ada/project",
    environment=blob_id(ENVIRONMENT),
    resources=Resources(gpus=2, gpu_type="A100", gpu_memory_mib=40000, nodes=(NODE,)),
    time_limit_s=3600.5,
    dependencies=Dependencies(terms=(Dependency(kind=DependencyKind.AFTER_OK, job=JobId("7")),)),
    values=(("lr", ("0.1", "0.2")),),
    retries=2,
)
SEEN = Gpu(
    uuid=GPU, index=0, type="A100-80G", name="NVIDIA A100-SXM4-80GB", memory_mib=81920,
    foreign=(Foreign(pid=4242, user="bob", memory_mib=9000),), peers=((GpuUuid("GPU-2"), "nvlink"),),
)  # fmt: skip


def one_of_each() -> list[ev.AnyEvent]:
    """An event of every type, with most fields set."""
    job = JobId("42_3")
    order = StopOrder(kind=StopKind.CANCEL, by="ada", at=1_790_000_100.0, grace_s=30.0)
    return [
        ev.JobsSubmitted(id=JobId("42"), spec=SPEC, owner=ADA, key="k-1", tasks=(1, 3), held=Hold.USER),
        ev.JobPlaced(job=job, attempt=TRY, node=NODE, gpus=(GPU,)),
        ev.AttemptStarted(job=job, attempt=TRY, started_at=1_790_000_050.5, shim_pid=321),
        ev.StopOrdered(job=job, attempt=TRY, stop=order),
        ev.AttemptEnding(job=job, attempt=TRY, unkillable=(99,)),
        ev.AttemptEnded(
            job=job, attempt=TRY, state=JobState.FAILED, reason=Reason.NON_ZERO_EXIT_CODE,
            exit=Exit(code=3, run_s=61.25, cpu_s=60.0, log_bytes=1 << 40), ended_at=1_790_000_111.75, failed=True,
        ),
        ev.JobDropped(job=JobId("43"), state=JobState.CANCELLED, reason=Reason.CANCELLED_BY_USER, message="by ada"),
        ev.JobHeld(job=JobId("44"), hold=Hold.ADMIN, message="no"),
        ev.JobReleased(job=JobId("44")),
        ev.JobRequeued(job=job, held=Hold.ADMIN),
        ev.JobUpdated(job=JobId("44"), spec=SPEC, by="ada"),
        ev.JobSignalled(job=job, attempt=TRY, signal=10, by="ada"),
        ev.ProgressMade(job=job, attempt=TRY, fraction=0.42),
        ev.RoomMade(job=job, node=NODE, gpus=(GPU,), attempts=(TRY,), wait_s=30.0, gain_s=5000.0),
        ev.RoomGone(job=job),
        ev.JobsForgotten(jobs=(JobId("1"), JobId("2")), pruned=True),
        ev.StrayFound(attempt=TRY, node=NODE, job=job, gpus=(GPU,)),
        ev.StrayGone(attempt=TRY),
        ev.IdsSkipped(next_id=7),
        ev.SettingChanged(key="impact.age", value=2.5, by="root"),
        ev.NodeChanged(
            node=Node(
                name=NODE, hostname="n1.lab", reach=Reach.UP, boot_id="b", spool_id="s", cpus=64, memory_mib=515000,
                containment=Containment.CGROUP_V2, gpus=(SEEN,), drain=Drain(reason="fan", by="root", at=1.5),
            )
        ),
        ev.ReachChanged(node=NODE, reach=Reach.SUSPECT),
        ev.GpusChanged(node=NODE, gpus=(SEEN,), driver_error="none"),
        ev.NodeDrained(node=NODE, drain=Drain(reason="fan", by="root", at=2.5)),
        ev.NodeResumed(node=NODE),
    ]  # fmt: skip


def released(number: int) -> ev.JobReleased:
    """A small event that names a number."""
    return ev.JobReleased(job=JobId(str(number)))


def ended_job(id_: str, order: int, **changes: object) -> ArchivedJob:
    """An ended job that ran on one GPU; `changes` are fields of Job."""
    attempt = Attempt(
        id=TRY, number=0, node=NODE, gpus=(GPU,), placed_at=10.0, placed_steady_s=10.0, started_at=11.0,
        ended_at=20.0, exit=Exit(code=0, run_s=9.0),
    )  # fmt: skip
    fields: dict[str, object] = {
        "spec": SPEC, "owner": ADA, "state": JobState.COMPLETED, "submitted_at": 9.0, "submitted_steady_s": 9.0,
        "attempt": attempt, "ended_at": 20.0,
    }  # fmt: skip
    job = Job(id=JobId(id_), order=order, **(fields | changes))  # type: ignore[arg-type]
    return ArchivedJob(job=job, gpus=(ArchivedGpu(uuid=GPU, index=0, type="A100-80G"),))


def environment(**changes: str) -> dict[str, str]:
    """This process's environment without gpuq's variables, and with `changes`."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GPUQ_")}
    return kept | {"PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"} | changes


def start_program(text: str, *arguments: object, **variables: str) -> subprocess.Popen[str]:
    """Start Python `text` as a process of its own; its stdout and stderr are pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", text, *map(str, arguments)],
        env=environment(**variables), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def run_program(text: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python `text` to its end, at most 60 s."""
    return subprocess.run(
        [sys.executable, "-c", text, *map(str, arguments)],
        env=environment(**variables), text=True, capture_output=True, timeout=60, check=False,
    )  # fmt: skip


BLOB = BlobId(blob_id(ENVIRONMENT))
