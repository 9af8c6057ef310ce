"""Job ids as people write them, and filters on jobs. Imports errors and options.

One thing to know: ranges are written out here (`1,3-5`, `12_[0-3]`), while `last` and `@` are left to the daemon,
which knows the caller's newest job.
"""

from __future__ import annotations

import re
from typing import Any, Final

from gpuq.cli.options import Values
from gpuq.errors import UsageError

MOST_IDS: Final = 100_000
_JOB: Final = re.compile(r"\d+(?:_\d+)?|last|@")
_RANGE: Final = re.compile(r"(\d+)-(\d+)(?::(\d+))?")
_TASKS: Final = re.compile(r"(\d+)_\[([0-9,:-]+)(?:%\d+)?\]")
_APART: Final = re.compile(r",(?![^\[]*\])")  # a comma that is not between brackets
_HINT: Final = "Write 12, 1,3-5, 12_3, 12_[0-3] or last."


def expanded_ids(words: list[str]) -> list[str]:
    """The job ids that `words` name, each once, in order; raises UsageError."""
    ids: dict[str, None] = {}
    for word in words:
        for part in _APART.split(word):
            for identity in _ids_of(part.strip()):
                ids[identity] = None
        if len(ids) > MOST_IDS:
            raise UsageError(f"'{word}' names more than {MOST_IDS} jobs.", "Use filters such as --me or --state.")
    return list(ids)


def one_id(words: list[str]) -> str:
    """The single job id that `words` name; raises UsageError when there are more."""
    ids = expanded_ids(words)
    if len(ids) != 1:
        raise UsageError(f"This takes one job, not {len(ids)}: {', '.join(ids[:5])}.", "Name one id.")
    return ids[0]


def _ids_of(part: str) -> list[str]:
    if _JOB.fullmatch(part):
        return [part]
    tasks = _TASKS.fullmatch(part)
    if tasks:
        return [f"{tasks[1]}_{index}" for index in index_list(tasks[2], part)]
    if _RANGE.fullmatch(part):
        return [str(number) for number in index_list(part, part)]
    raise UsageError(f"'{part}' is not a job id.", _HINT)


def index_list(text: str, whole: str) -> list[int]:
    """The numbers in `1,3-5,10-20:5`, sorted and each once; `whole` is what the error quotes."""
    found: set[int] = set()
    for part in text.split(","):
        span = _RANGE.fullmatch(part)
        if span:
            first, last, step = int(span[1]), int(span[2]), int(span[3] or 1)
            if last < first or step < 1:
                raise UsageError(f"'{part}' in '{whole}' is not a range: it must rise.", "Write FIRST-LAST[:STEP].")
            if (last - first) // step >= MOST_IDS:
                raise UsageError(f"'{part}' in '{whole}' is more than {MOST_IDS} numbers.")
            found.update(range(first, last + 1, step))
        elif part.isdigit():
            found.add(int(part))
        else:
            raise UsageError(f"'{part}' in '{whole}' is not a number or a range.", "Write 0-31, 1,3,5 or 0-31:2.")
    return sorted(found)


def has_filters(values: Values) -> bool:
    """Whether -u, --me, -t, -n or -w was given."""
    return any(values.text(name) for name in ("user", "states", "name", "nodelist")) or values.flag("me")


def filters(values: Values) -> dict[str, Any]:
    """The query of GET /v1/jobs for the filters in `values`; state names are checked here."""
    query: dict[str, Any] = {name: values.text(name) for name in ("user", "name")}
    query["node"] = values.text("nodelist")
    if values.flag("me"):
        query["user"] = own_name()
    if values.text("states"):
        query["states"] = states(values.text("states") or "")
    return {name: value for name, value in query.items() if value}


def states(text: str) -> str:
    """The states named by words or codes, as the daemon takes them; raises UsageError with the list."""
    from gpuq.core.states import JobState, parse_state

    if text.strip().lower() == "all":
        return ",".join(state.value for state in JobState)
    return ",".join(dict.fromkeys(parse_state(word).value for word in text.split(",") if word.strip()))


def own_name() -> str:
    """The caller's user name, or the number when the system has no name for it."""
    import os
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
