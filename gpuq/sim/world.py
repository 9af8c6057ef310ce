"""The virtual world: jobs arrive, run, are stopped and end on a virtual clock. Imports cluster, sharing, trace.

Work is measured in seconds on the reference GPU. A running job does `speed` of it per second; one that was stopped
first pays the restart cost, holding its GPUs without progress. A policy is called after all that happens at one
moment, and changes what runs through `start` and `stop`.

One thing to know: policies see a job through SimJob's estimates (`left_s`, `waited_s`, `attained_s`), never through its
true run time, which only the world reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple, Protocol

from gpuq.learn.interference import prior_speed
from gpuq.sim.cluster import Board, Cluster, Placement
from gpuq.sim.trace import TraceJob

_SLACK_S = 1e-6


class SimJob:
    """One job and how far it is."""

    __slots__ = (
        "attained_s", "done_s", "end_s", "estimate_s", "first_start_s", "gpus", "id", "limit_s", "model", "name",
        "order", "overhead_s", "partner", "placement", "preemptible", "ran_since_s", "restarts", "span_since_s",
        "speed", "speeds", "stopped_s", "submit_s", "type", "updated_s", "user", "utilisation", "version", "work_s",
    )  # fmt: skip

    def __init__(
        self, job: TraceJob, order: int, estimate_s: float, limit_s: float, speeds: tuple[float, ...]
    ) -> None:
        self.id = job.id
        self.user = job.user
        self.model = job.model
        self.name = job.name
        self.order = order
        self.submit_s = job.submit_s
        self.gpus = job.gpus
        self.preemptible = job.preemptible  # it may be stopped once it runs
        self.work_s = job.duration_s  # truth: for the world only
        self.estimate_s = estimate_s  # predicted work
        self.limit_s = limit_s  # what its owner asked for
        self.speeds = speeds  # per GPU type of the cluster; 0: it cannot run there
        self.done_s = 0.0  # work done up to updated_s
        self.attained_s = 0.0  # time on GPUs up to updated_s
        self.overhead_s = 0.0  # restart cost still to pay, as of updated_s
        self.updated_s = 0.0
        self.speed = 0.0
        self.type = -1
        self.placement: Placement | None = None
        self.partner: SimJob | None = None  # on the same GPUs
        self.utilisation = 1.0  # of its GPUs when alone, 0 to 1
        self.ran_since_s = 0.0  # start of this run
        self.span_since_s = 0.0  # since when it runs with this partner, or alone
        self.stopped_s = job.submit_s  # since when it waits
        self.first_start_s: float | None = None
        self.end_s: float | None = None
        self.restarts = 0
        self.version = 0  # of its place in the heap of ends

    @property
    def best_run_s(self) -> float:
        """d*: its run time on the fastest GPUs, without waiting."""
        return self.work_s / max(self.speeds)

    @property
    def is_held(self) -> bool:
        """It runs, and nobody may stop or move it."""
        return self.placement is not None and not self.preemptible

    def left_s(self) -> float:
        """Predicted work left; a prediction that was outlived doubles until it is not."""
        estimate_s = self.estimate_s
        while estimate_s <= self.done_s:
            estimate_s *= 2.0
        return estimate_s - self.done_s

    def advance(self, now_s: float) -> None:
        """Bring work done and time attained up to date."""
        passed_s = now_s - self.updated_s
        if passed_s <= 0.0:
            return
        self.updated_s = now_s
        if self.placement is None:
            return
        self.attained_s += passed_s
        paid_s = min(self.overhead_s, passed_s)
        self.overhead_s -= paid_s
        self.done_s += (passed_s - paid_s) * self.speed


def held_first(ranked: Iterable[SimJob]) -> list[SimJob]:
    """The same order behind the jobs that nobody may stop: others have the GPUs that these leave."""
    return sorted(ranked, key=lambda job: not job.is_held)


class Run(NamedTuple):
    """One stay of a job on GPUs, alone or with one partner, for drawings and proofs."""

    job: str
    placement: Placement
    start_s: float
    end_s: float
    partner: str = ""


class Sleep(NamedTuple):
    """Machines without jobs fall asleep, and the next job there first waits for them on its GPUs."""

    after_s: float = 600.0
    wake_s: float = 180.0


class Policy(Protocol):
    """What decides. It keeps its own state between calls when it must."""

    name: str

    def schedule(self, world: World) -> None:
        """Start and stop jobs at this moment."""

    def wake_s(self, world: World) -> float:
        """When it wants to be called though nothing arrives or ends; inf: never."""


class Learner(Protocol):
    """What predicts run times from jobs that have ended."""

    def ended(self, job: SimJob) -> None:
        """Learn from it."""

    def estimate_s(self, job: SimJob) -> float:
        """The predicted work of a job that is submitted now [s on the reference GPU]."""


class World:
    """State of a simulation."""

    def __init__(
        self,
        cluster: Cluster,
        jobs: Sequence[SimJob],
        restart_s: float = 60.0,
        keep_runs: bool = False,
        learner: Learner | None = None,
        sleep: Sleep | None = None,
        sharing: bool = False,
    ) -> None:
        self.cluster = cluster
        self.board = Board(cluster)
        self.now_s = 0.0
        self.restart_s = restart_s
        self.sharing = sharing  # whether two jobs may share GPUs
        self.waiting: dict[int, SimJob] = {}  # by order of submission
        self.running: dict[int, SimJob] = {}
        self.ended: list[SimJob] = []
        self.runs: list[Run] | None = [] if keep_runs else None
        self.just_ended: list[SimJob] = []  # at this moment, for policies that learn
        self.restarts = 0
        self._jobs = jobs
        self._learner = learner
        self._sleep = sleep
        self._idle_since_s = [0.0] * len(cluster.node_gpus)  # of machines without jobs; kept only where they sleep
        self._next = 0
        self._ends: list[tuple[float, int, int, SimJob]] = []

    # --- what policies do ---------------------------------------------------------------------------------

    def start(self, job: SimJob, placement: Placement, partner: SimJob | None = None) -> None:
        """Run a waiting job on free GPUs, or on all GPUs of a running partner."""
        assert job.order in self.waiting, f"job {job.id} does not wait"
        assert partner is None or (self.sharing and partner.placement == placement and partner.partner is None)
        assert partner is not None or self.board.fits(placement), f"job {job.id} was given GPUs that are not free"
        assert sum(count for _, count in placement) == job.gpus, f"job {job.id} was given the wrong number of GPUs"
        del self.waiting[job.order]
        self.running[job.order] = job
        sleeps = self._sleep is not None and self._sleeps(placement, self._sleep.after_s)
        if partner is None:
            self.board.take(placement)
        job.updated_s = job.ran_since_s = job.span_since_s = self.now_s
        job.placement = placement
        job.type = self.cluster.node_types[placement[0][0]]
        job.speed = job.speeds[job.type]
        assert job.speed > 0, f"job {job.id} cannot run on {self.cluster.types[job.type]}"
        if job.first_start_s is None:
            job.first_start_s = self.now_s
        else:
            job.restarts += 1
            self.restarts += 1
            job.overhead_s = self.restart_s
        if self._sleep is not None and sleeps:
            job.overhead_s += self._sleep.wake_s
        if partner is None:
            self._expect_end(job)
        else:
            self._pair(job, partner)

    def stop(self, job: SimJob) -> None:
        """Stop a running job; it waits again with its work kept. AssertionError: it does not run, or is fixed."""
        assert job.placement is not None, f"job {job.id} does not run"
        assert job.preemptible, f"job {job.id} may not be stopped"
        job.advance(self.now_s)
        self._leave(job)
        job.stopped_s = self.now_s
        self.waiting[job.order] = job

    # --- the clock ----------------------------------------------------------------------------------------

    def run(self, policy: Policy, on_progress: Callable[[int], None] | None = None) -> None:
        """Until every job has ended. Raises AssertionError when the policy never lets the rest run."""
        while self._step(policy):
            if on_progress is not None and self.just_ended:
                on_progress(len(self.ended))
        assert not self.waiting, f"{policy.name} left {len(self.waiting)} jobs waiting on an idle cluster"

    def _step(self, policy: Policy) -> bool:
        arrival_s = self._jobs[self._next].submit_s if self._next < len(self._jobs) else inf
        while self._ends and self._ends[0][1] != self._ends[0][3].version:
            heappop(self._ends)
        end_s = self._ends[0][0] if self._ends else inf
        wake_s = policy.wake_s(self) if self.running or self.waiting else inf
        moment_s = min(arrival_s, end_s, max(wake_s, self.now_s + _SLACK_S))
        if moment_s == inf:
            return False
        self.now_s = moment_s
        self.just_ended = []
        first = self._next
        while self._next < len(self._jobs) and self._jobs[self._next].submit_s <= moment_s:
            job = self._jobs[self._next]
            self.waiting[job.order] = job
            self._next += 1
        while self._ends and self._ends[0][0] <= moment_s + _SLACK_S:
            _, version, _, job = heappop(self._ends)
            if version == job.version:
                self._end(job)
        if self._learner is not None:
            self._predict(self._learner, self._jobs[first : self._next])
        policy.schedule(self)
        return True

    def _pair(self, job: SimJob, host: SimJob) -> None:
        self._close_span(host)
        job.partner, host.partner = host, job
        speed = prior_speed(job.utilisation, host.utilisation)
        for each in (job, host):
            each.advance(self.now_s)
            each.speed = each.speeds[each.type] * speed
            self._expect_end(each)

    def _part(self, job: SimJob, other: SimJob) -> None:
        self._close_span(other)
        job.partner = other.partner = None
        other.advance(self.now_s)
        other.speed = other.speeds[other.type]
        self._expect_end(other)

    def _close_span(self, job: SimJob) -> None:
        if self.runs is not None and job.placement is not None and job.span_since_s < self.now_s:
            partner = "" if job.partner is None else job.partner.id
            self.runs.append(Run(job.id, job.placement, job.span_since_s, self.now_s, partner))
        job.span_since_s = self.now_s

    def _sleeps(self, placement: Placement, after_s: float) -> bool:
        """Whether a machine of these sleeps now; its GPUs are not taken yet."""
        sizes, free = self.cluster.node_gpus, self.board.free
        return any(
            free[node] == sizes[node] and self.now_s - self._idle_since_s[node] > after_s for node, _ in placement
        )

    def _predict(self, learner: Learner, arrived: Sequence[SimJob]) -> None:
        for job in self.just_ended:
            learner.ended(job)
        for job in arrived:
            job.estimate_s = learner.estimate_s(job)

    def _expect_end(self, job: SimJob) -> None:
        job.version += 1
        end_s = job.updated_s + job.overhead_s + (job.work_s - job.done_s) / job.speed
        heappush(self._ends, (end_s, job.version, job.order, job))

    def _end(self, job: SimJob) -> None:
        job.advance(self.now_s)
        self._leave(job)
        job.done_s = job.work_s
        job.end_s = self.now_s
        self.ended.append(job)
        self.just_ended.append(job)

    def _leave(self, job: SimJob) -> None:
        assert job.placement is not None
        if self.runs is not None:
            partner = "" if job.partner is None else job.partner.id
            self.runs.append(Run(job.id, job.placement, job.span_since_s, self.now_s, partner))
        if job.partner is not None:
            self._part(job, job.partner)
        else:
            self.board.give(job.placement)
            if self._sleep is not None:
                for node, _ in job.placement:
                    self._idle_since_s[node] = self.now_s
        job.placement = None
        job.version += 1
        del self.running[job.order]
