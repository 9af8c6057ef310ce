"""A daemon of canned answers over a real Unix socket, following docs/api.md; it records what it is asked.

One thing to know: `answers` maps (method, path) to the JSON of the answer, or to a function of the request; a path
that is not there gets the API's error object.
"""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

Json = dict[str, Any]


class Asked(NamedTuple):
    """One request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    body: Json


class Failure(Exception):
    """An error answer with its HTTP status."""

    def __init__(self, status: int, kind: str, message: str, hint: str | None = None, exit_code: int = 1) -> None:
        super().__init__(message)
        self.status = status
        self.document = {"kind": kind, "message": message, "hint": hint, "exit_code": exit_code}


class HangUp(Exception):
    """Close the connection without an answer."""


class FakeDaemon(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Serves until `close`."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: str) -> None:
        self.path = path
        self.asked: list[Asked] = []
        self.answers: dict[tuple[str, str], Json | Callable[[Asked], Json]] = {}
        super().__init__(path, _Handler)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def answer(self, method: str, path: str, document: Json | Callable[[Asked], Json]) -> None:
        """Answer `method path` with `document` from now on."""
        self.answers[method, path] = document

    def bodies(self, path: str) -> list[Json]:
        """The bodies that arrived at `path`."""
        return [asked.body for asked in self.asked if asked.path == path]

    def queries(self, path: str) -> list[dict[str, str]]:
        """The queries that arrived at `path`."""
        return [asked.query for asked in self.asked if asked.path == path]

    def close(self) -> None:
        """Stop serving and free the socket."""
        self.shutdown()
        self.server_close()
        self._thread.join(5)


class _Handler(BaseHTTPRequestHandler):
    server: FakeDaemon

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        split = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        asked = Asked(self.command, split.path, dict(parse_qsl(split.query)), body)
        self.server.asked.append(asked)
        found = self.server.answers.get((asked.method, asked.path))
        try:
            if found is None:
                raise Failure(404, "not_found", f"There is nothing at {asked.path}.")
            document = found(asked) if callable(found) else found
            fields = asked.query.get("fields", "").split(",")
            if fields != [""]:  # as the daemon does: rows of the named fields
                rows = [[job.get(name) for name in fields] for job in document["jobs"]]
                document = {**document, "jobs": rows}
            self._send(200, {"schema": 1, **document})
        except Failure as failure:
            self._send(failure.status, {"schema": 1, "error": failure.document})
        except (HangUp, ConnectionError):
            self.close_connection = True

    def _send(self, status: int, document: Json) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
