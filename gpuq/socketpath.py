"""Unix sockets at paths of any length, in directories that are ours alone. Imports errors.

One thing to know: the kernel takes at most 107 bytes of path. A longer one is reached through a descriptor of its
directory (`/proc/self/fd/N/name`), which both sides may do independently of each other; nothing is put into /tmp.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from gpuq.errors import UserError

if TYPE_CHECKING:
    import socket

PATH_LIMIT_BYTES: Final = 107


class SocketAddress:
    """A way to name the socket at `path`; valid while open. Use with `with`; bind or connect to `.name`."""

    def __init__(self, path: str) -> None:
        self._directory: int | None = None
        self.name = path
        if len(os.fsencode(path)) > PATH_LIMIT_BYTES:
            self._directory = os.open(os.path.dirname(path) or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self.name = f"/proc/self/fd/{self._directory}/{os.path.basename(path)}"

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *exc: object) -> None:
        if self._directory is not None:
            os.close(self._directory)
            self._directory = None


def connect_address(path: str) -> SocketAddress:
    """The address to connect to; raises FileNotFoundError like connect() when the directory is not there."""
    return SocketAddress(path)


def bind_address(path: str) -> SocketAddress:
    """The address to bind; makes the directory (0700) and raises UserError when it is not private to us."""
    directory = os.path.dirname(os.path.abspath(path))
    make_private_directory(directory)
    return SocketAddress(path)


def make_private_directory(directory: str) -> None:
    """Make `directory` with mode 0700 if it is missing, then check its owner and mode."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    fault = directory_fault(directory)
    if fault is not None:
        raise UserError(fault, f"Correct it with: chmod 700 {directory}; or set GPUQ_SOCKET to another path.")


def directory_fault(directory: str) -> str | None:
    """Why others could tamper with a socket in `directory`, as a sentence; None when it is private to us."""
    found = os.stat(directory)
    if found.st_uid != os.getuid():
        return f"The socket's directory {directory} belongs to user {found.st_uid}, not to you."
    if stat.S_IMODE(found.st_mode) & 0o022:
        return f"The socket's directory {directory} can be written by others (mode {stat.S_IMODE(found.st_mode):04o})."
    return None


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end of a Unix socket, by the kernel's word."""
    import socket as sockets
    import struct

    answer = connection.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", answer)[1])
