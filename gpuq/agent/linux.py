"""Calls and files of the Linux kernel that Python does not wrap. Owns every use of ctypes in the agent.

May import: the standard library. One thing to know: libc is loaded at import, so that a forked shim loads nothing.
"""

from __future__ import annotations

import ctypes
import os
from typing import List

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
FALLOC_FL_KEEP_SIZE = 1
FALLOC_FL_PUNCH_HOLE = 2

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_FALLOCATE = getattr(_LIBC, "fallocate64", _LIBC.fallocate)
_FALLOCATE.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def set_subreaper() -> None:
    """Make this process the new parent of descendants whose parent dies."""
    _checked(_LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def set_parent_death_signal(number: int) -> None:
    """Have the kernel send a signal to this process when its parent dies."""
    _checked(_LIBC.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0))


def punch_hole(descriptor: int, start: int, length: int) -> None:
    """Free a file's blocks in [start, start + length); it keeps its size and reads as zeros there."""
    _checked(_FALLOCATE(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start, length))


def read_text(path: str) -> str:
    """A small kernel file's text; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts: List[bytes] = []
        while True:
            data = os.read(descriptor, 65536)
            if not data:
                return b"".join(parts).decode("utf-8", "replace")
            parts.append(data)
    finally:
        os.close(descriptor)


def write_text(path: str, text: str) -> None:
    """Write a kernel file in one write; raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode("ascii"))
    finally:
        os.close(descriptor)


def boot_id() -> str:
    """The kernel's identity of this boot; empty when the file is missing."""
    try:
        return read_text("/proc/sys/kernel/random/boot_id").strip()
    except OSError:
        return ""


def start_ticks(pid: int) -> int:
    """Clock ticks from boot to the start of a process; -1 when it is gone."""
    try:
        text = read_text(f"/proc/{pid}/stat")
    except OSError:
        return -1
    return int(text[text.rindex(")") + 2 :].split()[19])


def filesystem_of(path: str) -> str:
    """Type of the file system that holds a path, such as ext4 or nfs4; empty when unknown."""
    real = os.path.realpath(path)
    found, longest = "", -1
    try:
        lines = read_text("/proc/self/mountinfo").splitlines()
    except OSError:
        return ""
    for line in lines:
        left, _, right = line.partition(" - ")
        mount = left.split()[4].replace("\\040", " ")
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= longest:
            found, longest = right.split()[0], len(mount)
    return found
