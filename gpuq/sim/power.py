"""The energy of a simulated run. Imports cluster, world and the GPU catalogue.

    E = sum over machines   129 W x GPU places while awake, 10 W while asleep
      + sum over GPUs       idle draw while awake and not held, 0.57 TDP + 82 W (its share of a busy host) while held

up to the last completion. TDP and idle draw are the catalogue's, idle 0.13 TDP where it has none. The shares come from
percentiles published with Acme (Hu et al., NSDI 2024, CC BY 4.0): an 8-GPU A100 server draws 1,512 W idle and 4,851 W
at the 90th percentile, its GPUs 60 and 395 W; the GPU samples above 80% utilisation average 0.53 and 0.61 of TDP on its
two clusters. That a sleeping machine draws 10 W, sleeps after 10 minutes and wakes in 3 is assumed.

One thing to know: a held GPU draws the same whatever the job does with it, so this compares policies on one trace and
is no forecast of a bill.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from gpuq.errors import UserError
from gpuq.hardware.catalogue import model_of_type
from gpuq.sim.cluster import Cluster
from gpuq.sim.world import Run, Sleep

HOST_IDLE_W: Final = 129.0  # per GPU place: (1512 - 8 x 60) / 8
HOST_BUSY_W: Final = 82.0  # more for each held GPU: (4851 - 8 x 395 - 8 x 129) / 8
ASLEEP_W: Final = 10.0  # per machine
BUSY_SHARE: Final = 0.57  # of TDP
IDLE_SHARE: Final = 0.13  # of TDP, for models without a measured idle draw


class Draw(NamedTuple):
    """What one GPU draws [W]."""

    busy_w: float
    idle_w: float


def draw_of(type_: str) -> Draw:
    """The draw of a GPU type. Raises UserError for a model whose TDP nobody knows."""
    model = model_of_type(type_)
    if model is None or model.tdp_w is None:
        raise UserError(f"Nobody knows how much power a {type_} draws.", "Leave out that type, or --energy.")
    idle_w = model.tdp_w * IDLE_SHARE if model.idle_w is None else model.idle_w
    return Draw(model.tdp_w * BUSY_SHARE, idle_w)


def energy_joules(cluster: Cluster, runs: Sequence[Run], sleep: Sleep | None) -> float:
    """Energy of all machines from time 0 to the last end [J]."""
    draws = [draw_of(type_) for type_ in cluster.types]
    until_s = max((run.end_s for run in runs), default=0.0)
    spans: list[list[tuple[float, float]]] = [[] for _ in cluster.node_gpus]
    held_s = [0.0] * len(spans)  # GPU seconds
    for run in runs:
        for node, gpus in run.placement:
            spans[node].append((run.start_s, run.end_s))
            held_s[node] += gpus * (run.end_s - run.start_s) * (0.5 if run.partner else 1.0)
    total = 0.0
    for node, gpus in enumerate(cluster.node_gpus):
        asleep_s = 0.0 if sleep is None else _asleep_s(spans[node], until_s, sleep.after_s)
        awake_s = until_s - asleep_s
        draw = draws[cluster.node_types[node]]
        total += awake_s * HOST_IDLE_W * gpus + asleep_s * ASLEEP_W
        total += held_s[node] * (draw.busy_w + HOST_BUSY_W) + (awake_s * gpus - held_s[node]) * draw.idle_w
    return total


def _asleep_s(spans: list[tuple[float, float]], until_s: float, after_s: float) -> float:
    """Time a machine sleeps that is used in these spans and falls asleep `after_s` after the last use."""
    asleep_s = free_since_s = 0.0
    for start_s, end_s in [*sorted(spans), (until_s, until_s)]:
        asleep_s += max(0.0, start_s - free_since_s - after_s)
        free_since_s = max(free_since_s, end_s)
    return asleep_s
