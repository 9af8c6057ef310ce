"""gpuq's planner on the simulated cluster, when nothing may be stopped. Imports core's planner, calibration and world.

At every moment at which a job waits and a GPU is idle the world is put as a core.problem.Problem, the very question
that the daemon asks, and what the plan starts now is started. Run times are told as the effective time left of
learn.calibration, for jobs that wait and for those that run.

One thing to know: GPUs inside a node have no identity in the world. A node's slots are filled in order, so which of
them a running job holds may change between two moments; how many are free, and when, does not.
"""

from __future__ import annotations

from math import inf
from typing import Final

from gpuq.core.estimate import Prediction
from gpuq.core.impact import Weights
from gpuq.core.model import Gpu, GpuUuid, JobId, NodeName, Resources, Stamp
from gpuq.core.plan import Planner, Start
from gpuq.core.problem import Machine, Problem, Queue, Site, Slot, Waiting
from gpuq.core.state import Shape
from gpuq.learn.calibration import Calibration
from gpuq.sim.cluster import Cluster, Placement
from gpuq.sim.world import SimJob, World

WINDOW: Final = 128  # jobs that get an estimate at each decision
_NOW: Final = Stamp(wall_s=0.0, steady_s=0.0)


class Planned:
    """The policy around any Planner."""

    def __init__(self, name: str, planner: Planner, weights: Weights | None = None) -> None:
        self.name = name
        self.planner = planner
        self._weights = weights or Weights()
        self._calibration = Calibration()
        self._grid: _Grid | None = None

    def wake_s(self, world: World) -> float:
        """At arrivals and ends only."""
        return inf

    def schedule(self, world: World) -> None:
        """Plan, and start what starts now."""
        for job in world.just_ended:
            self._calibration.add(job.estimate_s, job.done_s)
        if not world.waiting or not any(world.board.left):
            return
        plan = self.planner.plan(self.problem(world))
        for start in plan.starts:
            job = world.waiting[int(start.job)]
            placement = self._placement(world, job, start)
            if placement is not None:
                world.start(job, placement)

    def problem(self, world: World) -> Problem:
        """The world as the planner sees it; times from now."""
        grid = self._grid = self._grid or _Grid(world.cluster)
        for job in world.running.values():
            job.advance(world.now_s)
        queues = tuple(self._queue(grid, job, world.now_s) for job in world.waiting.values())
        return Problem(
            stamp=_NOW,
            weights=self._weights,
            window=WINDOW,
            machines=grid.machines,
            slots=self._slots(grid, world),
            queues=queues,
            waiting=len(queues),
        )

    def _left_s(self, job: SimJob) -> float:
        return self._calibration.effective_left_s(job.estimate_s, job.done_s)

    def _slots(self, grid: _Grid, world: World) -> tuple[Slot, ...]:
        free_at_s = [0.0] * len(grid.gpus)
        used = [0] * len(grid.slots_of)
        for job in world.running.values():
            end_s = max(1.0, self._left_s(job) / job.speed + job.overhead_s)
            for node, count in job.placement or ():
                for slot in grid.slots_of[node][used[node] : used[node] + count]:
                    free_at_s[slot] = end_s
                used[node] += count
        return tuple(
            Slot(node, gpu, at_s, True) for node, gpu, at_s in zip(grid.nodes, grid.gpus, free_at_s, strict=True)
        )

    def _queue(self, grid: _Grid, job: SimJob, now_s: float) -> Queue:
        left_s = self._left_s(job)
        best_run_s = left_s / max(job.speeds)
        age = self._weights.age
        return Queue(
            shape=Shape(job.user, job.id, Resources(gpus=job.gpus), None, 0, 0, False, None, None, None),
            heads=(Waiting(JobId(str(job.order)), now_s - job.submit_s, job.order),),
            count=1,
            sites=grid.sites(job.gpus, job.speeds),
            prediction=Prediction(run_s=left_s, low_s=left_s, high_s=left_s, basis="the trace", informed=True),
            standing=1.0,
            best_run_s=best_run_s,
            age_s=max(best_run_s, self._weights.age_floor_s) / age if age else inf,
            release_s=0.0,
        )

    def _placement(self, world: World, job: SimJob, start: Start) -> Placement | None:
        """Where the world has it; None when a job over several nodes finds them not free as the plan saw them."""
        assert self._grid is not None
        nodes = [self._grid.node_of[uuid] for uuid in start.gpus]
        placement = tuple((node, nodes.count(node)) for node in sorted(set(nodes)))
        return placement if world.board.fits(placement) else None


class _Grid:
    """What never changes of a cluster, in the planner's records."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.machines = tuple(Machine(NodeName(f"n{node}"), 0, 0, (), 0) for node in range(len(cluster.node_gpus)))
        self.gpus: list[Gpu] = []
        self.nodes: list[int] = []  # of each GPU
        self.slots_of: list[list[int]] = []
        self.node_of: dict[GpuUuid, int] = {}
        self._sites: dict[tuple[int, tuple[float, ...]], tuple[Site, ...]] = {}
        for node, gpus in enumerate(cluster.node_gpus):
            self.slots_of.append(list(range(len(self.gpus), len(self.gpus) + gpus)))
            for index in range(gpus):
                uuid = GpuUuid(f"n{node}g{index}")
                type_ = cluster.types[cluster.node_types[node]]
                self.gpus.append(Gpu(uuid=uuid, index=index, type=type_, name=type_))
                self.nodes.append(node)
                self.node_of[uuid] = node

    def sites(self, gpus: int, speeds: tuple[float, ...]) -> tuple[Site, ...]:
        """Fastest first; whole nodes together for a job that is larger than any."""
        known = self._sites.get((gpus, speeds))
        if known is None:
            found = [site for type_, speed in enumerate(speeds) if speed > 0 for site in self._of(type_, gpus, speed)]
            known = self._sites[gpus, speeds] = tuple(sorted(found, key=lambda site: (-site.speed, site.machine)))
        return known

    def _of(self, type_: int, gpus: int, speed: float) -> list[Site]:
        name, sizes = self.cluster.types[type_], self.cluster.node_gpus
        nodes = [node for node, other in enumerate(self.cluster.node_types) if other == type_]
        wide = [node for node in nodes if sizes[node] >= gpus]
        if wide:
            return [Site(node, name, tuple(self.slots_of[node]), speed, 0) for node in wide]
        spans = tuple(tuple(self.slots_of[node]) for node in nodes)
        return [Site(nodes[0], name, tuple(slot for slots in spans for slot in slots), speed, 0, spans)]

