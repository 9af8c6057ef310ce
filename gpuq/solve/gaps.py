"""What is left free of a pool of GPUs while a search tries orders of jobs. Imports nothing of gpuq.

core.profile keeps the same for the list planner and changes it in place; here every promise makes a new record, so that
a search can go back to any of them. The rules are the same, to the last tie.

One thing to know: GPUs of a pool are alike, and no GPU is in two pools. Times are seconds from now.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import NamedTuple

Hole = tuple[float, float, int, bool]  # from, to, slot, informed


class Free(NamedTuple):
    """When the GPUs of one pool are free. Every change makes a new one."""

    tails: list[float]  # ascending: free for good from then on
    ranked: list[int]  # their slots, in the same order
    sure: frozenset[int]  # slots whose tail opens by prediction and not by a guess
    holes: list[Hole]
    widest_s: float  # length of the longest hole
    first_s: float  # when the first of them is free, if only for a while


class Place(NamedTuple):
    """One site of a queue, as far as choosing goes."""

    pool: int
    run_s: float
    slowness: float  # negative speed
    slots: int
    memory_mib: int
    position: int


Choice = tuple[float, float, float, int, int, int, Place]  # least is best; core.greedy has the order of the fields


def search(pools: list[Free], sites: list[Place], count: int) -> tuple[Choice | None, Choice | None]:
    """Where it would finish first, and where of the sites free now."""
    best: Choice | None = None
    now: Choice | None = None
    for site in sites:
        free = pools[site.pool]
        run_s = site.run_s
        rival = now if free.first_s == 0.0 else best
        if rival is not None and free.first_s + run_s > rival[0]:
            continue
        start_s = free.tails[count - 1]
        if start_s > 0.0 and run_s <= free.widest_s:
            start_s = _earliest_s(free, count, run_s, start_s)
        rival = now if start_s == 0.0 else best
        end_s = start_s + run_s
        if rival is not None and end_s > rival[0]:
            continue
        left_over = site.slots - count if start_s > 0.0 else bisect_right(free.tails, 0.0) - count
        choice = (end_s, start_s, site.slowness, left_over, site.memory_mib, site.position, site)
        if start_s == 0.0 and (now is None or choice < now):
            now = choice
        if best is None or choice < best:
            best = choice
    return best, now


def _earliest_s(free: Free, count: int, run_s: float, surely_s: float) -> float:
    """The first time at which `count` GPUs are free together for run_s; surely_s: when they are by tails alone."""
    fitting = [hole for hole in free.holes if hole[0] + run_s <= hole[1]]
    if not fitting:
        return surely_s
    times = {hole[0] for hole in fitting}
    times.update(free.tails[: count - 1])
    for time_s in sorted(times):
        if time_s >= surely_s:
            break
        open_ = sum(1 for hole in fitting if hole[0] <= time_s and time_s + run_s <= hole[1])
        if open_ + bisect_right(free.tails, time_s) >= count:
            return time_s
    return surely_s


def is_informed(free: Free, slots: list[int], start_s: float) -> bool:
    return start_s == 0.0 or all(_gap_informed(free, slot, start_s) for slot in slots)


def _gap_informed(free: Free, slot: int, start_s: float) -> bool:
    if start_s >= free.tails[free.ranked.index(slot)]:
        return slot in free.sure
    return any(hole[3] for hole in free.holes if hole[2] == slot and hole[0] <= start_s < hole[1])


def taken_from(free: Free, slots: list[int], start_s: float, end_s: float, informed: bool) -> Free:
    """The pool with these slots promised from start_s to end_s."""
    tails, sure, holes = list(zip(free.tails, free.ranked, strict=True)), free.sure, free.holes
    for slot in slots:
        at = free.ranked.index(slot)
        tail_s = free.tails[at]
        if start_s < tail_s:
            holes = _split(holes, slot, start_s, end_s, informed)
            continue
        if start_s > tail_s:
            holes = [*holes, (tail_s, start_s, slot, slot in sure)]
        tails.remove((tail_s, slot))
        insort(tails, (end_s, slot))
        if informed is not (slot in sure):
            sure = sure ^ {slot}
    first_s, widest_s = tails[0][0], free.widest_s
    if holes is not free.holes:
        holes.sort()
        widest_s = max([hole[1] - hole[0] for hole in holes], default=0.0)
    if holes and holes[0][0] < first_s:
        first_s = holes[0][0]
    return Free([tail for tail, _ in tails], [slot for _, slot in tails], sure, holes, widest_s, first_s)


def _split(holes: list[Hole], slot: int, start_s: float, end_s: float, informed: bool) -> list[Hole]:
    """The hole of the slot that is open at start_s gives its part from there to end_s."""
    left: list[Hole] = []
    for hole in holes:
        if hole[2] != slot or not hole[0] <= start_s < hole[1]:
            left.append(hole)
            continue
        if start_s > hole[0]:
            left.append((hole[0], start_s, slot, hole[3]))
        if end_s < hole[1]:
            left.append((end_s, hole[1], slot, informed))
    return left
