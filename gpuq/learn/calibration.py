"""What a predicted run time is worth, learnt from how earlier predictions came out. Imports nothing of gpuq.

A long prediction is more often too long than too short when long jobs are rare. So a run time p behind a prediction
e is taken to be distributed as

    P(p | e)  ~  (how often run times like p occurred) x (how often a prediction was off by p / e)

on a logarithmic grid, both counted from jobs that have ended and smoothed over neighbouring cells. From it comes the
effective time left of a job that has done `done_s`:

    min over d of  E[min(S - done, d) | S > done] / P(S - done <= d | S > done)

the reciprocal of the Gittins index (Gittins, 1979): running the job of the least effective time first is optimal for
the mean on one machine when run times are known by distribution only.

One thing to know: horizons d that end less than a third of the cases are left out. A grid cannot tell such a chance
from its own rounding, and every one of them would be a reason to stop somebody.
"""

from __future__ import annotations

from math import exp, log2
from typing import Final

CELLS_PER_DOUBLING: Final = 2
CELLS: Final = 56  # up to 2^28 s, eight years
LEAST_CHANCE: Final = 0.35  # of ending within the horizon
_PRIOR_RUNS: Final = 0.5  # per cell: any run time may occur
_PRIOR_ERRORS: Final = 10.0  # jobs' worth of belief in an error of about a factor of three
_PRIOR_SPREAD: Final = 1.5  # doublings
_REBUILD_GROWTH: Final = 1.1


class Calibration:
    """Counts of run times and of prediction errors, and what follows from them."""

    def __init__(self) -> None:
        self._runs = [_PRIOR_RUNS] * CELLS
        bell = [exp(-0.5 * (step / CELLS_PER_DOUBLING / _PRIOR_SPREAD) ** 2) for step in range(-CELLS, CELLS + 1)]
        self._errors = [_PRIOR_ERRORS * each / sum(bell) + 1e-3 for each in bell]
        self._centres_s = [float(2.0 ** ((cell + 0.5) / CELLS_PER_DOUBLING)) for cell in range(CELLS)]
        self.ended = 0
        self._refresh()

    def add(self, predicted_s: float, run_s: float) -> None:
        """A job that was predicted to run `predicted_s` has ended after `run_s`."""
        self.ended += 1
        run, predicted = _cell(run_s), _cell(predicted_s)
        self._runs[run] += 1.0
        self._errors[run - predicted + CELLS] += 1.0
        if self.ended >= self._refresh_at:
            self._refresh()

    def effective_left_s(self, predicted_s: float, done_s: float) -> float:
        """The reciprocal Gittins index of a job predicted to run `predicted_s` that has done `done_s` [s]."""
        key = (_cell(predicted_s), int(4 * log2(max(done_s, 1.0))))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._effective_left_s(key[0], predicted_s, done_s)
        return known

    def _refresh(self) -> None:
        self._refresh_at = int(self.ended * _REBUILD_GROWTH) + 10
        self._known: dict[tuple[int, int], float] = {}
        self._likely: dict[int, list[float]] = {}
        self._smooth_runs = _smoothed(self._runs)
        self._smooth_errors = _smoothed(self._errors)

    def _chances(self, predicted: int) -> list[float]:
        """P(p | e) per cell of p, for one cell of e."""
        known = self._likely.get(predicted)
        if known is None:
            raw = [self._smooth_runs[run] * self._smooth_errors[run - predicted + CELLS] for run in range(CELLS)]
            total = sum(raw)
            known = self._likely[predicted] = [each / total for each in raw]
        return known

    def _effective_left_s(self, predicted: int, predicted_s: float, done_s: float) -> float:
        chances = self._chances(predicted)
        cases = [(c - done_s, p) for c, p in zip(self._centres_s, chances, strict=True) if c > done_s]
        total = sum(chance for _, chance in cases)
        if total < 1e-4:  # it outlived all that is known: as long again, as for a heavy tail
            return max(done_s, predicted_s)
        best_s: float = cases[-1][0]
        ended = spent_s = 0.0
        for left_s, chance in cases:
            ended += chance / total
            spent_s += chance / total * left_s
            if ended >= LEAST_CHANCE:
                best_s = min(best_s, (spent_s + (1.0 - ended) * left_s) / ended)
        return best_s


def _cell(seconds: float) -> int:
    return max(0, min(CELLS - 1, int(log2(max(seconds, 1.0)) * CELLS_PER_DOUBLING)))


def _smoothed(counts: list[float]) -> list[float]:
    """Each cell with half of its own and a quarter of each neighbour's count."""
    padded = [0.0, *counts, 0.0]
    return [0.25 * padded[at] + 0.5 * padded[at + 1] + 0.25 * padded[at + 2] for at in range(len(counts))]
