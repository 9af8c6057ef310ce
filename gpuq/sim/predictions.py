"""What a policy is told about run times. Imports trace.

    perfect   the run time itself
    learnt    nothing here: sim.learnt predicts while the trace runs; until then the owner's estimate stands
    helios    run time x (1 + u) or run time / (1 + u), each with probability 1/2, where u is drawn from the error
              distribution published with Helios (Hu et al., SC 2021): 10% of jobs within 10%, 40% off by 10-50%,
              20% by 50-100%, 20% by 1-10x, 10% by 10-100x

People's own estimates, which EASY gets, are what they asked for where the trace says so, else the run time times one of
1, 1.5, 2, 3, 5, 10.

One thing to know: draws depend on the seed and on nothing else, so every policy of a seed sees the same predictions.
"""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple

from gpuq.errors import UserError
from gpuq.sim.trace import TraceJob

MODELS: Final = ("perfect", "helios", "learnt")
HELIOS: Final = ((0.1, 0.0, 0.1), (0.4, 0.1, 0.5), (0.2, 0.5, 1.0), (0.2, 1.0, 10.0), (0.1, 10.0, 100.0))
PADDING: Final = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
SHORTEST_S: Final = 1.0


class Predicted(NamedTuple):
    """What is said of one job, in seconds on the reference GPU."""

    run_s: float
    limit_s: float  # by its owner


def predict_all(jobs: tuple[TraceJob, ...], model: str, seed: int) -> list[Predicted]:
    """One prediction per job. Raises UserError for an unknown model."""
    if model not in MODELS:
        raise UserError(f"There is no prediction model '{model}'.", f"Choose one of {', '.join(MODELS)}.")
    random = Random(seed)  # noqa: S311 (a simulation, not a secret)
    found = []
    for job in jobs:
        error = _helios_factor(random)
        padding = random.choice(PADDING)
        limit_s = job.duration_s * padding if job.limit_s is None else job.limit_s
        run_s = {
            "perfect": job.duration_s, "helios": max(job.duration_s * error, SHORTEST_S), "learnt": limit_s
        }[model]  # fmt: skip
        found.append(Predicted(run_s, limit_s))
    return found


def _helios_factor(random: Random) -> float:
    draw, longer = random.random(), random.random() < 0.5
    at = 0
    while at < len(HELIOS) - 1 and draw >= HELIOS[at][0]:
        draw -= HELIOS[at][0]
        at += 1
    _, least, most = HELIOS[at]
    factor = 1.0 + random.uniform(least, most)
    return factor if longer else 1.0 / factor
