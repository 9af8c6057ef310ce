"""The frozen records of the domain and their typed ids. Imports states and msgspec.

One thing to know: records are replaced, never changed. All tasks of an array share one JobSpec object, so ten
thousand of them cost ten thousand small Job records and one spec. Wall-clock times (`*_at`) are for people;
ages and elapsed times use `steady_s`, a clock that never jumps (see Stamp).
"""

from __future__ import annotations

from enum import Enum
from typing import NewType

import msgspec

from gpuq.core.states import JobState, Reason

JobId = NewType("JobId", str)  # "42", or "42_3" for task 3 of array 42
AttemptId = NewType("AttemptId", str)  # a random UUID, made for one try at running a job
NodeName = NewType("NodeName", str)
GpuUuid = NewType("GpuUuid", str)  # "GPU-…" or "MIG-…"
BlobId = NewType("BlobId", str)  # SHA-256 of an environment or a script kept beside the journal


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Base of all records: frozen, keyword-only, small in the journal."""


class Stamp(Record, frozen=True, kw_only=True):
    """A moment, on two clocks.

    wall_s: seconds since the epoch; may jump; shown to people and compared only with times people gave.
    steady_s: seconds that passed while gpuq watched, continued across restarts; never goes back.
    """

    wall_s: float
    steady_s: float


class User(Record, frozen=True, kw_only=True):
    """Who asked, from the kernel's word about the other end of the socket."""

    name: str
    uid: int
    is_admin: bool = False


class Visible(str, Enum):
    """How GPUs are named in CUDA_VISIBLE_DEVICES."""

    UUID = "uuid"
    INDEX = "index"


class Resources(Record, frozen=True, kw_only=True):
    """What one attempt needs, all on one node. None means: not asked for."""

    gpus: int = 0
    gpu_type: str | None = None  # as typed: "A100", "a100-80g"
    gpu_memory_mib: int | None = None  # per GPU
    gpu_ids: tuple[str, ...] = ()  # node-local indices or UUIDs, when given by hand
    cpus: int = 0  # 0: not asked for, and then not counted
    memory_mib: int | None = None  # host memory
    nodes: tuple[NodeName, ...] = ()  # only these, when not empty
    exclude: tuple[NodeName, ...] = ()


class DependencyKind(str, Enum):
    """Slurm's kinds of dependency."""

    AFTER = "after"  # the other has started or ended
    AFTER_OK = "afterok"  # ended with exit code 0
    AFTER_NOT_OK = "afternotok"  # ended otherwise
    AFTER_ANY = "afterany"  # ended
    AFTER_CORR = "aftercorr"  # the task of the same index ended with exit code 0
    SINGLETON = "singleton"  # no other job of the same name and owner is running


class Dependency(Record, frozen=True, kw_only=True):
    """One condition on another job (or on all tasks of an array); `job` is empty for singleton."""

    kind: DependencyKind
    job: JobId = JobId("")


class Dependencies(Record, frozen=True, kw_only=True):
    """All (or, with any_of, at least one) of the terms must hold."""

    terms: tuple[Dependency, ...] = ()
    any_of: bool = False
    keep_on_failed: bool = False  # hold instead of cancel when they can never hold


