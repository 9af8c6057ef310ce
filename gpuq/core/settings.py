"""What may be changed in a running daemon, and what becomes of the weights then. Imports impact, model, units.

A Knob is a key such as "impact.energy": its range, and the field of Weights it fills, if any. What people set is kept
in the state, over what gpuq.toml says.

One thing to know: a key is read here as gpuq.toml reads it, so a duration without a unit is minutes in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from math import isfinite
from typing import Final, NamedTuple

from msgspec.structs import replace

from gpuq.core.impact import Weights
from gpuq.core.model import Setting
from gpuq.errors import GpuqError, NotFound, UsageError
from gpuq.units import duration_s


class Knob(NamedTuple):
    """A key that may be changed while the daemon runs."""

    key: str
    low: float
    high: float
    is_duration: bool = False  # then all values are seconds
    weight: str = ""  # field of Weights

    def allows(self, value: float) -> bool:
        """Whether a value is in range."""
        return isfinite(value) and self.low <= value <= self.high

    @property
    def range(self) -> str:
        """What may be written, for people: "a number from 0 to 1000"."""
        if self.is_duration:
            return f"a duration from {self.low:g} s to {self.high:g} s"
        return f"a number from {self.low:g} to {self.high:g}"


_COST: Final = 1000.0  # a cost above a thousand completions decides everything anyway
KNOBS: Final[dict[str, Knob]] = {
    knob.key: knob
    for knob in (
        Knob("impact.age", 0.0, 100.0, weight="age"),
        Knob("impact.balance", 0.0, 10.0, weight="balance"),
        Knob("impact.deadline", 0.0, 100.0, weight="deadline"),
        Knob("impact.energy", 0.0, _COST, weight="energy"),
        Knob("impact.fragmentation", 0.0, _COST, weight="fragmentation"),
        Knob("impact.interference", 0.0, _COST, weight="interference"),
        Knob("impact.restart", 0.0, _COST, weight="restart"),
        Knob("planner.budget", 0.0, 60.0, is_duration=True),
        Knob("planner.every", 1.0, 86400.0, is_duration=True),
        Knob("planner.min_gap", 0.0, 3600.0, is_duration=True),
        Knob("planner.default_runtime", 1.0, 31 * 86400.0, is_duration=True, weight="default_run_s"),
    )
}


def knob(key: str) -> Knob:
    """The knob of a key; raises NotFound naming the nearest."""
    found = KNOBS.get(key)
    if found is None:
        near = get_close_matches(key, KNOBS, 1)
        hint = f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(KNOBS)}."
        raise NotFound(f"'{key}' is not a setting that can be changed while the daemon runs.", hint)
    return found


def read(key: str, value: object) -> float:
    """The value of a key as typed or as JSON (s for durations); raises NotFound, or UsageError with key and range."""
    known = knob(key)
    number: float | None = None
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            number = duration_s(str(value)) if known.is_duration else float(value)
        except (ValueError, OverflowError, GpuqError):
            number = None
    if number is None or not known.allows(number):
        raise UsageError(f"{key} must be {known.range}, not '{value}'.")
    return number


def weights_with(base: Weights, settings: Mapping[str, Setting]) -> Weights:
    """The weights of gpuq.toml with what people set since."""
    changed = {KNOBS[key].weight: each.value for key, each in settings.items() if key in KNOBS and KNOBS[key].weight}
    return replace(base, **changed) if changed else base
