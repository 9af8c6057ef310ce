"""Talks to the daemon: one HTTP request over its Unix socket. Imports errors, config and socketpath.

One thing to know: the request is HTTP/1.0, written and read here in a page, since the standard library's
http.client brings the mail and TLS packages along and doubles the start-up time of every command. Before anything
is sent, the kernel is asked who listens: it must be this user or root.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from typing import Any, Final

from gpuq.config import Paths, find_paths
from gpuq.errors import DaemonUnreachable, GpuqError, InternalError, from_json
from gpuq.socketpath import connect_address, peer_uid

ANSWER_WITHIN_S: Final = 60.0
RETRY_FOR_S: Final = 10.0
_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~@,")


class ConnectionLost(DaemonUnreachable):
    """The connection broke after the request may have been read."""


class Daemon:
    """The daemon at one socket."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths

    def get(self, path: str, query: Mapping[str, Any] | None = None, timeout_s: float = ANSWER_WITHIN_S) -> Any:
        """The answer to a question; asked again if the connection breaks."""
        wanted = {name: value for name, value in (query or {}).items() if value not in (None, "")}
        return self._repeated("GET", path + _query(wanted), b"", timeout_s)

    def post(self, path: str, body: Mapping[str, Any], repeatable: bool = True) -> Any:
        """The answer to a request. `repeatable`: doing it twice is the same as once (an idempotency key)."""
        content = json.dumps(body).encode()
        if repeatable:
            return self._repeated("POST", path, content, ANSWER_WITHIN_S)
        return self._exchange("POST", path, content, ANSWER_WITHIN_S)

    def answers(self) -> bool:
        """Whether something listens at the socket."""
        try:
            self._connect(5.0).close()
        except DaemonUnreachable:
            return False
        return True

    def _repeated(self, method: str, path: str, content: bytes, timeout_s: float) -> Any:
        stop_at = time.monotonic() + RETRY_FOR_S
        pause_s = 0.05
        lost = False
        while True:
            try:
                return self._exchange(method, path, content, timeout_s)
            except DaemonUnreachable as error:
                lost = lost or isinstance(error, ConnectionLost)
                if not lost or time.monotonic() + pause_s > stop_at:
                    raise
            time.sleep(pause_s)
            pause_s = min(1.0, pause_s * 2)

    def _exchange(self, method: str, path: str, content: bytes, timeout_s: float) -> Any:
        head = f"{method} {path} HTTP/1.0\r\nHost: gpuq\r\n"
        if method == "POST":
            head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        connection = self._connect(timeout_s)
        try:
            connection.sendall(f"{head}\r\n".encode() + content)
            with connection.makefile("rb") as stream:
                status, body = _answer(stream)
        except TimeoutError as error:
            raise DaemonUnreachable(
                f"The daemon at {self.paths.socket} did not answer within {timeout_s:.0f} s.",
                "See whether it is stopped or busy: gpuq daemon status",
            ) from error
        except (OSError, EOFError) as error:
            raise ConnectionLost(
                f"The daemon at {self.paths.socket} closed the connection before it answered.",
                "See whether it still runs: gpuq daemon status",
            ) from error
        finally:
            connection.close()
        return _document(status, body, self.paths)

    def _connect(self, timeout_s: float) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout_s)
        try:
            with connect_address(self.paths.socket) as address:
                connection.connect(address)
        except OSError as error:
            connection.close()
            raise DaemonUnreachable(
                f"No gpuq daemon answers at {self.paths.socket}.", "Start it with: gpuq daemon start"
            ) from error
        owner = peer_uid(connection)
        if owner not in (os.getuid(), 0) and os.getuid() != 0:
            connection.close()
            raise GpuqError(
                f"The socket {self.paths.socket} is served by user {owner}, not by you or root; nothing was sent.",
                "Remove it, or set GPUQ_SOCKET to your own daemon's socket.",
            )
        return connection


def _answer(stream: Any) -> tuple[int, bytes]:
    """Status and body of an HTTP answer; EOFError when it is cut short."""
    words = stream.readline(65537).split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise EOFError
    length = None
    while (line := stream.readline(65537)) not in (b"\r\n", b"\n"):
        if not line:
            raise EOFError
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            length = int(value)
    body = stream.read() if length is None else stream.read(length)
    if length is not None and len(body) < length:
        raise EOFError
    return int(words[1]), body


def _document(status: int, body: bytes, paths: Paths) -> Any:
    try:
        document = json.loads(body)
        failure = document.get("error")
    except (ValueError, AttributeError) as error:
        raise InternalError(
            f"The answer from {paths.socket} is not gpuq's (HTTP status {status}).",
            "Is another program listening there? See: gpuq doctor",
        ) from error
    if failure is not None or status != 200:
        raise from_json(failure or {"message": f"The daemon answered with HTTP status {status}."})
    return document


def connect() -> Daemon:
    """The daemon of this user; the socket is first used by the first request."""
    return Daemon(find_paths())


def ensure_daemon() -> Daemon:
    """The daemon of this user, started in the background if none answers."""
    daemon = connect()
    if not daemon.answers():
        from gpuq.daemon.main import start_in_background

        start_in_background()
    return daemon


def _query(wanted: Mapping[str, Any]) -> str:
    pairs = "&".join(f"{name}={quoted(str(value))}" for name, value in wanted.items())
    return f"?{pairs}" if pairs else ""


def quoted(text: str) -> str:
    """`text` with every byte outside the plain ones written as %XX, for a path or a query."""
    return "".join(
        chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in text.encode("utf-8", "surrogateescape")
    )


def job_path(identity: str, tail: str = "") -> str:
    """The API path of a job: `/v1/jobs/ID` and what follows."""
    return f"/v1/jobs/{quoted(identity)}{tail}"


def node_path(name: str, tail: str = "") -> str:
    """The API path of a node."""
    return f"/v1/nodes/{quoted(name)}{tail}"
