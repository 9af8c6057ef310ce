"""What a placement costs besides GPU time, and how many seconds of waiting that is worth. Imports impact, problem.

    impact   = 3600 (w - c) / (GPUs x run time)          c: costs, as a share of one weighted completion
    charge   = run time x (w / (w - c) - 1)               the longer run that would have the same impact without costs

    stranded = sum over sizes g of the waiting jobs of share(g) x (f mod g)  after the placement, less the same before
               f: free GPUs of the type on the machine; share(g): of the waiting jobs that can use them, those of g GPUs

The idea is FGD's (Weng et al., ATC 2023): the GPUs of a machine that the expected mix of jobs cannot use. FGD counts
all f when g > f, and none else; f mod g is the same for g > f, and also counts what is left over when as many jobs of g
GPUs as fit have been placed: 8 free GPUs have room for two jobs of 4, 7 for one. A gain counts as 0.

So a planner that compares ends compares end + charge instead, and a cheaper GPU wins when it ends no later than that.
A placement draws what such jobs have drawn on that type (core.used), and the GPUs' power limit while that is unknown.

One thing to know: what is free is that of the snapshot, before the plan takes anything, so that stranded GPUs do not
depend on the order of planning; they are charged only where a job starts now. A placement whose costs eat up the weight
is charged nine run times and no more: a job that only dear GPUs can run still runs, behind the others.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from gpuq.core.impact import FREE, Costs, Weights, total
from gpuq.core.problem import Problem, Queue, Site

MOST_RUNS: Final = 9.0
_J_PER_KWH: Final = 3.6e6


class Stranding:
    """How many free GPUs each start of this moment would make unusable for the jobs that wait."""

    def __init__(self, problem: Problem) -> None:
        self._free: Counter[tuple[int, str]] = Counter()
        self._sizes: dict[tuple[int, str], Counter[int]] = {}
        self._known: dict[tuple[int, str, int], float] = {}
        self.counts = bool(problem.weights.fragmentation)
        if self.counts:
            self._free.update((slot.machine, slot.gpu.type) for slot in problem.slots if slot.free_at_s == 0.0)
            self._count_sizes(problem)

    def _count_sizes(self, problem: Problem) -> None:
        # Queues that ask for the same share one tuple of sites, so that each is walked once.
        waiting: dict[tuple[int, int], tuple[Queue, int]] = {}
        for queue in problem.queues:
            if queue.gpus:
                key = (id(queue.sites), queue.gpus)
                waiting[key] = (queue, queue.count + (waiting[key][1] if key in waiting else 0))
        for queue, count in waiting.values():
            for place in {(site.machine, site.type) for site in queue.sites if not site.spans}:
                self._sizes.setdefault(place, Counter())[queue.gpus] += count

    def gpus(self, queue: Queue, site: Site) -> float:
        """GPUs made unusable by a job of the queue that starts there now; 0 where nothing asks for them.

        A job that takes machines in whole strands none.
        """
        if not self.counts or not queue.gpus or site.spans:
            return 0.0
        key = (site.machine, site.type, queue.gpus)
        if key not in self._known:
            free = self._free[key[:2]]
            after, before = self._unusable(key[:2], free - queue.gpus), self._unusable(key[:2], free)
            self._known[key] = max(0.0, after - before) if free >= queue.gpus else 0.0
        return self._known[key]

    def _unusable(self, place: tuple[int, str], free: int) -> float:
        sizes = self._sizes.get(place, Counter())
        return sum(count * (free % size) for size, count in sizes.items()) / max(1, sizes.total())


def costs_of(queue: Queue, site: Site, run_s: float, weights: Weights, stranded_gpus: float = 0.0) -> Costs:
    """The costs of running a job of the queue there; FREE when no parameter asks for them.

    stranded_gpus: of Stranding when it starts now, else 0.
    """
    kwh = queue.gpus * site.power_w * run_s / _J_PER_KWH if weights.energy else 0.0
    stranded_gpus = stranded_gpus if weights.fragmentation else 0.0
    return Costs(energy_kwh=kwh, stranded_gpus=stranded_gpus) if kwh or stranded_gpus else FREE


def charge_s(
    queue: Queue, position: int, site: Site, run_s: float, weights: Weights, stranded_gpus: float = 0.0
) -> float:
    """Seconds that a placement's costs count as when its end is compared with others; see costs_of."""
    costs = costs_of(queue, site, run_s, weights, stranded_gpus)
    if costs is FREE:
        return 0.0
    weight, cost = queue.weight(position), total(costs, weights)
    left = weight - cost
    return run_s * (min(MOST_RUNS, cost / left) if left > 0.0 else MOST_RUNS)
