"""The agent's own child processes: starting them, and the agent's end of the forker.

May import: frames. One thing to know: children are started by exec, so they hold nothing of the agent but what
is passed; both end by themselves when the agent's end of their input closes.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import List, Optional

from .frames import note

PROGRAM = os.path.abspath(sys.argv[0])


def command(verb: str, *arguments: str, isolated: bool = True) -> List[str]:
    """Command line of a verb of this agent; `isolated` leaves the site packages out."""
    options = ["-S", "-E"] if isolated else ["-E"]
    return [sys.executable, *options, PROGRAM, verb, *arguments]


class Forker:
    """The forker process, started again when it is found dead."""

    def __init__(self, spool_path: str) -> None:
        self._spool_path = spool_path
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._socket: Optional[socket.socket] = None
        self._rest = b""
        self.start()

    def start(self) -> None:
        """Start the process; raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                command("forker", self._spool_path),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        ours.setblocking(False)
        self._socket, self._rest = ours, b""

    @property
    def descriptor(self) -> int:
        """The socket to wait on; -1 while there is none."""
        return self._socket.fileno() if self._socket is not None else -1

    def request(self, attempt: str) -> bool:
        """Ask for a shim; False when the forker is dead or does not read: ask again later."""
        if self._socket is None:
            return False
        line = attempt.encode("ascii") + b"\n"
        try:
            return self._socket.send(line) == len(line)
        except OSError:
            return False

    def ended(self) -> List[str]:
        """Attempts whose shims have ended; notices a dead forker, whose socket is then closed."""
        if self._socket is None:
            return []
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.close()
            note("the forker has ended; another one is started.")
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode("ascii", "replace") for line in lines]

    def revive(self) -> bool:
        """Start another process if there is none; True when one was started."""
        if self._socket is not None:
            return False
        try:
            self.start()
        except OSError as error:
            note(f"the forker cannot be started ({error.strerror}); it is tried again.")
            return False
        return True

    def close(self) -> None:
        """End the process by closing its input."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.poll()
