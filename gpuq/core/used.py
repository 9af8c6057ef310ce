"""What jobs of one kind use of a GPU: utilisation, draw by GPU type, memory, learnt from ended runs. Imports model.

A run counts n / (n + 10) for n samples, and half as much for every 8 runs that came later. Estimates are means with
PRIOR_RUNS runs of what is usual: 52% utilisation (the mean that Jeon et al., ATC 2019, found in Philly), and 0.57 of
the power limit (fitted to Acme, Hu et al., NSDI 2024). On a GPU type that a kind has not run on, its share of the
limit on other types is the prior, and the estimate. Memory is the most of the newest runs: it must suffice, and it
hardly varies between them.

One thing to know: runs alone on their GPUs are meant. A counter that no run had is unknown, whatever is usual.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from gpuq.core.model import Record, Used

HALF_SAMPLES: Final = 10  # a run of so many samples counts half
FADE: Final = 0.5 ** (1 / 8)
PRIOR_RUNS: Final = 0.5
PRIOR_UTILIZATION: Final = 0.52
PRIOR_SHARE: Final = 0.57
PEAKS: Final = 8  # newest runs whose memory counts


class Mean(NamedTuple):
    """A mean in which newer runs count more: their number, the weights and the weighted sum."""

    runs: int = 0
    weight: float = 0.0
    total: float = 0.0

    def plus(self, value: float, weight: float) -> Mean:
        """With one run more."""
        return Mean(self.runs + 1, self.weight * FADE + weight, self.total * FADE + value * weight)

    def shrunk(self, prior: float) -> float:
        """The mean, with PRIOR_RUNS runs of the prior."""
        return (self.total + PRIOR_RUNS * prior) / (self.weight + PRIOR_RUNS)


class Use(Record, frozen=True, kw_only=True):
    """What is known of one kind of job."""

    utilization: Mean = Mean()
    share: Mean = Mean()  # draw over power limit, on any type
    power_w: dict[str, Mean] = msgspec.field(default_factory=dict)  # by GPU type
    memory_mib: tuple[float, ...] = ()  # the most that one GPU held, by run, newest last

    def plus(self, used: Used, gpu_type: str, limit_w: float | None) -> Use:
        """With one run more on this GPU type; limit_w None: the power limit there is not known."""
        weight = used.samples / (used.samples + HALF_SAMPLES)
        if weight <= 0.0:
            return self
        found = self
        if used.utilization is not None:
            found = replace(found, utilization=found.utilization.plus(used.utilization, weight))
        if used.memory_mib is not None:
            found = replace(found, memory_mib=(*found.memory_mib[-PEAKS + 1 :], used.memory_mib))
        if used.power_w is None or not gpu_type:
            return found
        drawn = found.power_w.get(gpu_type, Mean()).plus(used.power_w, weight)
        share = found.share.plus(used.power_w / limit_w, weight) if limit_w else found.share
        return replace(found, share=share, power_w={**found.power_w, gpu_type: drawn})

    def expected_utilization(self) -> float | None:
        """Utilisation to expect of each of its GPUs, 0 to 1."""
        return self.utilization.shrunk(PRIOR_UTILIZATION) if self.utilization.runs else None

    def expected_memory_mib(self) -> float | None:
        """Memory to expect on each of its GPUs."""
        return max(self.memory_mib, default=None)

    def expected_power_w(self, gpu_type: str, limit_w: float | None) -> float | None:
        """Draw to expect of each of its GPUs, were it on this type; limit_w None or 0: the limit is not known."""
        drawn = self.power_w.get(gpu_type)
        if not limit_w or not self.share.runs:
            return drawn.total / drawn.weight if drawn else None
        usual_w = limit_w * self.share.shrunk(PRIOR_SHARE)
        return drawn.shrunk(usual_w) if drawn else usual_w
