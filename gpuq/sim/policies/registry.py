"""The policies by name. Imports the policies.

One thing to know: the name also says which run times a policy is told: predictions, its jobs' true run times (names
ending in _perfect, for reference), or their owners' estimates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from gpuq.core.greedy import Greedy
from gpuq.core.plan import Planner
from gpuq.errors import UsageError
from gpuq.sim.policies.backfill import Easy
from gpuq.sim.policies.conservative import Conservative
from gpuq.sim.policies.gavel import Gavel, least_makespan, max_min, shortest_first
from gpuq.sim.policies.gittins import Gittins
from gpuq.sim.policies.live import Live
from gpuq.sim.policies.lucid import Lucid
from gpuq.sim.policies.ordered import Ordered, gpu_time_s, run_s, submitted_s
from gpuq.sim.policies.planned import Planned
from gpuq.sim.policies.ranked import LeastAttained, Ranked, gpu_time_left_s, time_left_s
from gpuq.sim.policies.stopping import Stopping
from gpuq.sim.world import Policy

SOLVER_BUDGET_S: Final = 0.05  # per decision; the daemon takes up to planner.budget, but decides less often


class Entry(NamedTuple):
    """One policy: how to make it, what it does to running jobs, and what it is, in a line."""

    make: Callable[[], Policy]
    stops_jobs: bool
    summary: str
    perfect: bool = False  # it is told the true run times
    make_fixed: Callable[[], Policy] | None = None  # what it is where nothing may be stopped
    sleeps: bool = False  # machines without jobs fall asleep


POLICIES: Final[dict[str, Entry]] = {
    "impact": Entry(
        lambda: Stopping("impact"), True, "gpuq: by impact, GPU types by price; where nothing is stopped, CP-SAT plans",
        make_fixed=lambda: Planned("impact", _solver()),
    ),
    "greedy": Entry(
        lambda: Stopping("greedy"), True, "gpuq without solver: by impact, GPU types by price, calibrated predictions",
        make_fixed=lambda: Planned("greedy", Greedy()),
    ),
    "daemon": Entry(
        lambda: Live("daemon"), True, "the daemon's own state, list planner and evictions; jobs inside one machine",
        make_fixed=lambda: Live("daemon", evicts=False),
    ),
    "srsf": Entry(lambda: Ranked("srsf", gpu_time_left_s), True, "least predicted GPU time left first"),
    "srtf": Entry(lambda: Ranked("srtf", time_left_s), True, "least predicted time left first"),
    "las2d": Entry(LeastAttained, True, "least attained GPU time first (Tiresias), limits 1 h and 10 h"),
    "gittins2d": Entry(Gittins, True, "highest Gittins index first, from the GPU times of ended jobs (Tiresias)"),
    "gavel_maxmin": Entry(lambda: Gavel("gavel_maxmin", max_min), True, "max-min fair shares of GPU types (Gavel)"),
    "gavel_makespan": Entry(
        lambda: Gavel("gavel_makespan", least_makespan), True, "shares of GPU types for the least makespan (Gavel)"
    ),
    "gavel_sjf": Entry(
        lambda: Gavel("gavel_sjf", shortest_first), True, "shares of GPU types, shortest predicted job first (Gavel)"
    ),
    "saf": Entry(lambda: Ordered("saf", gpu_time_s), False, "least predicted GPU time first"),
    "sjf": Entry(lambda: Ordered("sjf", run_s), False, "shortest predicted run time first"),
    "qssf": Entry(lambda: Ordered("qssf", gpu_time_s, strict=True), False, "as saf, the head blocks (Helios)"),
    "easypp": Entry(
        lambda: Easy("easypp", lambda job: job.estimate_s, run_s), False, "EASY with predictions, shortest behind"
    ),
    "easy": Entry(lambda: Easy("easy", lambda job: job.limit_s), False, "EASY backfill, estimates by owners"),
    "lucid": Entry(Lucid, False, "saf, and light jobs share GPUs where --sharing allows it (Lucid)"),
    "sleep_easy": Entry(
        lambda: Easy("sleep_easy", lambda job: job.limit_s), False, "easy, idle machines fall asleep", sleeps=True
    ),
    "conservative": Entry(
        lambda: Conservative("conservative", lambda job: job.limit_s),
        False,
        "conservative backfill: a reservation per job, estimates by owners",
    ),
    "fifo_firstfit": Entry(
        lambda: Ordered("fifo_firstfit", submitted_s), False, "first come first served, passing over what does not fit"
    ),
    "fifo": Entry(lambda: Ordered("fifo", submitted_s, strict=True), False, "first come first served, the head blocks"),
    "srsf_perfect": Entry(
        lambda: Ranked("srsf_perfect", gpu_time_left_s), True, "srsf that knows the run times", perfect=True
    ),
    "srtf_perfect": Entry(
        lambda: Ranked("srtf_perfect", time_left_s), True, "srtf that knows the run times", perfect=True
    ),
    "sjf_perfect": Entry(lambda: Ordered("sjf_perfect", run_s), False, "sjf that knows the run times", perfect=True),
    "saf_perfect": Entry(
        lambda: Ordered("saf_perfect", gpu_time_s), False, "saf that knows the run times", perfect=True
    ),
    "easy_perfect": Entry(
        lambda: Easy("easy_perfect", lambda job: job.estimate_s), False, "EASY that knows the run times", perfect=True
    ),
}


def _solver() -> Planner:
    from gpuq.solve.cpsat import CpSat

    return CpSat(budget=SOLVER_BUDGET_S)


def find_policy(name: str) -> Entry:
    """The policy of this name. Raises UsageError naming those there are."""
    entry = POLICIES.get(name)
    if entry is None:
        raise UsageError(f"There is no policy '{name}'.", f"Choose from {', '.join(POLICIES)}.")
    return entry
