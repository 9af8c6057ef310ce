"""What a placement costs besides GPU time, and how many seconds of waiting that is worth. Imports impact, problem.

    impact   = 3600 (w - c) / (GPUs x run time)          c: costs, as a share of one weighted completion
    charge   = run time x (w / (w - c) - 1)               the longer run that would have the same impact without costs

So a planner that compares ends compares end + charge instead, and a cheaper GPU wins when it ends no later than that.
A placement draws what such jobs have drawn on that type (core.used), and the GPUs' power limit while that is unknown.

One thing to know: a placement whose costs eat up the weight is charged nine run times and no more. A job that only
dear GPUs can run still runs, behind the others.
"""

from __future__ import annotations

from typing import Final

from gpuq.core.impact import FREE, Costs, Weights, total
from gpuq.core.problem import Queue, Site

MOST_RUNS: Final = 9.0
_J_PER_KWH: Final = 3.6e6


def costs_of(queue: Queue, site: Site, run_s: float, weights: Weights) -> Costs:
    """The costs of running a job of the queue there; FREE when no parameter asks for them."""
    if not weights.energy or not site.power_w:
        return FREE
    return Costs(energy_kwh=queue.gpus * site.power_w * run_s / _J_PER_KWH)


def charge_s(queue: Queue, position: int, site: Site, run_s: float, weights: Weights) -> float:
    """Seconds that a placement's costs count as when its end is compared with others."""
    costs = costs_of(queue, site, run_s, weights)
    if costs is FREE:
        return 0.0
    weight, cost = queue.weight(position), total(costs, weights)
    left = weight - cost
    return run_s * (min(MOST_RUNS, cost / left) if left > 0.0 else MOST_RUNS)
