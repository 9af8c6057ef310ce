"""How fast a job runs beside another on the same GPU, relative to running alone. Imports shrinkage.

Prior: 1.02 - 0.40 x u1 x u2, from 0.3 to 1, where u is the utilisation of each job alone (0..1): two jobs that leave
the GPU idle most of the time hardly notice each other, two that fill it run at little more than 60%. A fit to pairs
measured for Lucid (Hu et al., ASPLOS 2023; root mean square error 0.1).

One thing to know: a pair is unordered for the prior and ordered for what is learnt, since one of two jobs may suffer
more than the other.
"""

from __future__ import annotations

from typing import Final

from gpuq.learn.shrinkage import Measured, shrunk

BASE: Final = 1.02
CLASH: Final = 0.40
LEAST_SPEED: Final = 0.3


def prior_speed(own: float, other: float) -> float:
    """Speed relative to running alone, by the utilisation of both alone; ValueError outside 0..1."""
    for utilisation in (own, other):
        if not 0.0 <= utilisation <= 1.0:
            raise ValueError(f"a utilisation is from 0 to 1, not {utilisation}")
    return min(1.0, max(LEAST_SPEED, BASE - CLASH * own * other))


def pair_speed(own: float, other: float, measured: Measured) -> float:
    """The same, with what was measured of this very pair; at most 1."""
    return min(1.0, shrunk(prior_speed(own, other), measured))
