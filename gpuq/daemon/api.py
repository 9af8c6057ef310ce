"""The socket: who calls, limits before parsing, one table of routes, errors as JSON. Imports loop, verbs, queries.

Who calls is the kernel's word about the other end of the socket, asked once per connection. The caller is
authorised and the size of the body checked before a byte of it is read.

One thing to know: handlers return plain dicts; this module adds `schema` and turns errors into answers.
"""

from __future__ import annotations

import asyncio
import grp
import logging
import os
import pwd
import re
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from gpuq.core.model import User
from gpuq.daemon import parameters, queries, verbs
from gpuq.daemon.desk import Call, Desk
from gpuq.errors import Forbidden, GpuqError, InternalError, NotFound, UsageError

log = logging.getLogger("gpuq.api")

SCHEMA = 1
MAX_BODY_BYTES = 64 * 2**20
MAX_LINE_BYTES = 2**20  # a hundred thousand ids in a query
BODY_WITHIN_S = 30.0
STOP_WITHIN_S = 1.0  # for requests in progress when the daemon stops

Json = dict[str, Any]
_encoder = msgspec.json.Encoder()


Handler = Callable[[Desk, Call], Awaitable[Json]]

ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/v1/status", queries.status),
    ("GET", "/v1/jobs", queries.jobs),
    ("POST", "/v1/jobs", verbs.submit),
    ("POST", "/v1/jobs/batch", verbs.submit_batch),
    ("POST", "/v1/jobs/dry-run", verbs.dry_run),
    ("GET", "/v1/jobs/{id}", queries.job),
    ("GET", "/v1/jobs/{id}/why", queries.why),
    ("GET", "/v1/wait", queries.wait),
    ("POST", "/v1/cancel", verbs.cancel),
    ("POST", "/v1/signal", verbs.signal),
    ("POST", "/v1/progress", verbs.progress),
    ("POST", "/v1/hold", verbs.hold),
    ("POST", "/v1/release", verbs.release),
    ("POST", "/v1/requeue", verbs.requeue),
    ("POST", "/v1/update", verbs.update),
    ("POST", "/v1/prune", verbs.prune),
    ("GET", "/v1/nodes", queries.nodes),
    ("POST", "/v1/nodes/{name}/drain", verbs.drain),
    ("POST", "/v1/nodes/{name}/resume", verbs.resume),
    ("POST", "/v1/nodes/{name}/declare-dead", verbs.declare_dead),
    ("GET", "/v1/gpus", queries.gpus),
    ("GET", "/v1/history", queries.history),
    ("GET", "/v1/events", queries.events),
    ("GET", "/v1/config", parameters.settings),
    ("POST", "/v1/config", parameters.configure),
    ("POST", "/v1/config/dry-run", parameters.rehearse),
    ("GET", "/v1/config/history", parameters.history),
    ("POST", "/v1/shutdown", verbs.shutdown),
)


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))


_FIXED = {(method, path): handler for method, path, handler in ROUTES if "{" not in path}
_PATTERNS = [(method, _pattern(path), handler) for method, path, handler in ROUTES if "{" in path]


def find_route(method: str, path: str) -> tuple[Handler, dict[str, str]]:
    """The handler of a path and the values in it; raises NotFound."""
    fixed = _FIXED.get((method, path))
    if fixed is not None:
        return fixed, {}
    for wanted, pattern, handler in _PATTERNS:
        match = pattern.fullmatch(path) if wanted == method else None
        if match is not None:
            return handler, match.groupdict()
    raise NotFound(f"There is no {method} {path} in this version of the API.", "Is the client newer than the daemon?")


