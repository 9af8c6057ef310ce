"""One kept-alive connection to the daemon, as lean as a client can be. Imports gpuq.socketpath.

One thing to know: client and daemon share the machine's cores, so each microsecond spent here is missing there.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import TracebackType
from typing import Any

from gpuq.socketpath import connect_address


class Wire:
    """Requests one after the other over one connection; use with `with`."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(60.0)
        with connect_address(str(path)) as address:
            self._socket.connect(address)
        self._stream = self._socket.makefile("rb")

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        self._socket.close()

    def post(self, path: str, body: bytes) -> dict[str, Any]:
        """The answer to a request; raises RuntimeError when it is not 200."""
        head = f"POST {path} HTTP/1.1\r\nHost: gpuq\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        self._socket.sendall(f"{head}\r\n\r\n".encode() + body)
        return self._answer()

    def get(self, path: str) -> dict[str, Any]:
        """The answer to a question; raises RuntimeError when it is not 200."""
        self._socket.sendall(f"GET {path} HTTP/1.1\r\nHost: gpuq\r\n\r\n".encode())
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        status = self._stream.readline().split()[1]
        length = 0
        while (line := self._stream.readline()) != b"\r\n":
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        document: dict[str, Any] = json.loads(self._stream.read(length))
        if status != b"200":
            raise RuntimeError(f"the daemon answered {status.decode()}: {document.get('error')}")
        return document
