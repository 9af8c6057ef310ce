"""Log files of jobs: opening them safely and keeping them below a limit. Owns the hole in the middle.

May import: linux. One thing to know: a job writes straight to its file, never through a pipe; the limit is kept
by freeing blocks in the middle, so the head and the tail stay readable while the job goes on writing.
"""

from __future__ import annotations

import os
import stat
from typing import Dict, List, NamedTuple, Optional

from . import linux

BLOCK_BYTES = 4096
HEAD_SHARE = 9  # the head keeps one ninth of the limit


class OutputRefused(OSError):
    """An output file that cannot be used; its text is the sentence for the user."""


def open_output(path: bytes, truncate: bool, mode: int) -> int:
    """Open a job's output for appending; regular files and character devices only, never through a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    shown = path.decode("utf-8", "backslashreplace")
    try:
        descriptor = os.open(path, flags, mode)
    except OSError as error:
        raise OutputRefused(f"The output file {shown} cannot be opened ({error.strerror}); give another.") from error
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind) and not stat.S_ISCHR(kind):
        os.close(descriptor)
        raise OutputRefused(f"The output file {shown} is neither a file nor a terminal; give another.")
    if truncate and stat.S_ISREG(kind):
        os.ftruncate(descriptor, 0)
    os.set_blocking(descriptor, True)
    return descriptor


class LogSizes(NamedTuple):
    """Sizes of an attempt's logs in bytes; `log_bytes` is None when no file was kept."""

    log_bytes: Optional[int]
    dropped_bytes: int


class _Log:
    """One capped file: its descriptor and the end of its hole."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.hole_end = 0


class LogCap:
    """Keeps each of an attempt's log files at about `limit_bytes` on disk."""

    def __init__(self, paths: List[bytes], limit_bytes: Optional[int]) -> None:
        self.limit_bytes = limit_bytes
        self._head_bytes = max(BLOCK_BYTES, (limit_bytes or 0) // HEAD_SHARE // BLOCK_BYTES * BLOCK_BYTES)
        self._failed = False
        self._paths = list(dict.fromkeys(paths))
        self._logs: Dict[bytes, _Log] = {}
        self._dropped_before_bytes = 0

    def check(self) -> None:
        """Punch what is over the limit; does nothing without a limit."""
        if self.limit_bytes is not None:
            self._punch_all(self.limit_bytes - self._head_bytes)

    def free_space(self) -> None:
        """On a full disk: keep only a quarter of the tails."""
        if self.limit_bytes is not None:
            self._punch_all((self.limit_bytes - self._head_bytes) // 4)

    def sizes(self) -> LogSizes:
        """Bytes written and bytes dropped so far."""
        total: Optional[int] = None
        for path in self._paths:
            try:
                found = os.stat(path)
            except OSError:
                continue
            if stat.S_ISREG(found.st_mode):
                total = (total or 0) + found.st_size
        dropped = sum(max(0, log.hole_end - self._head_bytes) for log in self._logs.values())
        return LogSizes(total, self._dropped_before_bytes + dropped)

    def _punch_all(self, tail_bytes: int) -> None:
        for path in self._paths:
            log = self._logs.get(path) or self._opened(path)
            if log is not None and not self._failed:
                self._punch(log, tail_bytes)

    def _opened(self, path: bytes) -> Optional[_Log]:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError:
            return None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        self._logs[path] = _Log(descriptor)
        return self._logs[path]

    def _punch(self, log: _Log, tail_bytes: int) -> None:
        size = os.fstat(log.descriptor).st_size
        if size < log.hole_end:  # the job truncated its own log
            self._dropped_before_bytes += log.hole_end - self._head_bytes
            log.hole_end = 0
        start = max(self._head_bytes, log.hole_end)
        end = (size - tail_bytes) // BLOCK_BYTES * BLOCK_BYTES
        if end <= start:
            return
        try:
            linux.punch_hole(log.descriptor, start, end - start)
        except OSError:
            self._failed = True  # a file system without holes: the log is kept whole
            return
        log.hole_end = end
