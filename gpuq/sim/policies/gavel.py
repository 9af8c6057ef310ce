"""Gavel's policies (Narayanan et al., OSDI 2020): shares of GPU types, and rounds of them. Imports ranked, world.

    gavel_maxmin    max min_j  GPUs_j T_j(x) / T_j(equal split), by linear program
    gavel_makespan  max theta with T_j(x) >= theta x predicted work left, by linear program
    gavel_sjf       the progress of the job of least predicted run time left is maximised, then that of the next

x_jk is the share of time of job j on type k and T_j(x) the progress it makes by it. Every 360 s each type takes jobs by
x_jk / (fraction of its time that j has spent there), passing over what does not fit; GPUs then still free take whoever
waits. Between rounds free GPUs take waiting jobs, and nobody is stopped. A running job that may not be stopped gets its
GPUs in every round before the shares are looked at, and its time counts as received.

One thing to know: shares are found anew only when the set of jobs has changed. Jobs of equal size and speeds share one
row of the program; for the makespan their work left, rounded to 5%, must be equal too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, inf, log
from typing import Final

from gpuq.sim.cluster import Board, Placement
from gpuq.sim.policies.ranked import find_fastest
from gpuq.sim.world import SimJob, World

ROUND_S: Final = 360.0
_LEAST_SHARE: Final = 1e-6
_LEAST_FRACTION: Final = 1e-3  # of time received: what counts as none
Shares = dict[int, tuple[float, ...]]  # by job
Wish = tuple[SimJob, int]  # a job and a GPU type


def max_min(jobs: Sequence[SimJob], capacity: Sequence[int]) -> Shares:
    """Max-min fairness of progress against an equal split, weighted by size."""
    total = sum(capacity)

    def need(job: SimJob) -> float:
        return sum(speed * gpus for speed, gpus in zip(job.speeds, capacity, strict=True)) / total / job.gpus

    return _by_program(jobs, capacity, need)


def least_makespan(jobs: Sequence[SimJob], capacity: Sequence[int]) -> Shares:
    """All jobs done at the same, earliest, time."""
    return _by_program(jobs, capacity, lambda job: exp(round(log(max(job.left_s(), 1.0)) * 20) / 20))


def shortest_first(jobs: Sequence[SimJob], capacity: Sequence[int]) -> Shares:
    """One job after another takes the best of what is left: the program of a single job is solved by filling."""
    left = [float(gpus) for gpus in capacity]
    shares: Shares = {}
    for job in sorted(jobs, key=lambda job: (job.left_s() / max(job.speeds), job.order)):
        row, rest = [0.0] * len(left), 1.0
        for type_ in sorted(range(len(left)), key=lambda type_: -job.speeds[type_]):
            if job.speeds[type_] > 0:
                row[type_] = min(rest, left[type_] / job.gpus)
                rest -= row[type_]
                left[type_] -= row[type_] * job.gpus
        shares[job.order] = tuple(row)
    return shares


def _by_program(jobs: Sequence[SimJob], capacity: Sequence[int], need: Callable[[SimJob], float]) -> Shares:
    from gpuq.solve.linear import ShareGroup, max_min_shares

    alike: dict[tuple[int, tuple[float, ...], float], list[SimJob]] = {}
    for job in jobs:
        alike.setdefault((job.gpus, job.speeds, need(job)), []).append(job)
    groups = [ShareGroup(len(members), *key) for key, members in alike.items()]
    rows = max_min_shares(groups, capacity)
    return {job.order: row for row, members in zip(rows, alike.values(), strict=True) for job in members}


class Gavel:
    """Rounds that follow the shares of one of the policies."""

    def __init__(
        self, name: str, shares: Callable[[Sequence[SimJob], Sequence[int]], Shares], round_s: float = ROUND_S
    ) -> None:
        self.name = name
        self._find_shares = shares
        self._round_s = round_s
        self._shares: Shares = {}
        self._received_s: dict[int, list[float]] = {}  # by job and type, up to _updated_s
        self._updated_s = 0.0
        self._next_round_s = 0.0
        self._solved_for = 0  # how many jobs there were then

    def wake_s(self, world: World) -> float:
        """At the next round, while another choice could be made."""
        best = all(job.speed == max(job.speeds) for job in world.running.values())
        return inf if best and not world.waiting else max(self._next_round_s, world.now_s)

    def schedule(self, world: World) -> None:
        """A round when it is time, else only fill what is free."""
        self._account(world)
        for job in world.running.values():
            job.advance(world.now_s)
        if world.now_s + 1e-6 >= self._next_round_s:
            self._next_round_s = (world.now_s + 1e-6) // self._round_s * self._round_s + self._round_s
            if world.running or world.waiting:
                self._round(world)
        for job in sorted(world.waiting.values(), key=lambda job: (sum(self._received_s[job.order]), job.order)):
            if not any(world.board.left):
                return
            placement = find_fastest(world.board, job)
            if placement is not None:
                world.start(job, placement)

    def _account(self, world: World) -> None:
        """Who has been where since the last call; for those that ended nothing more is kept."""
        passed_s, self._updated_s = world.now_s - self._updated_s, world.now_s
        for job in world.just_ended:
            self._received_s.pop(job.order, None)
            self._shares.pop(job.order, None)
        for order, job in world.running.items():
            self._received_s[order][job.type] += passed_s
        for order, job in world.waiting.items():
            self._received_s.setdefault(order, [0.0] * len(job.speeds))

    def _round(self, world: World) -> None:
        active = [*world.running.values(), *world.waiting.values()]
        if self._is_stale(active):
            types = range(len(world.cluster.types))
            self._shares = self._find_shares(active, [world.cluster.gpus_of(type_) for type_ in types])
            self._solved_for = len(active)
        run_wishes(world, self._wishes(active, world.now_s))

    def _is_stale(self, active: Sequence[SimJob]) -> bool:
        """Somebody came or left since the shares were found."""
        return len(active) != self._solved_for or any(job.order not in self._shares for job in active)

    def _wishes(self, active: Sequence[SimJob], now_s: float) -> list[Wish]:
        """Jobs and types by priority; those that are there already first among equals."""
        ranked = []
        for job in active:
            since_s = now_s - job.submit_s + self._round_s
            received_s = self._received_s[job.order]
            for type_, share in enumerate(self._shares[job.order]):
                if share > _LEAST_SHARE:
                    priority = share / max(received_s[type_] / since_s, _LEAST_FRACTION)
                    ranked.append((-priority, job.type != type_ or job.placement is None, job.order, type_, job))
        ranked.sort()
        held = [(job, job.type) for job in active if job.is_held]
        return [*held, *((job, type_) for _, _, _, type_, job in ranked)]


def run_wishes(world: World, wishes: Sequence[Wish]) -> None:
    """Grant wishes in this order, one per job; running jobs that are granted their own type stay where they are."""
    board = Board(world.cluster)
    granted: list[tuple[SimJob, int, Placement]] = []
    done: set[int] = set()
    for job, type_ in wishes:
        if job.order in done or board.left[type_] < job.gpus:
            continue
        placement = _own(board, job, type_) or board.find(job.gpus, type_)
        if placement is not None:
            board.take(placement)
            done.add(job.order)
            granted.append((job, type_, placement))
    board = Board(world.cluster)
    for job, type_, _ in granted:
        if job.placement is not None and job.type == type_:
            board.take(job.placement)
    placed = _around(board, granted) or {job.order: placement for job, _, placement in granted}
    for job in list(world.running.values()):
        if placed.get(job.order) != job.placement:
            world.stop(job)
    for job, _, _ in granted:
        if job.placement is None:
            world.start(job, placed[job.order])


def _own(board: Board, job: SimJob, type_: int) -> Placement | None:
    own = job.placement
    return own if own is not None and job.type == type_ and board.fits(own) else None


def _around(board: Board, granted: Sequence[tuple[SimJob, int, Placement]]) -> dict[int, Placement] | None:
    """Places for all with nobody moved needlessly; None when they do not fit around those that stay."""
    placed: dict[int, Placement] = {}
    for job, type_, _ in granted:
        if job.placement is not None and job.type == type_:
            placed[job.order] = job.placement
            continue
        found = board.find(job.gpus, type_)
        if found is None:
            return None
        board.take(found)
        placed[job.order] = found
    return placed
