"""Named points at which tests make the agent, the forker or a shim fail, and the planted mutants. Owns their syntax.

May import: the standard library. One thing to know: without GPUQ_FAILPOINTS a point costs one truth test;
the variable is read once at import, and forked shims inherit what was read.

Syntax: `point=action[:argument][@N]`, joined by commas. Actions: `kill` (SIGKILL to itself), `exit`
(`_exit(3)`), `delay:MILLISECONDS`, `enospc`, `eio`. `@N` fires at the N-th hit only. With GPUQ_FAILPOINTS_DIR
hits are counted over all processes by files in that directory, and a fault fires once, marked by `<dir>/<point>`.
Points whose first word is none of ours belong to the daemon, which reads the same variable.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from typing import Dict, NamedTuple

ALL = (
    "agent.before_mkdir",
    "agent.after_mkdir",
    "agent.after_spec",
    "agent.before_fork_request",
    "agent.before_report_ended",
    "agent.before_release",
    "agent.after_release",
    "forker.before_fork",
    "forker.after_fork",
    "shim.before_claim",
    "shim.after_claim",
    "shim.after_fork",
    "shim.before_exec",
    "shim.after_exec",
    "shim.after_main_exit",
    "shim.before_term",
    "shim.before_kill",
    "shim.before_exit_record",
    "shim.after_exit_record",
)

_OURS = {point.partition(".")[0] for point in ALL}  # the daemon reads the same variable for its own points
ACTIONS = ("kill", "exit", "delay", "enospc", "eio")


class Fault(NamedTuple):
    """What happens at a point, at which hit (0: at every one)."""

    action: str
    argument: str
    hit: int


def parse(text: str) -> Dict[str, Fault]:
    """Read the value of GPUQ_FAILPOINTS; raises ValueError that names the bad part."""
    faults: Dict[str, Fault] = {}
    ours = {point.partition(".")[0] for point in ALL}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        point, separator, rest = part.partition("=")
        if point.partition(".")[0] not in ours:
            continue
        rest, at, hit = rest.partition("@")
        action, _, argument = rest.partition(":")
        if point.partition(".")[0] not in _OURS:
            continue
        if not separator or point not in ALL or action not in ACTIONS or (at and not hit.isdigit()):
            raise ValueError(f"GPUQ_FAILPOINTS: {part!r} is not `point=action[:argument][@N]` with a known point.")
        faults[point] = Fault(action, argument, int(hit) if at else 0)
    return faults


def _due(point: str, fault: Fault) -> bool:
    """Count this hit and tell whether the fault fires now."""
    if not _DIRECTORY:
        _HITS[point] = _HITS.get(point, 0) + 1
        return fault.hit in (0, _HITS[point])
    hit = 1
    while not _created(os.path.join(_DIRECTORY, f"{point}.hit{hit}")):
        hit += 1
    return hit >= fault.hit and _created(os.path.join(_DIRECTORY, point))


def _created(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    return True


def reach(point: str) -> None:
    """Do what GPUQ_FAILPOINTS asks for at this point; nothing when it is not set."""
    fault = _FAULTS.get(point) if _FAULTS else None
    if fault is None or not _due(point, fault):
        return
    if fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.action == "exit":
        os._exit(3)
    elif fault.action == "delay":
        time.sleep(int(fault.argument or "0") / 1000)
    else:
        number = errno.ENOSPC if fault.action == "enospc" else errno.EIO
        raise OSError(number, os.strerror(number), f"failpoint {point}")


def mutant(name: str) -> bool:
    """Whether the fault `name` is planted on purpose, so that a test can prove that it would be found."""
    return name == _MUTANT


_FAULTS = parse(os.environ.get("GPUQ_FAILPOINTS", ""))
_DIRECTORY = os.environ.get("GPUQ_FAILPOINTS_DIR", "")
_MUTANT = os.environ.get("GPUQ_MUTANT", "")
_HITS: Dict[str, int] = {}
