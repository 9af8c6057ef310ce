"""gpuq's choice of what runs when jobs may be stopped. Imports market, calibration and world.

    impact of one GPU of a type = weight x speed there / (GPUs x effective work left)
    weight                      = 1 + (time since submission / age)^3

The effective work left comes from learn.calibration, which learns how good the predictions are from the jobs that have
ended so far, separately for jobs of one, a few and many GPUs. core.market finds the prices of the GPU types, jobs are
served in the order in which they exceed them, each on the type where it does by most. The age term bounds the tail.

Where GPUs may be shared, a waiting job joins a running one of as many GPUs when what it does there is worth more than
what its host loses. It moves to GPUs of its own when its turn comes.

A running job that may not be stopped keeps its GPUs; the prices are those of the GPUs that such jobs leave.

One thing to know: a running job bids more for the type it is on than its work says, and less for another, so that
nobody is stopped or moved for next to nothing.
"""

from __future__ import annotations

from math import inf
from typing import Final

from gpuq.core.market import Bid, clearing_prices, preferred_types, urgency
from gpuq.learn.calibration import Calibration
from gpuq.learn.interference import prior_speed
from gpuq.sim.cluster import Board, Placement
from gpuq.sim.world import SimJob, World, held_first

AGE_S: Final = 330 * 3600.0
AGE_POWER: Final = 3.0
KEEPING: Final = 1.3  # factor on the bids of a job that runs already
MOVING: Final = 1.1  # factor on its bid where it runs, and divisor where it does not
FEW_GPUS: Final = 4
LEAST_PAIR_SPEED: Final = 0.6  # of running alone; partners that slow each other more are not put together


class Stopping:
    """The policy; age_s inf: no age term."""

    def __init__(self, name: str, age_s: float = AGE_S) -> None:
        self.name = name
        self._age_s = age_s
        self._calibrations = (Calibration(), Calibration(), Calibration())
        self._prices: list[float] | None = None

    def wake_s(self, world: World) -> float:
        """At arrivals and ends only."""
        return inf

    def schedule(self, world: World) -> None:
        """Learn from what has ended, then serve the jobs by what they would pay."""
        for job in world.just_ended:
            self._calibration(job).add(job.estimate_s, job.done_s)
        if not world.waiting and len(world.cluster.types) == 1:
            return
        for job in world.running.values():
            job.advance(world.now_s)
        active = [*world.running.values(), *world.waiting.values()]
        bids = {job.order: self._bid(job, world.now_s) for job in active}
        prices = [1.0]
        if len(world.cluster.types) > 1:
            for_sale = _left_by_held(world)
            bidding = [bids[job.order] for job in active if not job.is_held]
            prices = self._prices = clearing_prices(bidding, for_sale, self._prices)
        active.sort(key=lambda job: (-urgency(bids[job.order], prices), job.order))
        serve(world, active, {order: preferred_types(bid, prices) for order, bid in bids.items()})
        if world.sharing:
            share(world, [job for job in active if job.order in world.waiting], bids)

    def _calibration(self, job: SimJob) -> Calibration:
        return self._calibrations[0 if job.gpus == 1 else 1 if job.gpus <= FEW_GPUS else 2]

    def _bid(self, job: SimJob, now_s: float) -> Bid:
        left_s = self._calibration(job).effective_left_s(job.estimate_s, job.done_s)
        worth = (1.0 + float(((now_s - job.submit_s) / self._age_s) ** AGE_POWER)) / (job.gpus * left_s)
        if job.placement is None:
            return Bid(job.gpus, tuple(worth * speed for speed in job.speeds))
        worth *= KEEPING
        return Bid(
            job.gpus,
            tuple(
                worth * speed * (MOVING if type_ == job.type else 1 / MOVING) for type_, speed in enumerate(job.speeds)
            ),
        )


def _left_by_held(world: World) -> list[int]:
    """GPUs of each type that no job holds for good."""
    left = [world.cluster.gpus_of(type_) for type_ in range(len(world.cluster.types))]
    for job in world.running.values():
        if job.is_held and not _is_counted_with_partner(job):
            left[job.type] -= job.gpus
    return left


def _is_counted_with_partner(job: SimJob) -> bool:
    """Of two jobs that may not be stopped and share GPUs, the later one: the GPUs are counted once."""
    return job.partner is not None and job.partner.is_held and job.partner.order < job.order


