"""Places where a test can make the daemon die, wait or fail, and the planted mutants. Imports the standard library.

GPUQ_FAILPOINTS, read once when this module is imported, is a comma-separated list of NAME=ACTION or
NAME=ACTION@N (only the N-th time the place is reached). Actions: `kill` (SIGKILL to itself), `exit` (at once,
no clean-up), `delay:MS`, `enospc` and `eio` (raise that OSError). With GPUQ_FAILPOINTS_DIR set, a place fires once for
all processes that share the directory, and leaves a file of its name there as evidence.

One thing to know: names whose first word is not one of ours belong to the agent, which reads the same variable.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from typing import Final, NamedTuple

from gpuq.errors import UsageError

ALL: Final = (
    "journal.before_commit",
    "journal.after_commit",
    "journal.before_highwater",
    "journal.after_highwater",
    "journal.before_snapshot",
    "journal.after_snapshot",
    "daemon.after_decide",
    "daemon.before_answer",
    "daemon.before_actions",
    "daemon.before_start",
    "daemon.before_stop",
    "daemon.before_release",
    "daemon.before_report",
)
ACTIONS: Final = ("kill", "exit", "delay", "enospc", "eio")
EXIT_CODE: Final = 70
_ERRNO: Final = {"enospc": errno.ENOSPC, "eio": errno.EIO}


class Failpoint(NamedTuple):
    """What happens at one place; hit 0 means: each time."""

    name: str
    action: str
    delay_s: float = 0.0
    hit: int = 0


def parse_failpoints(text: str) -> dict[str, Failpoint]:
    """The failpoints that `text` names; raises UsageError for a name or an action that does not exist."""
    plan: dict[str, Failpoint] = {}
    ours = {name.partition(".")[0] for name in ALL}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, what = item.partition("=")
        if name.partition(".")[0] not in ours:
            continue
        action, _, hit = what.partition("@")
        kind, _, delay_ms = action.partition(":")
        if name not in ALL:
            raise UsageError(f"GPUQ_FAILPOINTS names '{name}'.", f"Known places: {', '.join(ALL)}.")
        numbers_fit = (not hit or hit.isdecimal()) and (kind == "delay") == delay_ms.isdecimal()
        if kind not in ACTIONS or not numbers_fit:
            raise UsageError(f"GPUQ_FAILPOINTS has '{item}'.", f"Known actions: {', '.join(ACTIONS)} (delay:MS).")
        plan[name] = Failpoint(name, kind, int(delay_ms or 0) / 1000, int(hit or 0))
    return plan


_PLAN: dict[str, Failpoint] = parse_failpoints(os.environ.get("GPUQ_FAILPOINTS", ""))
_DIR: Final = os.environ.get("GPUQ_FAILPOINTS_DIR", "")
_MUTANT: Final = os.environ.get("GPUQ_MUTANT", "")
_hits: dict[str, int] = {}


def reach(name: str) -> None:
    """Say that the place `name` is reached; does nothing unless a test asked for a failure there."""
    if not _PLAN:
        return
    if name not in ALL:
        raise KeyError(f"failpoint {name} is not in failpoints.ALL")
    point = _PLAN.get(name)
    if point is None:
        return
    _hits[name] = _hits.get(name, 0) + 1
    if point.hit in (0, _hits[name]) and _is_first(name):
        _fire(point)


def mutant(name: str) -> bool:
    """Whether the fault `name` is planted on purpose, so that a test can prove that it would be found."""
    return name == _MUTANT


def _is_first(name: str) -> bool:
    if not _DIR:
        return True
    try:
        os.close(os.open(os.path.join(_DIR, name), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    return True


def _fire(point: Failpoint) -> None:
    if point.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif point.action == "exit":
        os._exit(EXIT_CODE)
    elif point.action == "delay":
        time.sleep(point.delay_s)
    else:
        number = _ERRNO[point.action]
        raise OSError(number, os.strerror(number), point.name)
