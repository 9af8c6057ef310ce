"""How often reality fell inside the bands that were predicted. Imports nothing of gpuq.

An outcome is a completed job whose run time was predicted when it was placed, as the 5, 25, 50, 75 and 95% quantiles.
Half of the run times should lie between the second and the fourth, nine of ten between the first and the last.

One thing to know: a run time on the edge of a band is inside it; time limits put many there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Outcome(NamedTuple):
    """What was predicted [s, five quantiles] and what came [s]; group: what to count it under, such as (user, name)."""

    group: tuple[str, ...]
    predicted_s: Sequence[float]
    run_s: float


class Coverage(NamedTuple):
    """Of `jobs`, how many lay in the 50% band, in the 90% band, below it and above it."""

    jobs: int = 0
    in_half: int = 0
    in_most: int = 0
    below: int = 0
    above: int = 0

    def share(self, count: int) -> float | None:
        """A count as a share of the jobs; None without any."""
        return count / self.jobs if self.jobs else None


def coverage(outcomes: Iterable[Outcome]) -> Coverage:
    """The counts over all outcomes."""
    found = Coverage()
    for _, predicted_s, run_s in outcomes:
        lowest_s, low_s, _, high_s, highest_s = predicted_s
        found = Coverage(
            found.jobs + 1,
            found.in_half + (low_s <= run_s <= high_s),
            found.in_most + (lowest_s <= run_s <= highest_s),
            found.below + (run_s < lowest_s),
            found.above + (run_s > highest_s),
        )
    return found


def by_group(outcomes: Iterable[Outcome]) -> list[tuple[tuple[str, ...], Coverage]]:
    """The counts of each group, those with most jobs first."""
    groups: dict[tuple[str, ...], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.group, []).append(outcome)
    counted = [(group, coverage(members)) for group, members in groups.items()]
    return sorted(counted, key=lambda pair: (-pair[1].jobs, pair[0]))
