"""Job states and the one table of their transitions. Owns the words; imports errors.

Theory. A job is in exactly one state. Why it waits is data (core.fit computes it), never a state, and how it
ended is its final state plus an exit record. Only the table below moves a job; a pair that is not in it
raises IllegalTransition before anything is written, and the state stays as it was.

    PENDING ──placed──▶ CONFIGURING ──started──▶ RUNNING ──main process gone──▶ COMPLETING
       ▲                     │                      │                                │
       └──────retried────────┴──────────────────────┴────────────────────────────────┤
                                                                                     ▼
    PENDING ──cancelled, dependency dead──▶ CANCELLED        COMPLETED FAILED CANCELLED TIMEOUT
                                                             OUT_OF_MEMORY NODE_FAIL PREEMPTED DEADLINE

An attempt that outlived a daemon may be reported as ended without ever having been seen running, so
CONFIGURING reaches every final state too. A final state is left only by an explicit requeue.
The words and two-letter codes are Slurm's, since people and scripts know them.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from gpuq.errors import IllegalTransition, UsageError


class JobState(str, Enum):
    """Slurm's word for what a job is doing or how it ended."""

    PENDING = "PENDING"
    CONFIGURING = "CONFIGURING"
    RUNNING = "RUNNING"
    COMPLETING = "COMPLETING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    DEADLINE = "DEADLINE"

    @property
    def code(self) -> str:
        """The two- or three-letter form, as in squeue."""
        return CODES[self]

    @property
    def is_final(self) -> bool:
        """Whether the job has ended; the only definition of it in gpuq."""
        return self in FINAL

    @property
    def holds_gpus(self) -> bool:
        """Whether an attempt in this state owns GPUs."""
        return self in ACTIVE


CODES: Final = {
    JobState.PENDING: "PD",
    JobState.CONFIGURING: "CF",
    JobState.RUNNING: "R",
    JobState.COMPLETING: "CG",
    JobState.COMPLETED: "CD",
    JobState.FAILED: "F",
    JobState.CANCELLED: "CA",
    JobState.TIMEOUT: "TO",
    JobState.OUT_OF_MEMORY: "OOM",
    JobState.NODE_FAIL: "NF",
    JobState.PREEMPTED: "PR",
    JobState.DEADLINE: "DL",
}

ACTIVE: Final = frozenset({JobState.CONFIGURING, JobState.RUNNING, JobState.COMPLETING})
FINAL: Final = frozenset(JobState) - ACTIVE - {JobState.PENDING}


class Step(str, Enum):
    """The kinds of event that move a job from one state to another."""

    PLACED = "placed"
    STARTED = "started"
    ENDING = "ending"
    ENDED = "ended"
    RETRIED = "retried"  # its attempt ended, and it is to have another
    REQUEUED = "requeued"
    DROPPED = "dropped"


_ENDED_FROM_ATTEMPT: Final = FINAL

TRANSITIONS: Final[dict[tuple[JobState, Step], frozenset[JobState]]] = {
    (JobState.PENDING, Step.PLACED): frozenset({JobState.CONFIGURING}),
    (JobState.PENDING, Step.DROPPED): frozenset({JobState.CANCELLED, JobState.DEADLINE, JobState.FAILED}),
    (JobState.CONFIGURING, Step.STARTED): frozenset({JobState.RUNNING}),
    (JobState.CONFIGURING, Step.ENDING): frozenset({JobState.COMPLETING}),
    (JobState.CONFIGURING, Step.ENDED): _ENDED_FROM_ATTEMPT,
    (JobState.CONFIGURING, Step.RETRIED): frozenset({JobState.PENDING}),
    (JobState.RUNNING, Step.ENDING): frozenset({JobState.COMPLETING}),
    (JobState.RUNNING, Step.ENDED): _ENDED_FROM_ATTEMPT,
    (JobState.RUNNING, Step.RETRIED): frozenset({JobState.PENDING}),
    (JobState.COMPLETING, Step.ENDING): frozenset({JobState.COMPLETING}),
    (JobState.COMPLETING, Step.ENDED): _ENDED_FROM_ATTEMPT,
    (JobState.COMPLETING, Step.RETRIED): frozenset({JobState.PENDING}),
    **{(state, Step.REQUEUED): frozenset({JobState.PENDING}) for state in FINAL},
}


def check_transition(job: str, state: JobState, step: Step, target: JobState) -> None:
    """Raise IllegalTransition unless the table lets `job` go from `state` to `target` by `step`."""
    if target not in TRANSITIONS.get((state, step), ()):
        raise IllegalTransition(f"job {job} cannot go from {state.value} to {target.value} by '{step.value}'")


def parse_state(text: str) -> JobState:
    """The state a person named by its word or code in any case; raises UsageError with the list."""
    wanted = text.strip().upper()
    for state, code in CODES.items():
        if wanted in (state.value, code):
            return state
    known = ", ".join(f"{state.value} ({code})" for state, code in CODES.items())
    raise UsageError(f"'{text}' is not a job state.", f"Known states: {known}.")


class Reason(str, Enum):
    """Why a job waits, or why it ended as it did. Slurm's word where Slurm has one."""

    NONE = "None"
    RESOURCES = "Resources"
    PRIORITY = "Priority"
    DEPENDENCY = "Dependency"
    DEPENDENCY_NEVER_SATISFIED = "DependencyNeverSatisfied"
    BEGIN_TIME = "BeginTime"
    JOB_HELD_USER = "JobHeldUser"
    JOB_HELD_ADMIN = "JobHeldAdmin"
    JOB_ARRAY_TASK_LIMIT = "JobArrayTaskLimit"
    ACCOUNT_GPU_LIMIT = "AccountGpuLimit"
    USER_GPU_LIMIT = "UserGpuLimit"
    REQ_NODE_NOT_AVAIL = "ReqNodeNotAvail"
    BAD_CONSTRAINTS = "BadConstraints"
    GPU_FOREIGN_USE = "GpuForeignUse"
    GPU_UNKNOWN = "GpuUnknown"
    GPU_MEMORY = "GpuMemory"
    FASTER_GPU_SOON = "FasterGpuSoon"
    MAKING_ROOM = "MakingRoom"
    NON_ZERO_EXIT_CODE = "NonZeroExitCode"
    RAISED_SIGNAL = "RaisedSignal"
    TIME_LIMIT = "TimeLimit"
    OUT_OF_MEMORY = "OutOfMemory"
    LAUNCH_FAILED = "LaunchFailed"
    SHIM_LOST = "ShimLost"
    NODE_REBOOTED = "NodeRebooted"
    NODE_DECLARED_DEAD = "NodeDeclaredDead"
    EVIDENCE_LOST = "EvidenceLost"
    CANCELLED_BY_USER = "CancelledByUser"
    CANCELLED_BY_ADMIN = "CancelledByAdmin"
    PREEMPTED = "Preempted"
