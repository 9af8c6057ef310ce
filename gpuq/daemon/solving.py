"""Asks the solver, beside the loop. Imports core; loads solve when jobs compete for the first time.

A solver is asked when something could start and something else must wait, so that it matters who does, and when at
least one run time is more than a guess. Otherwise the list plan is used as it is, and a job that finds an idle GPU
starts within milliseconds. GPUs idle while it thinks, so it gets at most a hundredth of the shortest run it holds up.

One thing to know: it runs in a thread, on a problem that no longer changes. What it answers is an old answer: every
placement is checked again when the loop takes it, and one that no longer fits is dropped.
"""

from __future__ import annotations

import asyncio
import logging

from gpuq.core.plan import Plan, SolveRecord
from gpuq.core.problem import Problem

log = logging.getLogger("gpuq.planner")

S_PER_JOB = 0.05  # a short queue is worth less of the budget than a long one
SHARE_OF_RUN = 0.01  # of the shortest run that waits for the answer
LIMIT = 1.5  # of the budget by the wall clock, on a busy machine
LEAST_S = 0.02  # less is not worth a thread


class Solving:
    """The solver as the planner sees it."""

    def __init__(self) -> None:
        self.last: SolveRecord | None = None
        self._broken = False  # it could not be loaded: said once, not tried again

    def budget_s(self, problem: Problem, plan: Plan, most_s: float) -> float:
        """How long another choice of what starts now may be looked for; 0: it is not worth it."""
        if self._broken or not plan.starts or not plan.waiting:
            return 0.0
        if not any(queue.prediction.informed and queue.gpus for queue in problem.queues):
            return 0.0
        shortest_s = min(start.end_s - start.start_s for start in plan.starts)
        allowed_s = min(most_s, S_PER_JOB * len(plan.estimates), SHARE_OF_RUN * shortest_s)
        return allowed_s if allowed_s >= LEAST_S else 0.0

    async def improve(self, problem: Problem, plan: Plan, budget_s: float) -> Plan:
        """The better of the plan and the solver's, after about budget_s; the plan itself when that fails."""
        try:
            found = await asyncio.to_thread(_improved, problem, plan, budget_s)
        except ImportError as error:
            self._broken = True
            log.error("jobs are planned without a solver: %s", error)
            return plan
        except Exception:
            log.exception("the solver failed; the list plan is used")
            return plan
        self.last = found.solve
        if found.solve is not None:
            log.debug("solver: %s in %.2f s", found.solve.status, found.solve.time_s)
        return found


def _improved(problem: Problem, plan: Plan, budget_s: float) -> Plan:
    from gpuq.solve.cpsat import CpSat

    return CpSat(budget_s, limit_s=LIMIT * budget_s).improve(problem, plan)
