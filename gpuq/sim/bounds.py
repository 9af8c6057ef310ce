"""Proven lower bounds on the mean completion time of rigid jobs. Imports nothing of gpuq.

The cluster is replaced by one machine of its whole speed with free preemption; any real schedule maps to one there with
equal or earlier completions. Three bounds are valid, the largest is returned:

    mean run time        nobody is faster than alone on the best GPUs
    SRPT                 optimal for the mean on one machine
    mean busy time       M_j, the mean time at which the work of j is done when the job of least total work runs, plus
                         half its run time (the LP of Goemans et al. for one machine with release dates)

With several GPU types a job's size is min over types k of gpus x run time there x u_k, and the speed sum N_k u_k; any
u >= 0 gives a bound. u_k = 1 and u_k = mean speed of type k are tried.

One thing to know: the bounds are clairvoyant and ignore nodes, so no policy can be expected to reach them.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple


class BoundJob(NamedTuple):
    """What a bound needs of a job."""

    submit_s: float
    gpus: int
    run_s: tuple[float, ...]  # per GPU type; inf: it cannot run there


def lower_bound_s(jobs: Sequence[BoundJob], gpus: Sequence[int], joint: float = 1.0) -> float:
    """Lower bound on the mean of completion minus submission [s].

    gpus: how many there are of each type; joint: the most that partners on one GPU progress together.
    """
    types = range(len(gpus))
    best_s = [min(job.run_s) for job in jobs]
    candidates = [sum(best_s) / len(jobs)]
    for prices in _prices(jobs, len(gpus)):
        speed = joint * sum(gpus[k] * prices[k] for k in types)
        sizes = [job.gpus * min(job.run_s[k] * prices[k] for k in types) / speed for job in jobs]
        work = [(job.submit_s, size) for job, size in zip(jobs, sizes, strict=True)]
        candidates.append(_srpt_mean_s(work))
        candidates.append(_mean_busy_s(work) + sum(best_s) / len(jobs) / 2)
    return max(candidates)


def _prices(jobs: Sequence[BoundJob], types: int) -> list[list[float]]:
    if types == 1:
        return [[1.0]]
    rates = []
    for k in range(types):
        able = [min(job.run_s) / job.run_s[k] for job in jobs if job.run_s[k] < inf]
        rates.append(sum(able) / max(len(able), 1))
    return [[1.0] * types, rates, [rate**0.5 for rate in rates]]


def _srpt_mean_s(work: Sequence[tuple[float, float]]) -> float:
    """Mean flow time of shortest remaining work first on one machine of speed 1."""
    total_s, now_s = 0.0, 0.0
    left: list[tuple[float, float]] = []  # (rest, submission)
    for submit_s, size_s in [*sorted(work), (inf, 0.0)]:
        while left and now_s < submit_s:
            rest_s, since_s = heappop(left)
            if now_s + rest_s <= submit_s:
                now_s += rest_s
                total_s += now_s - since_s
            else:
                heappush(left, (rest_s - (submit_s - now_s), since_s))
                now_s = submit_s
        now_s = max(now_s, submit_s)
        heappush(left, (size_s, submit_s))
    return total_s / len(work)


def _mean_busy_s(work: Sequence[tuple[float, float]]) -> float:
    """Mean of (mean time at which a job's work is done - its submission), least total work first."""
    total_s, now_s = 0.0, 0.0
    left: list[list[float]] = []  # [total size, rest, submission]
    for submit_s, size_s in [*sorted(work), (inf, 0.0)]:
        while left and now_s < submit_s:
            entry = left[0]
            done_s = min(entry[1], submit_s - now_s)
            if entry[0] > 0:
                total_s += done_s / entry[0] * (now_s + done_s / 2 - entry[2])
            now_s += done_s
            entry[1] -= done_s
            if entry[1] <= 1e-12 * max(entry[0], 1e-9):
                heappop(left)
        now_s = max(now_s, submit_s)
        heappush(left, [size_s, size_s, submit_s])
    return total_s / len(work)
