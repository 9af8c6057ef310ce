"""Measured figures and how they are written. Imports the standard library.

One thing to know: a row keeps every single value; median, extremes, the verdict and the ratio to the peer are worked
out when it is printed, so no table can say anything that was not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from statistics import median
from typing import NamedTuple

PEER = "tsp"


class Unit(Enum):
    """What a value counts; the text follows the number."""

    SECONDS = "s"
    PER_SECOND = "/s"
    MIB = "MiB"
    COUNT = ""


class Limit(NamedTuple):
    """The figure to hold."""

    amount: float
    is_most: bool = True  # False: at least that much; a count must be met exactly


class Row(NamedTuple):
    """One figure: every value measured, of gpuq and of the peer where it has one."""

    what: str
    unit: Unit
    values: tuple[float, ...]
    limit: Limit | None = None
    peer: tuple[float, ...] = ()
    cpu_s: tuple[float, ...] = ()  # user + system time of the measured process, one per value
    note: str = ""

    @property
    def holds(self) -> bool | None:
        """Whether the median keeps to the limit; counts must do so in every try. None: there is none."""
        if self.limit is None or not self.values:
            return None
        if self.unit is Unit.COUNT:
            return all(value == self.limit.amount for value in self.values)
        middle = median(self.values)
        return middle <= self.limit.amount if self.limit.is_most else middle >= self.limit.amount


def amount(value: float, unit: Unit) -> str:
    """A number with its unit, to three digits."""
    if unit is Unit.SECONDS:
        return f"{_digits(value)} s" if value >= 1 or value == 0 else f"{_digits(value * 1000)} ms"
    if unit is Unit.PER_SECOND:
        return f"{value:,.0f} /s"
    if unit is Unit.MIB:
        return f"{_digits(value)} MiB"
    return f"{value:g}"


def _digits(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def spread(values: Sequence[float], unit: Unit) -> str:
    """Median, and the extremes and the number of values when there is more than one."""
    if not values:
        return "–"
    middle = amount(median(values), unit)
    if len(values) == 1:
        return middle
    return f"{middle} ({amount(min(values), unit)} to {amount(max(values), unit)}, n = {len(values)})"


def _limit_text(row: Row) -> str:
    if row.limit is None:
        return "–"
    if row.unit is Unit.COUNT:
        return f"= {amount(row.limit.amount, row.unit)}"
    return f"{'≤' if row.limit.is_most else '≥'} {amount(row.limit.amount, row.unit)}"


def _verdict(row: Row) -> str:
    return {None: "–", True: "yes", False: "NO"}[row.holds]


def _ratio(row: Row) -> str:
    """gpuq's median in units of the peer's."""
    if not row.peer or row.unit is Unit.COUNT or not row.values or median(row.peer) == 0:
        return ""
    return f"{_digits(median(row.values) / median(row.peer))} ×"


def table(rows: Sequence[Row], has_peer: bool) -> list[str]:
    """The rows as a Markdown table, its columns in line."""
    heads: list[tuple[str, Callable[[Row], str]]] = [
        ("what", lambda row: row.what),
        ("gpuq: median (min to max)", lambda row: spread(row.values, row.unit)),
        ("CPU", lambda row: amount(median(row.cpu_s), Unit.SECONDS) if row.cpu_s else ""),
        ("to hold", _limit_text),
        ("holds", _verdict),
    ]
    if has_peer:
        heads += [(PEER, lambda row: spread(row.peer, row.unit)), (f"gpuq / {PEER}", _ratio)]
    if any(row.note for row in rows):
        heads.append(("note", lambda row: row.note))
    lines = [[head for head, _ in heads], *([text(row) for _, text in heads] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    written = ["| " + " | ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)) + " |"
               for line in lines]  # fmt: skip
    return [written[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *written[1:]]
