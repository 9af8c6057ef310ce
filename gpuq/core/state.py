"""The state of the cluster: records, and the indexes that follow from them. Imports model, speeds, states.

core.apply is the only module that changes it; decisions are made in core.decide. core.invariants computes every index
anew from the records and raises when the two differ, or when a GPU has two owners.

One thing to know: pending jobs of the same Shape are interchangeable for the planner except for their age,
so they are kept in one queue, and a queue of ten thousand equal jobs costs the planner no more than one job.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from gpuq.core.caps import Caps
from gpuq.core.dependencies import Verdict, parents, singleton_key, verdict
from gpuq.core.model import (
    AttemptId,
    BlobId,
    Change,
    GpuUuid,
    Job,
    JobId,
    JobSpec,
    Node,
    NodeName,
    Resources,
    Room,
    Setting,
)
from gpuq.core.speeds import Runs, speed_factors
from gpuq.core.states import JobState as S

HISTORY_NAMES = 10_000  # names whose run times are kept
HISTORY_LENGTH = 20  # run times kept per (user, name) and per (user, command)
COMMAND_RUNS = 3  # from which a command has a history of its own, beside that of its name
GENERAL_USERS = 1_000  # users whose latest run times are kept, whatever ran
GENERAL_LENGTH = 64
EVERYONE = ""  # the key of all users together


class Shape(NamedTuple):
    """All that the planner looks at in a waiting job, except its age and id."""

    user: str
    name: str  # "" for one without history: it tells nothing, and such jobs share a queue
    resources: Resources
    time_limit_s: float | None
    priority: int
    nice: int
    preemptible: bool
    not_before_at: float | None
    array: JobId | None  # only for arrays with a limit on tasks at once
    deadline_at: float | None = None
    command: str = ""  # the fingerprint of one with a history of its own, else "" as for name
    kept_s: float = 0.0  # work that is done already, in seconds on the reference GPU


class Stray(NamedTuple):
    """A living attempt that no job of this state owns; it keeps its GPUs."""

    node: NodeName
    job: JobId | None
    gpus: tuple[GpuUuid, ...]


class ClusterState:
    """Records and indexes. Everything outside this module reads it and changes nothing."""

    def __init__(self) -> None:
        # records
        self.jobs: dict[JobId, Job] = {}
        self.nodes: dict[NodeName, Node] = {}
        self.strays: dict[AttemptId, Stray] = {}
        self.given_up: dict[AttemptId, NodeName] = {}  # declared dead; to be ended should they turn up again
        self.keys: dict[str, JobId] = {}
        self.history: dict[tuple[str, str], tuple[float, ...]] = {}  # (user, name): run times [A100 s]
        self.commands: dict[tuple[str, str], tuple[float, ...]] = {}  # (user, fingerprint): the same
        self.general: dict[str, tuple[float, ...]] = {}  # user, or EVERYONE: the same
        self.type_runs: dict[tuple[str, str], dict[str, Runs]] = {}  # (user, name): by GPU type (core.speeds)
        self.rooms: dict[JobId, Room] = {}  # pending jobs for which others were told to end; they are in no queue
        self.usage: dict[str, tuple[tuple[int, float], ...]] = {}  # by user: GPU-seconds by quarter day (core.accounts)
        self.settings: dict[str, Setting] = {}  # by key: what people set over gpuq.toml
        self.setting_changes: tuple[Change, ...] = ()  # the newest, oldest first
        self.caps = Caps()  # of gpuq.toml: the shell sets it at its start, and it is in no event or snapshot
        self.next_id = 1
        self.next_order = 1
        # indexes
        self.attempts: dict[AttemptId, JobId] = {}  # attempts that hold resources
        self.owners: dict[GpuUuid, AttemptId] = {}
        self.tasks: dict[JobId, tuple[JobId, ...]] = {}  # array id: its tasks
        self.array_active: dict[JobId, int] = {}
        self.waiting: dict[Shape, dict[JobId, None]] = {}  # eligible pending jobs, oldest first
        self.unmet: set[JobId] = set()  # pending jobs whose dependencies do not hold yet
        self.children: dict[JobId, set[JobId]] = {}  # job or array id: pending jobs that depend on it
        self.ended: dict[JobId, None] = {}  # final jobs, in the order they ended
        self.used_cpus: dict[NodeName, int] = {}
        self.used_memory_mib: dict[NodeName, int] = {}
        self.used_gpus: dict[str, int] = {}  # by user
        self._factors: dict[tuple[str, str], dict[str, float]] = {}  # of type_runs

    def members(self, id_: JobId) -> tuple[JobId, ...]:
        """The job ids behind an id: an array's tasks, or the job itself; empty when unknown."""
        if id_ in self.jobs:
            return (id_,)
        return self.tasks.get(id_, ())

    def active(self) -> Iterator[Job]:
        """Jobs whose attempt holds resources."""
        return (self.jobs[id_] for id_ in self.attempts.values())

    def shape_of(self, job: Job) -> Shape:
        """The queue a pending job belongs to."""
        spec, user = job.spec, job.owner.name
        name = spec.name if (user, spec.name) in self.history else ""
        limited = job.array if spec.array_limit else None
        return Shape(
            user, name, spec.resources, spec.time_limit_s, spec.priority, spec.nice,
            spec.preemptible, job.not_before_at, limited, spec.deadline_at, self.known_command(user, spec),
            job.kept_s,
        )  # fmt: skip

    def known_command(self, user: str, spec: JobSpec) -> str:
        """The fingerprint of what a spec runs, if this owner ran it often enough; else ""."""
        if not self.commands:
            return ""
        command = fingerprint(spec)
        return command if len(self.commands.get((user, command), ())) >= COMMAND_RUNS else ""

    def waiting_count(self) -> int:
        """Number of eligible pending jobs."""
        return sum(len(queue) for queue in self.waiting.values())

    # --- upkeep of the indexes ---------------------------------------------------------------------------

    def put(self, job: Job) -> None:
        """Store a job's new record and bring every index in line."""
        old = self.jobs.get(job.id)
        if old is not None:
            self._unindex(old)
        self.jobs[job.id] = job
        if self.rooms and (job.state is not S.PENDING or job.held is not None):
            self.rooms.pop(job.id, None)
        self.index(job)

    def index(self, job: Job) -> None:
        """Enter a stored job into every index; for `put`, snapshots and check_invariants only."""
        if job.state is S.PENDING:
            self._queue(job)
        elif job.state.is_final:
            self.ended[job.id] = None
        else:
            assert job.attempt is not None
            self.attempts[job.attempt.id] = job.id
            for uuid in job.attempt.gpus:
                self.owners[uuid] = job.attempt.id
            self._count(job, 1)

    def _unindex(self, job: Job) -> None:
        if job.state is S.PENDING:
            self._unqueue(job)
        elif job.state.is_final:
            self.ended.pop(job.id, None)
        else:
            assert job.attempt is not None
            self.attempts.pop(job.attempt.id, None)
            self.free(job.attempt.id, job.attempt.gpus)
            self._count(job, -1)

    def add_stray(self, attempt: AttemptId, stray: Stray) -> None:
        """Keep GPUs for an attempt without a job; a GPU that has an owner stays with it for now."""
        self.strays[attempt] = stray
        for uuid in stray.gpus:
            self.owners.setdefault(uuid, attempt)

    def free(self, attempt: AttemptId, gpus: tuple[GpuUuid, ...]) -> None:
        """Take GPUs away from an attempt; a stray that lives on one of them is its next owner."""
        for uuid in gpus:
            if self.owners.get(uuid) == attempt:
                del self.owners[uuid]
                for other, stray in self.strays.items():
                    if uuid in stray.gpus:
                        self.owners.setdefault(uuid, other)

    def _count(self, job: Job, sign: int) -> None:
        assert job.attempt is not None
        node, asked = job.attempt.node, job.spec.resources
        self.used_cpus[node] = self.used_cpus.get(node, 0) + sign * asked.cpus
        self.used_memory_mib[node] = self.used_memory_mib.get(node, 0) + sign * (asked.memory_mib or 0)
        user = job.owner.name
        self.used_gpus[user] = self.used_gpus.get(user, 0) + sign * len(job.attempt.gpus)
        if job.spec.array_limit:
            self.array_active[job.array] = self.array_active.get(job.array, 0) + sign

    def _queue(self, job: Job) -> None:
        for parent in parents(job):
            self.children.setdefault(parent, set()).add(job.id)
        if job.held is not None or job.id in self.rooms:
            return
        if job.spec.dependencies.terms and verdict(self, job) is not Verdict.MET:
            self.unmet.add(job.id)
            return
        queue = self.waiting.setdefault(self.shape_of(job), {})
        last = next(reversed(queue), None)
        queue[job.id] = None
        if last is not None and self.jobs[last].order > job.order:
            ordered = sorted(queue, key=lambda id_: self.jobs[id_].order)
            queue.clear()
            queue.update(dict.fromkeys(ordered))

    def _unqueue(self, job: Job) -> None:
        for parent in parents(job):
            offspring = self.children.get(parent)
            if offspring is not None:
                offspring.discard(job.id)
                if not offspring:
                    del self.children[parent]
        self.unmet.discard(job.id)
        shape = self.shape_of(job)
        queue = self.waiting.get(shape)
        if queue is not None:
            queue.pop(job.id, None)
            if not queue:
                del self.waiting[shape]

    def kept_for(self, uuid: GpuUuid) -> JobId | None:
        """The job for which a GPU is kept, whoever holds it now."""
        return next((id_ for id_, room in self.rooms.items() if uuid in room.placement.gpus), None)

    def requeue_children(self, job: Job) -> None:
        """Look again at the dependencies of those that wait for this job (or for its name)."""
        for parent in {job.id, job.array, singleton_key(job)}:
            for child in tuple(self.children.get(parent, ())):
                record = self.jobs[child]
                self._unqueue(record)
                self._queue(record)

    def remember_run(self, job: Job, run_s: float) -> None:
        """Keep a completed run time, as it would have been on the reference GPU by what is known of such jobs now.

        Of a job that was stopped and went on, the whole counts as one run, but nothing is said of the GPU type.
        """
        user = job.owner.name
        key = (user, job.spec.name)
        if not job.kept_s:
            self._remember_type(key, job, run_s * self.attempt_speed(job))
        reference_s = run_s * self.job_speed(job) + job.kept_s
        self.set_history(key, (*self.history.get(key, ())[-HISTORY_LENGTH + 1 :], reference_s))
        command = (user, fingerprint(job.spec))
        self.set_command(command, (*self.commands.get(command, ())[-HISTORY_LENGTH + 1 :], reference_s))
        for group in (user, EVERYONE):
            runs = (*self.general.pop(group, ())[-GENERAL_LENGTH + 1 :], reference_s)
            if len(self.general) >= GENERAL_USERS:
                del self.general[next(iter(self.general))]
            self.general[group] = runs

    def _remember_type(self, key: tuple[str, str], job: Job, reference_s: float) -> None:
        gpu_type = self.attempt_type(job)
        if gpu_type and reference_s > 0:
            known = self.type_runs.pop(key, {})
            if len(self.type_runs) >= HISTORY_NAMES:
                forgotten = next(iter(self.type_runs))
                del self.type_runs[forgotten]
                self._factors.pop(forgotten, None)
            self.set_type_runs(key, {**known, gpu_type: known.get(gpu_type, Runs()).plus(reference_s)})

    def set_type_runs(self, key: tuple[str, str], by_type: dict[str, Runs]) -> None:
        """Keep what an owner and name did by GPU type, and the factors that follow."""
        self.type_runs[key] = by_type
        self._factors[key] = speed_factors(by_type)

    def set_history(self, key: tuple[str, str], runs: tuple[float, ...]) -> None:
        """Keep the run times of an owner and name; waiting jobs of a name that is new here get queues of their own."""
        if self.history.pop(key, None) is not None:
            self.history[key] = runs  # now the last: the name that ran longest ago is the first to be forgotten
            return
        forgotten = [next(iter(self.history))] if len(self.history) >= HISTORY_NAMES else []
        moved = [each for name in (key, *forgotten) for each in self._waiting_named(name)]
        for each in moved:
            self._unqueue(each)
        self.history[key] = runs
        for name in forgotten:
            del self.history[name]
        for each in moved:
            self._queue(each)

    def set_command(self, key: tuple[str, str], runs: tuple[float, ...]) -> None:
        """The same for an owner and a fingerprint; waiting jobs get queues of their own from COMMAND_RUNS runs on."""
        before = self.commands.get(key, ())
        forgotten = [next(iter(self.commands))] if not before and len(self.commands) >= HISTORY_NAMES else []
        changed = [each for each in forgotten if len(self.commands[each]) >= COMMAND_RUNS]
        if (len(before) >= COMMAND_RUNS) != (len(runs) >= COMMAND_RUNS):
            changed.append(key)
        moved = [each for command in changed for each in self._waiting_command(command)]
        for each in moved:
            self._unqueue(each)
        self.commands.pop(key, None)
        self.commands[key] = runs
        for command in forgotten:
            del self.commands[command]
        for each in moved:
            self._queue(each)

    def _waiting_named(self, key: tuple[str, str]) -> list[Job]:
        """The jobs of this owner and name that are in a queue."""
        user, name = key
        queues = (queue for shape, queue in self.waiting.items() if shape.user == user and shape.name in ("", name))
        jobs = (self.jobs[id_] for queue in queues for id_ in queue)
        return [job for job in jobs if job.spec.name == name]

    def _waiting_command(self, key: tuple[str, str]) -> list[Job]:
        """The jobs of this owner and fingerprint that are in a queue."""
        user, command = key
        shapes = [shape for shape in self.waiting if shape.user == user and shape.command in ("", command)]
        jobs = (self.jobs[id_] for shape in shapes for id_ in self.waiting[shape])
        return [job for job in jobs if fingerprint(job.spec) == command]

    def attempt_type(self, job: Job) -> str:
        """The type of the GPUs a job runs on (of the first of them); "" without GPUs."""
        attempt = job.attempt
        return self.type_of(attempt.node, attempt.gpus[0]) if attempt is not None and attempt.gpus else ""

    def type_of(self, name: NodeName, uuid: GpuUuid) -> str:
        """The type of a GPU; "" for one that is not known any more."""
        node = self.nodes.get(name)
        return next((gpu.type for gpu in node.gpus if gpu.uuid == uuid), "") if node else ""

    def factors(self, user: str, name: str) -> dict[str, float]:
        """By GPU type, how jobs of this owner and name differ from the speed prior; {} while nothing is known."""
        return self._factors.get((user, name), {})

    def job_speed(self, job: Job) -> float:
        """Speed of the GPUs a job runs on, as learnt for such jobs."""
        factors = self.factors(job.owner.name, job.spec.name)
        return self.attempt_speed(job) * (factors.get(self.attempt_type(job), 1.0) if factors else 1.0)

    def attempt_speed(self, job: Job) -> float:
        """Speed prior of the GPUs a job runs on: the slowest of them; 1 without GPUs."""
        return self.speed_of(job.attempt.node, job.attempt.gpus) if job.attempt is not None else 1.0

    def speed_of(self, name: NodeName, gpus: tuple[GpuUuid, ...]) -> float:
        """Speed prior of these GPUs of a node together: the slowest of them; 1 without GPUs."""
        node = self.nodes.get(name) if gpus else None
        return min((gpu.speed for gpu in node.gpus if gpu.uuid in gpus), default=1.0) if node else 1.0


def fingerprint(spec: JobSpec) -> str:
    """What a spec runs, as a short hash: program and arguments as written, script, and how many GPUs."""
    return _fingerprint(spec.argv, spec.script, spec.resources.gpus)


@lru_cache(maxsize=16_384)
def _fingerprint(argv: tuple[str, ...], script: BlobId | None, gpus: int) -> str:
    whole = "\0".join((*argv, "", script or "", str(gpus)))
    return blake2b(whole.encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()
