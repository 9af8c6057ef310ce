"""The state of the cluster: records, and the indexes that follow from them. Imports memory, model, states.

core.apply is the only module that changes it; decisions are made in core.decide. core.invariants computes every index
anew from the records and raises when the two differ, or when a GPU has two owners.

One thing to know: pending jobs of the same Shape are interchangeable for the planner except for their age,
so they are kept in one queue, and a queue of ten thousand equal jobs costs the planner no more than one job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from gpuq.core.caps import Caps
from gpuq.core.dependencies import Verdict, parents, singleton_key, verdict
from gpuq.core.memory import Memory, fingerprint, longer
from gpuq.core.model import (
    AttemptId,
    Change,
    GpuUuid,
    Job,
    JobId,
    Node,
    NodeName,
    Resources,
    Room,
    Setting,
    Used,
)
from gpuq.core.states import JobState as S


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
        self.memory = Memory()  # what ended runs have taught
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
        name = self.memory.known_name(user, spec.name)
        limited = job.array if spec.array_limit else None
        return Shape(
            user, name, spec.resources, spec.time_limit_s, spec.priority, spec.nice,
            spec.preemptible, job.not_before_at, limited, spec.deadline_at, self.memory.known_command(user, spec),
            job.kept_s,
        )  # fmt: skip

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
        memory, user = self.memory, job.owner.name
        name, command = (user, job.spec.name), (user, fingerprint(job.spec))
        if not job.kept_s:
            memory.add_type_run(name, self.attempt_type(job), run_s * self.attempt_speed(job))
        reference_s = run_s * self.job_speed(job) + job.kept_s
        self.set_history(name, longer(memory.history.get(name, ()), reference_s))
        self.set_command(command, longer(memory.commands.get(command, ()), reference_s))
        memory.add_general(user, reference_s)

    def remember_use(self, job: Job, used: Used) -> None:
        """Keep what a completed run used of its GPUs."""
        attempt, gpu_type = job.attempt, self.attempt_type(job)
        if attempt is None or not gpu_type:
            return
        gpus = self.nodes[attempt.node].gpus
        limit_w = next((gpu.power_limit_w for gpu in gpus if gpu.uuid == attempt.gpus[0]), None)
        self.memory.add_use((job.owner.name, job.spec.name), used, gpu_type, limit_w)

    def set_history(self, key: tuple[str, str], runs_s: tuple[float, ...]) -> None:
        """Keep the run times of an owner and name; waiting jobs of a name that is new here get queues of their own."""
        with self._moved(each for name in self.memory.names_moved(key) for each in self._waiting_named(name)):
            self.memory.set_history(key, runs_s)

    def set_command(self, key: tuple[str, str], runs_s: tuple[float, ...]) -> None:
        """The same for an owner and a fingerprint; waiting jobs get queues of their own from COMMAND_RUNS runs on."""
        moved = self.memory.commands_moved(key, runs_s)
        with self._moved(each for command in moved for each in self._waiting_command(command)):
            self.memory.set_command(key, runs_s)

    @contextmanager
    def _moved(self, jobs: Iterable[Job]) -> Iterator[None]:
        """Take waiting jobs out of their queues, and back into those they belong to afterwards."""
        moved = list(jobs)
        for job in moved:
            self._unqueue(job)
        yield
        for job in moved:
            self._queue(job)

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

    def job_speed(self, job: Job) -> float:
        """Speed of the GPUs a job runs on, as learnt for such jobs."""
        return self.speed_for(job, job.attempt.node, job.attempt.gpus) if job.attempt is not None else 1.0

    def speed_for(self, job: Job, name: NodeName, gpus: tuple[GpuUuid, ...]) -> float:
        """Speed of these GPUs of a node for a job, as learnt for such jobs."""
        factors = self.memory.factors(job.owner.name, job.spec.name) if gpus else {}
        factor = factors.get(self.type_of(name, gpus[0]), 1.0) if factors else 1.0
        return self.speed_of(name, gpus) * factor

    def attempt_speed(self, job: Job) -> float:
        """Speed prior of the GPUs a job runs on: the slowest of them; 1 without GPUs."""
        return self.speed_of(job.attempt.node, job.attempt.gpus) if job.attempt is not None else 1.0

    def speed_of(self, name: NodeName, gpus: tuple[GpuUuid, ...]) -> float:
        """Speed prior of these GPUs of a node together: the slowest of them; 1 without GPUs."""
        node = self.nodes.get(name) if gpus else None
        return min((gpu.speed for gpu in node.gpus if gpu.uuid in gpus), default=1.0) if node else 1.0
