"""What is typed after `gpuq simulate`, read and checked. Imports options and units.

One thing to know: every refusal names the option, what was typed, and a value that would do.
"""

from __future__ import annotations

from typing import Final

from gpuq.cli.options import Values
from gpuq.cli.requests import choice
from gpuq.errors import UsageError
from gpuq.units import duration_s

PREDICTIONS: Final = ("helios", "perfect", "learnt")


def names(text: str) -> list[str]:
    """The names between commas, each once."""
    found = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not found:
        raise UsageError("--policy names no policy.", "Write for example --policy index,easy.")
    return found


def number(values: Values, option: str, most: int, default: int) -> int:
    """A whole number from 1 to `most`."""
    text = values.text(option)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= most:
        flag = "--" + option.replace("_", "-")
        raise UsageError(f"{flag} {text} is not a whole number from 1 to {most}.", f"Write for example {flag} 5.")
    return int(text)


def load(values: Values) -> float | None:
    """Share of the GPU time that is asked for; None: as the trace has it."""
    text = values.text("load")
    if text is None:
        return None
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0.01 <= found <= 10:
        raise UsageError(f"--load {text} is not a number from 0.01 to 10.", "Write for example --load 0.8.")
    return found


def preemptible(values: Values) -> float | None:
    """Share of the jobs that may be stopped; None: as the trace says. --fixed is 0."""
    text = values.text("preemptible")
    if values.flag("fixed"):
        if text is not None:
            raise UsageError("--fixed says that no job may be stopped.", "Leave out --fixed or --preemptible.")
        return 0.0
    if text is None:
        return None
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 1:
        raise UsageError(f"--preemptible {text} is not a number from 0 to 1.", "Write for example --preemptible 0.5.")
    return found


def restart_s(values: Values) -> float:
    """What a stopped job loses when it runs again [s]."""
    text = values.text("restart")
    return 60.0 if text is None else duration_s(text, "restart cost")


def predictions(values: Values) -> str:
    """Which prediction errors policies get."""
    return choice("--predictions", values.text("predictions") or PREDICTIONS[0], PREDICTIONS)