def serve(world: World, ranked: list[SimJob], types: dict[int, list[int]]) -> None:
    """Run the jobs in this order, each on the first of its types with room; the others are stopped."""
    board = Board(world.cluster)
    trial: dict[int, Placement] = {}
    jobs: list[SimJob] = []
    left = sum(board.left)
    for job in held_first(ranked):
        if job.is_held and _is_counted_with_partner(job):
            continue
        if job.gpus > left or not _place(board, job, types[job.order], jobs, trial):
            continue
        jobs.append(job)
        left -= job.gpus
        if left == 0:
            break
    chosen = [(job, trial[job.order]) for job in jobs]
    places = _packed(world, chosen) or trial
    for job in _leaving(world, places):
        world.stop(job)
    for job, _ in chosen:
        if job.placement is None:
            world.start(job, places[job.order])


def _leaving(world: World, places: dict[int, Placement]) -> list[SimJob]:
    """Running jobs that are not to go on where they are; a guest goes on with a host that does."""
    return [
        job
        for job in world.running.values()
        if places.get(job.order) != job.placement
        and (job.order in places or job.partner is None or places.get(job.partner.order) != job.placement)
    ]


def share(world: World, waiting: list[SimJob], bids: dict[int, Bid]) -> None:
    """Let waiting jobs join running ones where both together are worth more than the host alone."""
    hosts = [job for job in world.running.values() if job.partner is None]
    for job in waiting:
        best, most = None, 0.0
        for host in hosts:
            if host.gpus != job.gpus or job.speeds[host.type] <= 0.0 or host.placement is None:
                continue
            speed = prior_speed(host.utilisation, job.utilisation)
            if speed < LEAST_PAIR_SPEED:
                continue
            gain = bids[job.order].values[host.type] * speed - bids[host.order].values[host.type] * (1.0 - speed)
            if gain > most:
                best, most = host, gain
        if best is not None and best.placement is not None:
            world.start(job, best.placement, partner=best)
            hosts.remove(best)


def _place(
    board: Board, job: SimJob, types: list[int], jobs: list[SimJob], trial: dict[int, Placement]
) -> bool:
    """Find room for the job on the first of its types that has it, if need be by moving the others together."""
    for type_ in (job.type,) if job.is_held else types:
        if job.placement is not None and job.type == type_ and board.fits(job.placement):
            placement: Placement | None = job.placement
        else:
            placement = board.find(job.gpus, type_)
        if placement is not None:
            board.take(placement)
            trial[job.order] = placement
            return True
        if board.left[type_] >= job.gpus and _repack(board, job, type_, jobs, trial):
            return True
    return False


def _repack(board: Board, job: SimJob, type_: int, jobs: list[SimJob], trial: dict[int, Placement]) -> bool:
    """Place the jobs of the type anew, the largest first, so that the GPUs left over lie together; held ones stay."""
    node_types = board.cluster.node_types
    there = [each for each in jobs if node_types[trial[each.order][0][0]] == type_]
    fresh = Board(board.cluster)
    places: dict[int, Placement] = {}
    for each in there:
        if each.is_held:
            places[each.order] = trial[each.order]
            fresh.take(trial[each.order])
    movable = [each for each in (*there, job) if each.order not in places]
    for each in sorted(movable, key=lambda each: (-each.gpus, each.order)):
        found = fresh.find(each.gpus, type_)
        if found is None:
            return False
        fresh.take(found)
        places[each.order] = found
    for each in there:
        board.give(trial[each.order])
    for found in places.values():
        board.take(found)
    trial.update(places)
    return True


def _packed(world: World, chosen: list[tuple[SimJob, Placement]]) -> dict[int, Placement] | None:
    """The same jobs on the same types with nobody moved inside a type; None when they do not fit so."""
    board = Board(world.cluster)
    places: dict[int, Placement] = {}
    node_types = world.cluster.node_types
    for job, placement in chosen:
        stays = job.placement is not None and job.type == node_types[placement[0][0]]
        if stays and job.placement is not None and (job.partner is None or job.placement == placement):
            board.take(job.placement)
            places[job.order] = job.placement
    for job, placement in chosen:
        if job.order not in places:
            found = board.find(job.gpus, node_types[placement[0][0]])
            if found is None:
                return None
            board.take(found)
            places[job.order] = found
    return places