class Callers:
    """Users behind connections: names looked up once per uid, administrators by configuration."""

    def __init__(self, admins: tuple[str, ...], own_uid: int) -> None:
        self._admins = admins
        self._own_uid = own_uid
        self._names: dict[int, str] = {}

    def of(self, connection: socket.socket) -> User:
        """The user at the other end, by the kernel's word."""
        packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
        uid = struct.unpack("iII", packed)[1]
        name = self._names.get(uid) or self._names.setdefault(uid, self._name_of(uid))
        return User(name=name, uid=uid, is_admin=self._is_admin(name, uid))

    @staticmethod
    def _name_of(uid: int) -> str:
        try:
            return pwd.getpwuid(uid).pw_name
        except KeyError:
            return f"uid-{uid}"

    def _is_admin(self, name: str, uid: int) -> bool:
        return uid in (0, self._own_uid) or any(self._matches(entry, name) for entry in self._admins)

    @staticmethod
    def _matches(entry: str, name: str) -> bool:
        if not entry.startswith("@"):
            return entry == name
        try:
            return name in grp.getgrnam(entry[1:]).gr_mem
        except KeyError:
            return False


class Api:
    """Serves the socket."""

    def __init__(self, desk: Desk, callers: Callers, own_uid: int) -> None:
        self._desk = desk
        self._callers = callers
        self._own_uid = own_uid
        self._runner: web.ServerRunner | None = None

    async def start(self, listener: socket.socket) -> None:
        """Serve a bound listening socket."""
        server = web.Server(self._answer, access_log=None, max_line_size=MAX_LINE_BYTES)
        self._runner = web.ServerRunner(server, shutdown_timeout=STOP_WITHIN_S)
        await self._runner.setup()
        await web.SockSite(self._runner, listener, backlog=512).start()

    async def stop(self) -> None:
        """Finish what is being answered and close; long polls answer at once, so that their clients ask again."""
        self._desk.stopping.set()
        self._desk.loop.wake()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            document = await self._handle(request)
            status = 200
        except GpuqError as error:
            document, status = {"error": error.as_json()}, error.http_status
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            hidden = InternalError(
                "The daemon failed on this request; nothing else is affected.", f"Details: {self._desk.log_path}"
            )
            document, status = {"error": hidden.as_json()}, hidden.http_status
        document["schema"] = SCHEMA
        return web.Response(body=_encoder.encode(document), status=status, content_type="application/json")

    async def _handle(self, request: web.BaseRequest) -> Json:
        by = self._caller(request)
        handler, path = find_route(request.method, request.path)
        body = await self._body(request) if request.method == "POST" else {}
        return await handler(self._desk, Call(by, path, dict(request.query), body))

    def _caller(self, request: web.BaseRequest) -> User:
        transport = request.transport
        connection = transport.get_extra_info("socket") if transport is not None else None
        if connection is None:
            raise ConnectionResetError("the caller is gone")
        by = self._callers.of(connection)
        if not by.is_admin:
            raise Forbidden(
                f"This daemon serves user {self._callers._name_of(self._own_uid)} only.", "Start your own: gpuq submit."
            )
        return by

    async def _body(self, request: web.BaseRequest) -> Json:
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise UsageError(f"The request has {request.content_length} bytes; at most {MAX_BODY_BYTES} are accepted.")
        try:
            data = await asyncio.wait_for(_read(request), BODY_WITHIN_S)
        except asyncio.TimeoutError:
            raise UsageError(f"The request did not arrive within {BODY_WITHIN_S:.0f} s.") from None
        try:
            body = msgspec.json.decode(data) if data else {}
        except (msgspec.DecodeError, RecursionError) as error:
            raise UsageError(f"The request is not JSON: {error}.") from None
        if not isinstance(body, dict):
            raise UsageError("The request must be a JSON object.")
        return body


async def _read(request: web.BaseRequest) -> bytes:
    data = bytearray()
    async for chunk in request.content.iter_chunked(2**16):
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise UsageError(f"The request has more than {MAX_BODY_BYTES} bytes.")
    return bytes(data)


def bind_socket(path: Path, address: str) -> socket.socket:
    """A listening Unix socket, mode 0600 from birth; a stale file nobody answers at is replaced.

    The caller holds the daemon's lock, so whatever lies at the path belongs to no living daemon of this home.
    """
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    listener.listen(512)
    listener.setblocking(False)
    return listener
