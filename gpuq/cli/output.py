"""Standard output and error: the only place that writes to them. Imports errors and units.

One thing to know: data goes to standard output; notes, warnings and progress to standard error. With --json
standard output holds exactly one document, also when something failed.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from gpuq.units import iso_time

SCHEMA = 1


def write(text: str) -> None:
    """One line (or several) of data."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def write_lines(lines: list[str]) -> None:
    """All lines in one write."""
    if lines:
        sys.stdout.write("\n".join(lines) + "\n")


def note(text: str) -> None:
    """A remark for the person, on standard error."""
    sys.stdout.flush()
    sys.stderr.write(f"gpuq: {text}\n")
    sys.stderr.flush()


def write_json(document: dict[str, Any]) -> None:
    """The one JSON document of this call; moments (`*_at`) become ISO 8601 with offset."""
    import json

    document = {"schema": SCHEMA, **{name: value for name, value in document.items() if name != "schema"}}
    sys.stdout.write(json.dumps(_with_iso_times(document), ensure_ascii=False, indent=2) + "\n")


def _with_iso_times(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _with_iso_times(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_iso_times(item, name) for item in value]
    if (name.endswith("_at") or name == "at") and isinstance(value, (int, float)) and not isinstance(value, bool):
        return iso_time(value)
    return value


def say_changed(as_json: bool, quiet: bool, done: str, ids: list[str], answer: dict[str, Any]) -> None:
    """What became of jobs: the answer as JSON, or one line naming them; the daemon's notes either way."""
    for text in answer.get("notes", ()):
        note(text)
    if as_json:
        write_json(answer)
    elif not quiet and ids:
        shown = ", ".join(ids[:10]) + (f" and {len(ids) - 10} more" if len(ids) > 10 else "")
        write(f"{done} job {shown}" if len(ids) == 1 else f"{done} {len(ids)} jobs: {shown}")


def on_terminal() -> bool:
    """Whether a person looks at standard output."""
    return sys.stdout.isatty()


def coloured() -> bool:
    """Whether colour and drawing are welcome: NO_COLOR and TERM=dumb say no, FORCE_COLOR says yes."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return on_terminal() and os.environ.get("TERM", "") not in ("", "dumb")


def width() -> int:
    """Columns of the terminal: COLUMNS if set, else what the terminal says, else 80."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        return 80


def confirmed(question: str) -> bool:
    """Ask a yes-or-no question; without a terminal the answer is no."""
    if not sys.stdin.isatty():
        return False
    sys.stdout.flush()
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
