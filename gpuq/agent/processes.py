"""Processes as /proc shows them: trees, markers, signals that cannot hit a stranger. Owns all walks of /proc.

May import: linux, the package's constants. One thing to know: a pid alone is never signalled. Where the
Python has pidfds, a process is opened first and then found in its tree again, so a reused pid is out of reach.
"""

from __future__ import annotations

import os
import signal
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Set

from . import MARKER, linux

_HAS_PIDFD = hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")
MAXIMUM_SWEEPS = 50


class Process(NamedTuple):
    """One line of /proc/*/stat."""

    pid: int
    parent: int
    group: int
    state: str
    start_ticks: int


def process(pid: int) -> Optional[Process]:
    """What /proc says of a pid; None when there is none."""
    try:
        text = linux.read_text(f"/proc/{pid}/stat")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return Process(pid, int(fields[1]), int(fields[2]), fields[0], int(fields[19]))


def snapshot() -> Dict[int, Process]:
    """All visible processes by pid."""
    found = (process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {item.pid: item for item in found if item is not None}


def descendants(roots: Iterable[int], table: Optional[Dict[int, Process]] = None) -> List[Process]:
    """Living processes below the roots (roots and zombies left out), parents first."""
    table = snapshot() if table is None else table
    children: Dict[int, List[Process]] = {}
    for item in table.values():
        children.setdefault(item.parent, []).append(item)
    found: List[Process] = []
    pending, seen = list(roots), set(roots)
    while pending:
        for item in children.get(pending.pop(0), []):
            if item.pid not in seen:
                seen.add(item.pid)
                pending.append(item.pid)
                found.append(item)
    return [item for item in found if item.state not in "ZX"]


def marker_of(pid: int) -> Optional[str]:
    """The attempt named in a process's start environment; None when there is none or it may not be read."""
    try:
        text = linux.read_text(f"/proc/{pid}/environ")
    except OSError:
        return None
    prefix = MARKER + "="
    for entry in text.split("\0"):
        if entry.startswith(prefix):
            return entry[len(prefix) :]
    return None


def marked(attempt: str) -> List[Process]:
    """Living processes of this user that carry an attempt's marker, and all their descendants."""
    table = snapshot()
    user = os.geteuid()
    roots = []
    for item in table.values():
        if item.state in "ZX" or item.pid == os.getpid():
            continue
        try:
            if os.stat(f"/proc/{item.pid}").st_uid != user:
                continue
        except OSError:
            continue
        if marker_of(item.pid) == attempt:
            roots.append(item)
    below = descendants([item.pid for item in roots], table)
    return list({item.pid: item for item in roots + below}.values())


def send_signal(listing: Callable[[], List[Process]], numbers: Iterable[int], skip: Set[int]) -> Set[int]:
    """Send signals, in order, to every listed process but those in `skip`; returns the pids reached.

    `listing` is called twice: handles are opened on the first answer, and only what the second one
    still lists is signalled, in its order: a parent gets a signal before it can see a child die of it.
    """
    opened: Dict[int, int] = {}
    first = {item.pid: item.start_ticks for item in listing() if item.pid not in skip}
    if not first:
        return set()
    try:
        if _HAS_PIDFD:
            opened = {pid: handle for pid, handle in ((pid, _handle(pid)) for pid in first) if handle >= 0}
        again = [item.pid for item in listing() if first.get(item.pid) == item.start_ticks]
        for number in numbers:
            for pid in again:
                _send(pid, opened.get(pid, -1), number)
        return set(again)
    finally:
        for handle in opened.values():
            os.close(handle)


def _handle(pid: int) -> int:
    try:
        return os.pidfd_open(pid)  # type: ignore[attr-defined, unused-ignore]
    except OSError:
        return -1  # it has ended, or descriptors ran out: then it is signalled by its pid


def _send(pid: int, handle: int, number: int) -> None:
    try:
        if handle >= 0:
            signal.pidfd_send_signal(handle, number)  # type: ignore[attr-defined, unused-ignore]
        else:
            os.kill(pid, number)
    except OSError:
        pass  # it ended by itself, or became another user's (setuid): it stays listed and is tried again


def kill_sweep(listing: Callable[[], List[Process]], shim_pid: int) -> Set[int]:
    """Stop everything listed until nothing new appears, then kill it; returns the pids that were listed.

    Stopping first keeps a fork bomb from growing while it is being counted. `shim_pid` (also of a dead
    shim) leads a group that is spared: a child that has not left it yet is signalled on its own.
    """
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    _set_niceness(-20)  # a bomb takes most of the CPU from whoever counts it
    try:
        return _stop_and_kill(listing, {shim_pid, os.getpgrp()})
    finally:
        _set_niceness(usual)


def _set_niceness(niceness: int) -> None:
    try:
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
    except OSError:
        pass  # only root may hurry


def _stop_and_kill(listing: Callable[[], List[Process]], spared: Set[int]) -> Set[int]:
    stopped: Set[int] = set()
    for _ in range(MAXIMUM_SWEEPS):
        reached = send_signal(listing, (signal.SIGSTOP,), stopped)
        if not reached:
            break
        stopped |= reached
        _signal_groups(listing, stopped, spared, signal.SIGSTOP)
    _signal_groups(listing, stopped, spared, signal.SIGKILL)
    return send_signal(listing, (signal.SIGKILL,), set()) | stopped


def _signal_groups(listing: Callable[[], List[Process]], stopped: Set[int], spared: Set[int], number: int) -> None:
    """Signal whole process groups, which no fork can race.

    A group is one of the attempt's, since the job began with a session of its own. Only groups with a
    stopped member are signalled: it cannot end by itself, so the group's number cannot pass to strangers.
    """
    groups = {item.group for item in listing() if item.pid in stopped and item.state in "Tt"}
    for group in groups - spared:
        try:
            os.killpg(group, number)
        except OSError:
            pass  # its members are signalled one by one too


def owners(pids: Iterable[int], shims: Dict[int, str]) -> Dict[int, str]:
    """Attempt of each pid: by the living shim above it (`shims`: shim pid to attempt), else by its marker."""
    known = set(shims.values())
    found: Dict[int, str] = {}
    for pid in pids:
        attempt = _shim_above(pid, shims)
        if attempt is None:
            marker = marker_of(pid)
            attempt = marker if marker in known else None
        if attempt is not None:
            found[pid] = attempt
    return found


def _shim_above(pid: int, shims: Dict[int, str]) -> Optional[str]:
    seen: Set[int] = set()
    while pid > 1 and pid not in seen:
        if pid in shims:
            return shims[pid]
        seen.add(pid)
        item = process(pid)
        if item is None:
            return None
        pid = item.parent
    return None