class JobSpec(Record, frozen=True, kw_only=True):
    """What was submitted: shared by all tasks of an array and by all attempts."""

    name: str
    argv: tuple[str, ...]  # the program and its arguments, or a script's name and its arguments
    cwd: str
    environment: BlobId
    script: BlobId | None = None
    resources: Resources = Resources()
    time_limit_s: float | None = None
    grace_s: float = 30.0
    warn_signal: int | None = None  # sent warn_before_s before the time limit
    warn_before_s: float = 60.0
    warn_all: bool = True  # to every process, or only to the first one
    priority: int = 0  # larger first
    nice: int = 0  # smaller first, as Slurm's
    begin_at: float | None = None  # wall clock
    deadline_at: float | None = None  # wall clock; a near one raises the weight, a missed one changes nothing
    dependencies: Dependencies = Dependencies()
    retries: int = 0  # further attempts after the job's own failure
    requeue: bool = False  # a further attempt after a lost node or an eviction
    preemptible: bool = False
    min_runtime_s: float = 0.0
    stdout: str | None = None  # None: gpuq keeps the log
    stderr: str | None = None  # None: joined into stdout
    append: bool = True  # open output files for appending (else truncate)
    umask: int = 0o022
    visible: Visible = Visible.UUID
    slurm_env: bool = False  # set SLURM_* beside GPUQ_*
    array_size: int = 0  # number of tasks; 0: not an array
    array_min: int = 0
    array_max: int = 0
    array_step: int = 1
    array_limit: int = 0  # tasks at once; 0: no limit
    values: tuple[tuple[str, tuple[str, ...]], ...] = ()  # (placeholder, its value per task) of a sweep or each-line
    comment: str | None = None


class Used(Record, frozen=True, kw_only=True):
    """What an attempt used of its GPUs, by the samples of its node. None: not measured (never taken for 0)."""

    utilization: float | None = None  # mean over time and GPUs, 0 to 1
    power_w: float | None = None  # mean draw of one GPU
    memory_mib: float | None = None  # the most that one of the GPUs ever held
    samples: int = 0


class Exit(Record, frozen=True, kw_only=True):
    """How an attempt ended, by the kernel's word. All None: nobody saw it (never taken for 0)."""

    code: int | None = None
    signal: int | None = None
    error: str | None = None  # one sentence when it could not start or its end was not seen
    run_s: float | None = None  # monotonic running time
    cpu_s: float | None = None
    max_rss_mib: float | None = None
    log_bytes: int | None = None
    log_dropped_bytes: int = 0
    used: Used | None = None  # None: it held no GPUs, or no sample was taken

    @property
    def shell_code(self) -> int | None:
        """The exit code a shell would show: the code, 128 + signal, or None when unknown."""
        if self.signal is not None:
            return 128 + self.signal
        return self.code


class StopKind(str, Enum):
    """Why an attempt was told to end."""

    CANCEL = "cancel"
    PREEMPT = "preempt"
    REQUEUE = "requeue"
    TIMEOUT = "timeout"


class StopOrder(Record, frozen=True, kw_only=True):
    """An attempt has been told to end; kept until nothing of it lives."""

    kind: StopKind
    by: str  # user name, or "gpuq"
    at: float
    grace_s: float
    hold: bool = False  # requeue only: the job is to wait until it is released
    room_for: JobId | None = None  # preempt only: the job that gets the GPUs


class Placement(Record, frozen=True, kw_only=True):
    """A job on named GPUs of one node. gpus is empty for a job that asked for none."""

    job: JobId
    node: NodeName
    gpus: tuple[GpuUuid, ...] = ()


class Room(Record, frozen=True, kw_only=True):
    """GPUs that are kept for a waiting job, since others were told to end for it."""

    placement: Placement
    attempts: tuple[AttemptId, ...]  # those that were told to end
    made_steady_s: float
    until_steady_s: float  # by then they should be gone; long after, the room is given up
    gain_s: float  # weighted seconds of waiting that it was expected to save


class Attempt(Record, frozen=True, kw_only=True):
    """One try at running a job."""

    id: AttemptId
    number: int  # 0 for the first
    node: NodeName
    gpus: tuple[GpuUuid, ...]
    placed_at: float
    placed_steady_s: float
    started_at: float | None = None
    started_steady_s: float | None = None
    shim_pid: int | None = None
    stop: StopOrder | None = None
    ended_at: float | None = None
    exit: Exit | None = None
    unkillable: tuple[int, ...] = ()  # pids that survive SIGKILL: the GPUs stay with it
    predicted_s: tuple[float, ...] = ()  # run times expected when placed, as quantiles.Quantiles; () without history
    progress: tuple[tuple[float, float], ...] = ()  # what the job reported: (steady_s, fraction done), see progress


