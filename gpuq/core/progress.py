"""What a job's own reports of its progress say about the time it still needs. Imports nothing of gpuq.

A report is (steady_s, fraction done); an attempt keeps the newest few, oldest first. The speed is the slope over
them, so what a job does before its first report does not count; with a single one it is that since the start.

One thing to know: a fraction that falls begins anew, and a job that falls silent is given more and more time.
"""

from __future__ import annotations

from typing import Final

Reports = tuple[tuple[float, float], ...]

KEPT_REPORTS: Final = 8
STEP: Final = 0.01  # a smaller change is news only after QUIET_S
STEP_S: Final = 1.0  # two reports are at least so far apart
QUIET_S: Final = 10.0


def is_fraction(value: float) -> bool:
    """Whether a value is a share of the work: from 0 to 1, and a number at all."""
    return 0.0 <= value <= 1.0


def is_news(reports: Reports, steady_s: float, fraction: float) -> bool:
    """Whether a report is worth keeping beside those there are: bounds what a chatty job costs."""
    if not reports:
        return True
    last_s, last = reports[-1]
    changed, passed_s = abs(fraction - last), steady_s - last_s
    return changed > 0.0 and (passed_s >= QUIET_S or (changed >= STEP - 1e-9 and passed_s >= STEP_S))


def with_report(reports: Reports, steady_s: float, fraction: float) -> Reports:
    """The reports with one more."""
    if reports and fraction < reports[-1][1]:
        reports = ()
    return (*reports[-KEPT_REPORTS + 1 :], (steady_s, fraction))


def measured_left_s(reports: Reports, started_s: float, now_s: float) -> float | None:
    """The time a job still needs [s] by its own reports; None while they say nothing."""
    if not reports:
        return None
    (first_s, first), (last_s, last) = reports[0], reports[-1]
    if len(reports) == 1:
        first_s, first = started_s, 0.0
    if last <= first or last_s <= first_s:
        return None
    silent_s = max(0.0, now_s - last_s)
    open_ = 1.0 - last
    return max(open_ * (last_s - first_s) / (last - first) - silent_s, open_ * silent_s)
