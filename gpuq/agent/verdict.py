"""What the spool says about an attempt. Owns the phases of the protocol and how each is told from files and locks.

May import: containment, failpoints, linux, progress, spool. One thing to know: nothing here has a memory; after
any crash the same files give the same answer.
"""

from __future__ import annotations

import enum
import os
from typing import Any, Dict, List, NamedTuple, Optional

from . import containment, linux, progress, spool
from .failpoints import mutant


class Phase(str, enum.Enum):
    """Phases of an attempt, as in the protocol."""

    ABSENT = "absent"
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"
    LOST = "lost"
    FENCED = "fenced"


LIVE = (Phase.STARTING, Phase.RUNNING, Phase.ENDING)
OVER = (Phase.ENDED, Phase.LOST, Phase.FENCED)


class Verdict(NamedTuple):
    """A phase, its fields for the `attempt` frame, and the claim it rests on.

    `LOST` and `FENCED` here speak of the shim only: whoever asks must see to it that nothing of the attempt lives.
    """

    phase: Phase
    fields: Dict[str, Any]
    claim: Optional[Dict[str, Any]] = None

    def frame(self, attempt: str) -> Dict[str, Any]:
        """The `attempt` frame."""
        return {"type": "attempt", "attempt": attempt, "phase": self.phase.value, **self.fields}


def verdict(directory: str) -> Verdict:
    """Read an attempt's directory."""
    claim: Dict[str, Any] = {}
    for _ in range(2):
        record = spool.read_json(directory, spool.EXIT)
        if record is not None:
            return Verdict(Phase.ENDED, {name: record[name] for name in record if name != "attempt"})
        if not os.path.lexists(os.path.join(directory, spool.CLAIM)):
            exists = os.path.exists(os.path.join(directory, spool.SPEC))
            return Verdict(Phase.STARTING if exists else Phase.ABSENT, {})
        claim = spool.read_json(directory, spool.CLAIM) or {}  # a damaged claim is still a claim
        if claim.get("fenced"):
            return Verdict(Phase.FENCED, {}, claim)
        if spool.is_locked(directory):
            return _alive(directory, claim)
        # The lock may have been freed just after a record was written: then the second look finds it.
    if mutant("unknown-is-zero"):
        return Verdict(Phase.ENDED, {"status": "exited", "exit_code": 0})
    return Verdict(Phase.LOST, {"error": _lost_error(claim), "rebooted": rebooted(claim)}, claim)


def _alive(directory: str, claim: Dict[str, Any]) -> Verdict:
    marker = spool.read_json(directory, spool.ENDING)
    if marker is not None:
        return Verdict(Phase.ENDING, {"started_at": claim.get("started_at"), **marker}, claim)
    stop = spool.read_json(directory, spool.STOP) or {}
    fields = {
        "started_at": claim.get("started_at"),
        "shim_pid": claim.get("shim_pid"),
        "stopping": stop.get("reason"),
    }
    done = progress.fraction(directory)
    if done is not None:
        fields["progress"] = done
    return Verdict(Phase.RUNNING, fields, claim)


def leftovers_frame(attempt: str, found: Verdict, directory: str, unkillable: List[int]) -> Dict[str, Any]:
    """The frame of an attempt whose shim is dead and whose processes are not."""
    marker = spool.read_json(directory, spool.ENDING) or {}
    fields = {
        "started_at": (found.claim or {}).get("started_at"),
        "exit_code": marker.get("exit_code"),
        "signal": marker.get("signal"),
        "stopping": marker.get("stopping"),
        "unkillable": unkillable,
    }
    return Verdict(Phase.ENDING, fields).frame(attempt)


def rebooted(claim: Dict[str, Any]) -> bool:
    """Whether this machine, or this container, was started again since the claim."""
    if not claim.get("boot_id"):
        return False
    return claim["boot_id"] != linux.boot_id() or claim.get("pid1_start_ticks") != linux.start_ticks(1)


def _lost_error(claim: Dict[str, Any]) -> str:
    if rebooted(claim):
        return "The node was started again while the job ran, so its exit status is unknown."
    return "The process that guarded the job was killed, so the job was ended and its exit status is unknown."


def shim_is_stopped(claim: Dict[str, Any]) -> bool:
    """Whether the living shim of a claim is in the stopped state."""
    try:
        text = linux.read_text(f"/proc/{int(claim['shim_pid'])}/stat")
    except (OSError, KeyError, TypeError, ValueError):
        return False
    return text[text.rindex(")") + 2] in "Tt"


def enclosure_of(claim: Dict[str, Any], attempt: str) -> containment.Enclosure:
    """The cgroup directories that a claim names."""
    return containment.Enclosure(containment.from_json(claim.get("containment")), attempt)