class Hold(str, Enum):
    """Who keeps a pending job from starting."""

    USER = "user"
    ADMIN = "admin"
    DEPENDENCY = "dependency"  # its dependency can never hold and it asked to be kept


class Job(Record, frozen=True, kw_only=True):
    """One job as it stands now: an array task is a Job of its own."""

    id: JobId
    spec: JobSpec
    owner: User
    state: JobState
    submitted_at: float
    submitted_steady_s: float
    order: int  # rises with each submit and never changes: first come, first served among equals
    task: int | None = None  # array index
    held: Hold | None = None
    attempt: Attempt | None = None  # the current, or the last one
    restarts: int = 0
    failures: int = 0  # attempts that failed by themselves (counted against spec.retries)
    evictions: int = 0  # attempts that were stopped to make room for another job
    kept_s: float = 0.0  # what those had done, in seconds on the reference GPU; the next attempt goes on from there
    not_before_at: float | None = None  # wall clock: begin time, or the back-off after a failure
    reason: Reason = Reason.NONE  # of a final state
    message: str | None = None  # one sentence with the detail of reason
    ended_at: float | None = None

    @property
    def array(self) -> JobId:
        """The id of the array (or of the job itself when it is none)."""
        return JobId(self.id.partition("_")[0])

    @property
    def exit(self) -> Exit | None:
        """How the last attempt ended, if there was one and it has ended."""
        return self.attempt.exit if self.attempt else None


class Health(str, Enum):
    """What the driver says of a GPU."""

    OK = "ok"
    SUSPECT = "suspect"
    LOST = "lost"


class Foreign(Record, frozen=True, kw_only=True):
    """A process outside gpuq that uses a GPU."""

    pid: int
    user: str | None = None
    name: str | None = None
    memory_mib: int | None = None


class Gpu(Record, frozen=True, kw_only=True):
    """One GPU (or MIG slice) of a node, as last observed."""

    uuid: GpuUuid
    index: int
    type: str  # short class label: "A100-80G"
    name: str  # the driver's name
    memory_mib: int | None = None
    pci_bus_id: str | None = None
    numa_node: int | None = None
    power_limit_w: float | None = None
    parent: GpuUuid | None = None
    usable: bool = True
    reason: str | None = None  # why not usable
    health: Health = Health.OK
    foreign: tuple[Foreign, ...] = ()
    seen: bool = True  # False: its use is not known yet (then it counts as busy)
    speed: float = 1.0  # prior, relative to an A100; see hardware.catalogue
    peers: tuple[tuple[GpuUuid, str], ...] = ()


class Reach(str, Enum):
    """Whether the node's agent answers. UNREACHABLE is never taken for dead."""

    UP = "up"
    SUSPECT = "suspect"
    UNREACHABLE = "unreachable"


class Drain(Record, frozen=True, kw_only=True):
    """No new work on the node, by whose word and why."""

    reason: str
    by: str
    at: float


class Containment(str, Enum):
    """How completely the node can find and end the processes of a job."""

    CGROUP_V2 = "A"
    CGROUP_V1 = "B"
    PROCESS_TREE = "C"


class Node(Record, frozen=True, kw_only=True):
    """A machine as last reported by its agent."""

    name: NodeName
    hostname: str
    reach: Reach
    boot_id: str
    spool_id: str
    cpus: int
    memory_mib: int
    containment: Containment
    containment_detail: str = ""
    gpus: tuple[Gpu, ...] = ()
    drain: Drain | None = None
    driver: str | None = None  # "nvidia 580.65", "simulated"
    driver_error: str | None = None
    agent_version: str = ""
    warnings: tuple[str, ...] = ()


class Setting(Record, frozen=True, kw_only=True):
    """The value somebody gave a key. at: wall clock."""

    value: float
    by: str
    at: float


class Change(Record, frozen=True, kw_only=True):
    """Who changed a key, and to what; value None: back to what gpuq.toml says. at: wall clock."""

    key: str
    value: float | None
    by: str
    at: float
