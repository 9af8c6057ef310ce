"""The forker: a small process that has imported the shim once, and keeps a few free shims at hand.

May import: shim and what it needs. One thing to know: it ends at end of its input and its shims go on; it tells
the agent when a shim has ended or become free, which only makes the agent look at the spool.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
from typing import Dict, List, NamedTuple, NoReturn, Optional

from . import shim, spool
from .failpoints import reach

FREE_SHIMS = 16
IDLE_MS = 30_000


class _Shim(NamedTuple):
    pid: int
    line: socket.socket


def run_forker(spool_path: str) -> int:
    """Serve requests on stdin, a socket: each line is an attempt's id. Returns at end of input."""
    _leave_nothing_to_inherit()
    forker = _Forker(spool_path, socket.socket(fileno=os.dup(0)))
    gc.freeze()
    forker.keep_one_free()
    while forker.serve_once():
        pass
    return 0


def _leave_nothing_to_inherit() -> None:
    """No descriptor, ignored or blocked signal may reach a job. Exec resets handlers but keeps ignored signals."""
    os.chdir("/")
    os.umask(0o077)
    for name in os.listdir("/proc/self/fd"):
        try:
            os.set_inheritable(int(name), int(name) <= 2)
        except OSError:
            pass  # the listing's own descriptor
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    ignored = [number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN]
    guarded = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    for number in {*ignored, *guarded, signal.SIGPIPE, signal.SIGCHLD}:
        signal.signal(number, _nothing)


def _nothing(number: int, frame: object) -> None:
    """Handle a signal by doing nothing: the forker ends by its input, a shim with its attempt."""


class _Forker:
    """Shims by their line's descriptor: free ones, and busy ones with their attempt."""

    def __init__(self, spool_path: str, requests: socket.socket) -> None:
        self._spool_path = spool_path
        self._requests = requests
        self._rest = b""
        self._shims: Dict[int, _Shim] = {}
        self._free: List[int] = []
        self._busy: Dict[int, str] = {}
        self._unreaped: List[int] = []
        self._poll = select.poll()
        self._poll.register(requests, select.POLLIN)

    def serve_once(self) -> bool:
        """Wait for something and see to it; False at end of input."""
        timeout_ms = IDLE_MS if self._unreaped or len(self._free) > 1 else None
        ready = [descriptor for descriptor, _ in self._poll.poll(timeout_ms)]
        self._reap()
        if not ready:
            self._dismiss(keep=1)
        ended = [self._hear(descriptor) for descriptor in ready if descriptor in self._shims]
        self._report([attempt for attempt in ended if attempt])
        if self._requests.fileno() not in ready:
            return True
        try:
            data = self._requests.recv(65536)
        except OSError:
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            attempt = line.decode("ascii", "replace")
            if spool.is_attempt(attempt):
                self._hand_out(attempt)
        return bool(data)

    def keep_one_free(self) -> None:
        """Fork a shim ahead of need."""
        if not self._free:
            self._fork()

    def _hand_out(self, attempt: str) -> None:
        """Give an attempt to a free shim, or to a new one."""
        while self._free or self._fork():
            descriptor = self._free.pop()
            try:
                self._shims[descriptor].line.send(attempt.encode("ascii"))
            except OSError:
                self._bury(descriptor)
                continue
            self._busy[descriptor] = attempt
            return

    def _hear(self, descriptor: int) -> Optional[str]:
        """A shim is free or dead; returns the attempt it had."""
        try:
            data = self._shims[descriptor].line.recv(64)
        except OSError:
            data = b""
        attempt = self._busy.pop(descriptor, None)
        if not data:
            self._bury(descriptor)
        else:
            self._free.append(descriptor)
            self._dismiss(keep=FREE_SHIMS)
        return attempt

    def _bury(self, descriptor: int) -> None:
        """Forget a shim whose line has ended; its process is ending, or will when it is no longer stopped."""
        self._poll.unregister(descriptor)
        gone = self._shims.pop(descriptor)
        self._free = [item for item in self._free if item != descriptor]
        gone.line.close()
        self._unreaped.append(gone.pid)

    def _reap(self) -> None:
        self._unreaped = [pid for pid in self._unreaped if os.waitpid(pid, os.WNOHANG)[0] == 0]

    def _dismiss(self, keep: int) -> None:
        while len(self._free) > keep:
            self._bury(self._free[0])

    def _report(self, attempts: List[str]) -> None:
        if attempts:
            try:
                self._requests.sendall("".join(f"{attempt}\n" for attempt in attempts).encode("ascii"))
            except OSError:
                pass  # the agent is gone: end of input follows

    def _fork(self) -> bool:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            reach("forker.before_fork")
            pid = os.fork()
        except OSError as error:
            ours.close()
            theirs.close()
            sys.stderr.write(f"gpuq forker: no process for a shim ({error.strerror}); it is tried again.\n")
            return False
        if pid == 0:
            _become_shim(self._spool_path, theirs)
        theirs.close()
        self._shims[ours.fileno()] = _Shim(pid, ours)
        self._free.append(ours.fileno())
        self._poll.register(ours, select.POLLIN)
        return True


def _become_shim(spool_path: str, line: socket.socket) -> NoReturn:
    """In the child: cut every tie to the agent but the line to the forker, then guard attempts."""
    try:
        os.setsid()
        null = os.open("/dev/null", os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        for descriptor in [int(name) for name in os.listdir("/proc/self/fd")]:
            if descriptor > 2 and descriptor != line.fileno():
                try:
                    os.close(descriptor)
                except OSError:
                    pass  # the listing's own descriptor
        reach("forker.after_fork")
    except OSError:
        os._exit(1)
    shim.serve_attempts(spool_path, line)
