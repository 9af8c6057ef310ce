"""Requests: what may be asked of the core, by people, by agents and by the planner. Imports model and states.

A request may be refused (core.decide says why); what comes of it are events.
"""

from __future__ import annotations

from typing import Union

from gpuq.core.model import (
    AttemptId,
    Exit,
    Gpu,
    GpuUuid,
    JobId,
    JobSpec,
    Node,
    NodeName,
    Placement,
    Reach,
    Record,
    User,
)
from gpuq.core.states import JobState


class Request(Record, frozen=True, kw_only=True, tag=True):
    """Base of what may be asked."""


class Submit(Request, frozen=True, kw_only=True):
    """Make one job, or all tasks of one array."""

    spec: JobSpec
    by: User
    key: str = ""  # idempotency key: a second submit with the same key makes nothing new
    tasks: tuple[int, ...] = ()  # array indices; empty: not an array
    held: bool = False
    ended_elsewhere: tuple[tuple[JobId, JobState], ...] = ()  # dependencies that only the archive knows
    gpus_given: bool = True  # False: the person did not say how many


class Cancel(Request, frozen=True, kw_only=True):
    """End jobs, waiting or running. Ended ones are left as they are."""

    jobs: tuple[JobId, ...]
    by: User
    grace_s: float | None = None  # None: what the job asked for


class HoldJobs(Request, frozen=True, kw_only=True):
    """Keep pending jobs from starting."""

    jobs: tuple[JobId, ...]
    by: User


class ReleaseJobs(Request, frozen=True, kw_only=True):
    """Let held jobs start again."""

    jobs: tuple[JobId, ...]
    by: User


class Requeue(Request, frozen=True, kw_only=True):
    """Run jobs again under the same id; running ones are ended first."""

    jobs: tuple[JobId, ...]
    by: User
    hold: bool = False


class Update(Request, frozen=True, kw_only=True):
    """Replace the spec of pending jobs, or the time limit of running ones."""

    jobs: tuple[JobId, ...]
    by: User
    changes: dict[str, object]  # JobSpec field, or "resources.<field>": new value


class Signal(Request, frozen=True, kw_only=True):
    """Send a signal to every process of running jobs."""

    jobs: tuple[JobId, ...]
    by: User
    signal: int


class ReportProgress(Request, frozen=True, kw_only=True):
    """A running job says how much of its work is done."""

    job: JobId
    by: User
    fraction: float


class Prune(Request, frozen=True, kw_only=True):
    """Forget ended jobs; refuses any that a living job still depends on."""

    jobs: tuple[JobId, ...]
    by: User


class DrainNode(Request, frozen=True, kw_only=True):
    """Start nothing more on a node."""

    node: NodeName
    reason: str
    by: User


class ResumeNode(Request, frozen=True, kw_only=True):
    """Let a drained node work again."""

    node: NodeName
    by: User


class DeclareDead(Request, frozen=True, kw_only=True):
    """An administrator's word that a node will never come back with what ran there."""

    node: NodeName
    by: User


class NodeReady(Request, frozen=True, kw_only=True):
    """An agent said hello: who it is, and what its spool holds."""

    node: Node
    attempts: tuple[AttemptReport, ...] = ()


class NodeReached(Request, frozen=True, kw_only=True):
    """The link to a node changed."""

    node: NodeName
    reach: Reach


class GpusSeen(Request, frozen=True, kw_only=True):
    """The GPUs of a node, their health or who uses them changed."""

    node: NodeName
    gpus: tuple[Gpu, ...]
    driver_error: str | None = None


class AttemptReport(Request, frozen=True, kw_only=True):
    """An agent's word about one attempt; phases as in docs/agent-protocol.md."""

    node: NodeName
    attempt: AttemptId
    phase: str  # absent, starting, running, ending, ended, lost, fenced
    status: str | None = None  # exited, signaled, not_started
    started_at: float | None = None
    shim_pid: int | None = None
    reason: str | None = None  # timeout, cancel, preempt, requeue, out_of_memory
    exit: Exit | None = None
    ended_at: float | None = None
    rebooted: bool = False
    unkillable: tuple[int, ...] = ()
    progress: float | None = None  # from the file the job may write: from 0 to 1
    job: JobId | None = None  # from the spool, so that an attempt unknown here can be named
    gpus: tuple[GpuUuid, ...] = ()


class Place(Request, frozen=True, kw_only=True):
    """A placement that a plan wants to start now; it is checked again, and dropped when it no longer fits."""

    placement: Placement
    attempt: AttemptId  # a fresh random id


class Evict(Request, frozen=True, kw_only=True):
    """Make room for a waiting job: stop these attempts, and keep the GPUs for it. Checked again, as a placement is."""

    placement: Placement
    attempts: tuple[AttemptId, ...]
    gain_s: float  # weighted seconds of waiting that it saves by prediction


class Configure(Request, frozen=True, kw_only=True):
    """Change a setting of the running daemon (core.settings has the keys); None: as gpuq.toml says again."""

    key: str
    value: float | None  # seconds for durations
    by: User


class SkipIds(Request, frozen=True, kw_only=True):
    """Entries of the journal were lost: give out no id that they may have given out already."""

    count: int


class Tick(Request, frozen=True, kw_only=True):
    """Time passed: begin times, back-offs, deadlines, dependencies, forgetting of old jobs."""


AnyRequest = Union[
    Submit, Cancel, HoldJobs, ReleaseJobs, Requeue, Update, Signal, ReportProgress, Prune, DrainNode, ResumeNode,
    DeclareDead,
    NodeReady, NodeReached, GpusSeen, AttemptReport, Place, Evict, Configure, SkipIds, Tick,
]  # fmt: skip
