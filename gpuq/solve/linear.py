"""Shares of GPU types as a linear program (Gavel; Narayanan et al., OSDI 2020). Imports errors and, lazily, ortools.

Jobs of a group are alike. x_gk is the share of time that each of them spends on GPU type k, T_g = sum_k speed_gk x_gk.

    maximise theta      subject to     T_g >= theta need_g,   sum_k x_gk <= 1,   sum_g jobs_g gpus_g x_gk <= GPUs_k

With need_g the progress of an equal split this is max-min fairness, with need_g the work left it is the makespan. What
the largest theta leaves free is then given to whoever makes the most of it: the same program with theta fixed,
maximising sum_g jobs_g gpus_g T_g / max_k speed_gk.

One thing to know: nodes are unknown here. Shares say how much, and rounds make of it who and when.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from gpuq.errors import UserError

_KEPT: Final = 1.0 - 1e-6  # of theta, in the second program


class ShareGroup(NamedTuple):
    """Jobs that are alike."""

    jobs: int
    gpus: int  # of each
    speeds: tuple[float, ...]  # per GPU type; 0: they cannot run there
    need: float  # progress per second that counts as one, > 0


def max_min_shares(groups: Sequence[ShareGroup], capacity: Sequence[int]) -> list[tuple[float, ...]]:
    """The shares x_gk, one row per group; capacity: GPUs per type. Raises UserError without the solver."""
    solver = _solver()
    infinity = solver.infinity()
    most_need = max(group.need for group in groups)
    theta = solver.NumVar(0.0, infinity, "theta")
    shares = [[solver.NumVar(0.0, 1.0 if speed > 0 else 0.0, "") for speed in group.speeds] for group in groups]
    for group, row in zip(groups, shares, strict=True):
        enough = solver.Constraint(0.0, infinity)
        enough.SetCoefficient(theta, -group.need / most_need)
        once = solver.Constraint(-infinity, 1.0)
        for speed, share in zip(group.speeds, row, strict=True):
            enough.SetCoefficient(share, speed)
            once.SetCoefficient(share, 1.0)
    for type_, gpus in enumerate(capacity):
        room = solver.Constraint(-infinity, float(gpus))
        for group, row in zip(groups, shares, strict=True):
            room.SetCoefficient(row[type_], float(group.jobs * group.gpus))
    objective = solver.Objective()
    objective.SetMaximization()
    objective.SetCoefficient(theta, 1.0)
    _solve(solver)
    theta.SetLb(theta.solution_value() * _KEPT)
    objective.SetCoefficient(theta, 0.0)
    for group, row in zip(groups, shares, strict=True):
        for speed, share in zip(group.speeds, row, strict=True):
            objective.SetCoefficient(share, group.jobs * group.gpus * speed / max(group.speeds))
    _solve(solver)
    return [tuple(max(0.0, share.solution_value()) for share in row) for row in shares]


def _solver() -> Any:
    try:
        from ortools.linear_solver import pywraplp  # type: ignore[import-untyped]
    except ImportError:
        raise UserError(
            "Shares of GPU types need the package ortools, which is not installed.", "Run: pip install ortools."
        ) from None
    return pywraplp.Solver.CreateSolver("GLOP")


def _solve(solver: Any) -> None:
    if solver.Solve() != solver.OPTIMAL:
        raise UserError("The linear program of the shares was not solved.", "Try another policy, and report the trace.")
