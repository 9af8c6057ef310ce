"""The daemon's own decisions on a simulated cluster: its state, its planner, its evictions. Imports the core and world.

Every arrival, start, stop and end becomes the request that the daemon would get, carried out by core.decide.step; what
starts is core.greedy's, who is stopped for whom is core.evictions'. Predictions are told as the history of a name that
each job has for itself, so they count as informed.

One thing to know: jobs may be stopped at any moment, yet are charged and weighed like others: their protected time is
over at once, but not zero, so they are not free time.
"""

from __future__ import annotations

from math import inf
from typing import Final

from gpuq.core import decide, greedy
from gpuq.core.evictions import find_eviction
from gpuq.core.impact import Weights
from gpuq.core.memory import Memory
from gpuq.core.model import (
    AttemptId,
    BlobId,
    Containment,
    Exit,
    Gpu,
    GpuUuid,
    JobId,
    JobSpec,
    Node,
    NodeName,
    Placement,
    Reach,
    Resources,
    Stamp,
    User,
)
from gpuq.core.requests import AttemptReport, Evict, NodeReady, Place, Submit
from gpuq.core.state import ClusterState
from gpuq.core.survey import snapshot
from gpuq.errors import UsageError, UserError
from gpuq.sim.cluster import Cluster
from gpuq.sim.world import SimJob, World

PROTECTED_S: Final = 1e-6


class _Memory(Memory):
    """What the daemon has learnt, with the speeds of a trace's jobs in place of learnt ones."""

    def __init__(self) -> None:
        super().__init__()
        self.speeds: dict[str, dict[str, float]] = {}

    def factors(self, user: str, name: str) -> dict[str, float]:
        """By GPU type, the speed of a job on it; the GPUs' own prior is 1."""
        return self.speeds.get(name, {})


class Live:
    """The policy; evicts: whether running jobs may be stopped."""

    def __init__(self, name: str, weights: Weights | None = None, evicts: bool = True) -> None:
        self.name = name
        self._weights = weights or Weights()
        self._evicts = evicts
        self._state = ClusterState()
        self._memory = self._state.memory = _Memory()
        self._ids: dict[int, JobId] = {}  # by order of submission
        self._orders: dict[JobId, int] = {}
        self._attempts = 0
        self._types: tuple[str, ...] = ()

    def wake_s(self, world: World) -> float:
        """At arrivals and ends only."""
        return inf

    def schedule(self, world: World) -> None:
        """Tell the daemon what happened, and do what it decides."""
        now = Stamp(wall_s=world.now_s, steady_s=world.now_s)
        if not self._state.nodes:
            self._introduce(world.cluster, now)
        for job in world.just_ended:
            self._report(self._ids.pop(job.order), "ended", now, Exit(code=0, run_s=world.now_s - job.ran_since_s))
        for job in world.waiting.values():
            if job.order not in self._ids:
                self._submit(job, now)
        for placement in greedy.dispatch(self._state, now, self._weights).placements():
            self._place(world, placement, now)
        while self._evicts and world.waiting and self._evict(world, now):
            pass

    def _introduce(self, cluster: Cluster, now: Stamp) -> None:
        self._types = cluster.types
        for number, gpus in enumerate(cluster.node_gpus):
            type_ = cluster.types[cluster.node_types[number]]
            found = tuple(
                Gpu(uuid=GpuUuid(f"n{number}g{index}"), index=index, type=type_, name=type_) for index in range(gpus)
            )
            node = Node(
                name=NodeName(f"n{number}"), hostname=f"n{number}", reach=Reach.UP, boot_id="b", spool_id="s",
                cpus=64, memory_mib=1 << 20, containment=Containment.CGROUP_V2, gpus=found,
            )  # fmt: skip
            decide.step(self._state, NodeReady(node=node), now)

    def _submit(self, job: SimJob, now: Stamp) -> None:
        name = str(job.order)
        self._state.set_history((job.user, name), (job.estimate_s,) * self._weights.informed_runs)
        self._memory.speeds[name] = dict(zip(self._types, job.speeds, strict=True))
        spec = JobSpec(
            name=name, argv=("job", name), cwd="/", environment=BlobId("none"), resources=Resources(gpus=job.gpus),
            preemptible=self._evicts and job.preemptible, min_runtime_s=PROTECTED_S,
        )  # fmt: skip
        id_ = JobId(str(self._state.next_id))
        try:
            decide.step(self._state, Submit(spec=spec, by=User(name=job.user, uid=1000)), now)
        except UserError:
            raise UsageError(
                f"Job {job.id} asks for {job.gpus} GPUs, and policy {self.name} keeps a job inside one machine.",
                "Give --nodes-of a larger number.",
            ) from None
        self._ids[job.order], self._orders[id_] = id_, job.order

    def _place(self, world: World, placement: Placement, now: Stamp) -> None:
        self._attempts += 1
        decide.step(self._state, Place(placement=placement, attempt=AttemptId(f"a{self._attempts}")), now)
        self._report(placement.job, "running", now)
        job = world.waiting[self._orders[placement.job]]
        world.start(job, ((int(placement.node[1:]), len(placement.gpus)),))

    def _evict(self, world: World, now: Stamp) -> bool:
        """Make room for one job, at once; False when nobody is to be stopped."""
        problem = snapshot(self._state, now, self._weights)
        found = find_eviction(self._state, problem, greedy.plan(problem))
        if found is None:
            return False
        decide.step(self._state, Evict(placement=found.placement, attempts=found.attempts, gain_s=found.gain_s), now)
        for attempt in found.attempts:
            id_ = self._state.attempts[attempt]
            job = world.running[self._orders[id_]]
            exit_ = Exit(signal=15, run_s=now.steady_s - job.ran_since_s)
            self._report(id_, "ended", now, exit_, reason="preempt")
            world.stop(job)
        self._place(world, found.placement, now)
        return True

    def _report(self, id_: JobId, phase: str, now: Stamp, exit_: Exit | None = None, reason: str | None = None) -> None:
        attempt = self._state.jobs[id_].attempt
        assert attempt is not None
        report = AttemptReport(node=attempt.node, attempt=attempt.id, phase=phase, exit=exit_, reason=reason)
        decide.step(self._state, report, now)
