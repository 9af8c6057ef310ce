"""How fast a job runs under a power limit, relative to running without one. Imports shrinkage.

Prior: 1 - 1.6 x max(0, 1 - x / 1.06)^2, where x is the limit over what the job draws without a limit. A limit a little
below the draw costs almost nothing; the loss grows with its square.

One thing to know: below LEAST_SHARE of the draw the curve is not known to hold, so no limit is ever set there and
`least_limit_w` says where that is.
"""

from __future__ import annotations

from typing import Final

from gpuq.learn.shrinkage import Measured, shrunk

KNEE: Final = 1.06
LOSS: Final = 1.6
LEAST_SHARE: Final = 0.65


def prior_speed(limit_w: float, draw_w: float) -> float:
    """Speed relative to no limit; ValueError for a limit below LEAST_SHARE of the draw, or a draw of 0 or less."""
    if not draw_w > 0.0:
        raise ValueError(f"a draw is above 0 W, not {draw_w}")
    share = limit_w / draw_w
    if not share >= LEAST_SHARE - 1e-9:
        raise ValueError(f"a limit of {share:.2f} of the draw is below {LEAST_SHARE}: nothing is known there")
    return 1.0 - LOSS * max(0.0, 1.0 - share / KNEE) ** 2


def limited_speed(limit_w: float, draw_w: float, measured: Measured) -> float:
    """The same, with what was measured of this job at this limit; at most 1."""
    return min(1.0, shrunk(prior_speed(limit_w, draw_w), measured))


def least_limit_w(draw_w: float) -> float:
    """The lowest limit [W] to set for a job that draws draw_w without one."""
    return LEAST_SHARE * draw_w
