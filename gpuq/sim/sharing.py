"""How busy jobs keep a GPU, for two on the same. Imports nothing of gpuq; learn.interference has the speeds.

Utilisations are drawn from those published for Philly (Jeon et al., ATC 2019), idle samples left out.

One thing to know: equal models have equal utilisation; a job without one draws its own from the seed and its id.
"""

from __future__ import annotations

from random import Random
from typing import Final

MOST_JOINT_SPEED: Final = 2.0  # of two partners together, for bounds
PHILLY: Final = (0.062, 0.222, 0.372, 0.483, 0.583, 0.692, 0.792, 0.872, 0.92, 0.964, 0.983, 0.993, 1.0)
LIGHT: Final = 0.3  # utilisation up to which a job is a light partner
MEDIUM: Final = 0.7


def utilisation_of(id_: str, model: str, seed: int) -> float:
    """GPU utilisation of a job that runs alone, 0 to 1."""
    return Random(f"model {model}" if model else f"job {seed} {id_}").choice(PHILLY)  # noqa: S311 (a simulation)


def weight_of(utilisation: float) -> int:
    """0 light, 1 medium, 2 heavy: partners may add to 2."""
    return 0 if utilisation <= LIGHT else 1 if utilisation <= MEDIUM else 2
