"""Events (happened) and actions (to do): two closed unions. Imports model and states.

An event may not be refused, since it is already in the journal; an action is what the shell carries out after the
event is durable, and may be repeated harmlessly. One thing to know: event tags and field names are the journal's
file format, so a field is only ever added, with a default.
"""

from __future__ import annotations

from typing import Union

from gpuq.core.model import (
    AttemptId,
    Drain,
    Exit,
    Gpu,
    GpuUuid,
    Hold,
    JobId,
    JobSpec,
    Node,
    NodeName,
    Reach,
    Record,
    StopOrder,
    User,
)
from gpuq.core.states import JobState, Reason


class Event(Record, frozen=True, kw_only=True, tag=True):
    """Base of what happened; the journal holds these and nothing else."""


class JobsSubmitted(Event, frozen=True, kw_only=True):
    """A job, or all tasks of an array, came into being."""

    id: JobId
    spec: JobSpec
    owner: User
    key: str = ""
    tasks: tuple[int, ...] = ()
    held: Hold | None = None


class IdsSkipped(Event, frozen=True, kw_only=True):
    """The next job gets at least this id."""

    next_id: int


class JobPlaced(Event, frozen=True, kw_only=True):
    """An attempt owns its GPUs from now on and is to be started."""

    job: JobId
    attempt: AttemptId
    node: NodeName
    gpus: tuple[GpuUuid, ...] = ()
    predicted_s: tuple[float, ...] = ()  # 5, 25, 50, 75, 95% quantiles of its run time, when there is a history


class AttemptStarted(Event, frozen=True, kw_only=True):
    """A shim holds the claim: the program is running (or about to be executed)."""

    job: JobId
    attempt: AttemptId
    started_at: float
    shim_pid: int | None = None


class ProgressMade(Event, frozen=True, kw_only=True):
    """A running job said how much of its work is done: from 0 to 1."""

    job: JobId
    attempt: AttemptId
    fraction: float


class StopOrdered(Event, frozen=True, kw_only=True):
    """An attempt has been told to end."""

    job: JobId
    attempt: AttemptId
    stop: StopOrder


class AttemptEnding(Event, frozen=True, kw_only=True):
    """The first process is gone or was told to go; others are still there and keep the GPUs."""

    job: JobId
    attempt: AttemptId
    unkillable: tuple[int, ...] = ()


class AttemptEnded(Event, frozen=True, kw_only=True):
    """Nothing of the attempt lives any more; its GPUs are free. `state` is PENDING when the job runs again."""

    job: JobId
    attempt: AttemptId
    state: JobState
    reason: Reason
    exit: Exit
    ended_at: float
    message: str | None = None
    failed: bool = False  # counts against the job's retries
    not_before_at: float | None = None
    held: Hold | None = None


class JobDropped(Event, frozen=True, kw_only=True):
    """A pending job ended without running."""

    job: JobId
    state: JobState
    reason: Reason
    message: str | None = None


class JobHeld(Event, frozen=True, kw_only=True):
    """A pending job is kept from starting."""

    job: JobId
    hold: Hold
    message: str | None = None


class JobReleased(Event, frozen=True, kw_only=True):
    """A held job may start again."""

    job: JobId


class JobRequeued(Event, frozen=True, kw_only=True):
    """An ended job is to run again."""

    job: JobId
    held: Hold | None = None


class JobUpdated(Event, frozen=True, kw_only=True):
    """A job has a new spec of its own."""

    job: JobId
    spec: JobSpec
    by: str = ""


class RoomMade(Event, frozen=True, kw_only=True):
    """GPUs are kept for a pending job from now on; those that hold them are told to end by events of their own."""

    job: JobId
    node: NodeName
    gpus: tuple[GpuUuid, ...]
    attempts: tuple[AttemptId, ...]
    wait_s: float  # until they should be gone
    gain_s: float


class RoomGone(Event, frozen=True, kw_only=True):
    """The GPUs are kept for the job no longer."""

    job: JobId


class JobSignalled(Event, frozen=True, kw_only=True):
    """A signal was sent to a running job by hand."""

    job: JobId
    attempt: AttemptId
    signal: int
    by: str


class JobsForgotten(Event, frozen=True, kw_only=True):
    """Ended jobs leave the state; the archive still has them unless `pruned`."""

    jobs: tuple[JobId, ...]
    pruned: bool = False


class StrayFound(Event, frozen=True, kw_only=True):
    """A living attempt that this state does not know (an older state was restored): it keeps its GPUs."""

    attempt: AttemptId
    node: NodeName
    job: JobId | None = None
    gpus: tuple[GpuUuid, ...] = ()


class StrayGone(Event, frozen=True, kw_only=True):
    """Nothing of a stray attempt lives any more."""

    attempt: AttemptId


class NodeChanged(Event, frozen=True, kw_only=True):
    """A node appeared or is described anew (its drain is kept)."""

    node: Node


class ReachChanged(Event, frozen=True, kw_only=True):
    """The link to a node changed."""

    node: NodeName
    reach: Reach


class GpusChanged(Event, frozen=True, kw_only=True):
    """The GPUs of a node are described anew."""

    node: NodeName
    gpus: tuple[Gpu, ...]
    driver_error: str | None = None


class NodeDrained(Event, frozen=True, kw_only=True):
    """No new work on a node."""

    node: NodeName
    drain: Drain


class NodeResumed(Event, frozen=True, kw_only=True):
    """A node takes work again."""

    node: NodeName


class SettingChanged(Event, frozen=True, kw_only=True):
    """Somebody set a key of the running daemon; value None: it is as gpuq.toml says again."""

    key: str
    value: float | None = None
    by: str = ""


AnyEvent = Union[
    JobsSubmitted, IdsSkipped, JobPlaced, AttemptStarted, StopOrdered, AttemptEnding, AttemptEnded, JobDropped, JobHeld,
    JobReleased, JobRequeued, JobUpdated, JobSignalled, JobsForgotten, NodeChanged, ReachChanged, GpusChanged,
    NodeDrained, NodeResumed, StrayFound, StrayGone, SettingChanged, ProgressMade, RoomMade, RoomGone,
]  # fmt: skip

# --- actions --------------------------------------------------------------------------------------------


class Action(Record, frozen=True, kw_only=True, tag=True):
    """Base of what the shell is to do once the event is durable. Every action may be repeated harmlessly."""

    node: NodeName
    attempt: AttemptId


class StartAttempt(Action, frozen=True, kw_only=True):
    """Start the attempt's program (once)."""

    job: JobId


class StopAttempt(Action, frozen=True, kw_only=True):
    """TERM, grace, KILL until nothing of it lives."""

    reason: str
    grace_s: float


class SignalAttempt(Action, frozen=True, kw_only=True):
    """Send a signal to every process of it."""

    signal: int


class SetLimit(Action, frozen=True, kw_only=True):
    """A new time limit for a running attempt."""

    time_limit_s: float | None


class FenceAttempt(Action, frozen=True, kw_only=True):
    """Make sure that it never starts from now on."""


class ReleaseAttempt(Action, frozen=True, kw_only=True):
    """Its end is durable here: the node may drop the spool entry."""


AnyAction = Union[StartAttempt, StopAttempt, SignalAttempt, SetLimit, FenceAttempt, ReleaseAttempt]
