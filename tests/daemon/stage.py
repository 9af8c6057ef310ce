"""A daemon put together from fakes: the real loop, planner, fleet and socket, with nothing real outside.

Owns: Stage, `played` (runs an async test), and a few bodies of requests. May import: gpuq.daemon, tests.fakes.

One thing to know: nothing forks and no agent runs; what a node does is what the test says it does, so every test here
takes milliseconds.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import os
import uuid
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from gpuq.config import ImpactConfig, PlannerConfig
from gpuq.core.model import AttemptId, Job, JobId, NodeName
from gpuq.daemon import launch
from gpuq.daemon.api import Api, Callers, bind_socket
from gpuq.daemon.connection import AgentConfig, Connection
from gpuq.daemon.desk import Desk
from gpuq.daemon.fleet import Fleet
from gpuq.daemon.loop import Loop
from gpuq.daemon.planner import DaemonPlanner
from gpuq.socketpath import bind_address, connect_address
from tests.fakes import FakeAgent, FakeClock, FakeStore, until

Json = dict[str, Any]
LOCAL = NodeName("local")
TEST_WITHIN_S = 30.0


def played(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """An async test as one that pytest can call; it gets an event loop of its own and a deadline."""

    @functools.wraps(test)
    def run(*arguments: Any, **fields: Any) -> None:
        asyncio.run(asyncio.wait_for(_awaited(test, arguments, fields), TEST_WITHIN_S))

    return run


async def _awaited(test: Callable[..., Awaitable[None]], arguments: tuple[Any, ...], fields: dict[str, Any]) -> None:
    await test(*arguments, **fields)


def base64_of(data: bytes) -> str:
    """Bytes as they travel in JSON."""
    return base64.b64encode(data).decode()


def submit_body(resources: Json | None = None, environment: bytes = b"PATH=/bin\0HOME=/h", **spec: Any) -> Json:
    """A `submit` object for `python train.py` on one GPU; `spec` replaces fields of it."""
    plain = {"name": "train", "argv": ["python", "train.py"], "cwd": "/w", "resources": resources or {"gpus": 1}}
    return {"key": uuid.uuid4().hex, "spec": {**plain, **spec}, "environment": base64_of(environment)}


class Refusal(Exception):
    """The daemon's answer was an error."""

    def __init__(self, status: int, error: Json) -> None:
        super().__init__(f"{status} {error.get('kind')}: {error.get('message')}")
        self.status = status
        self.kind = error.get("kind")
        self.message = str(error.get("message"))
        self.hint = error.get("hint")


class Stage:
    """A running daemon made of fakes: `async with Stage(tmp_path) as stage`.

    store: a FakeStore unless given (then whatever the real journal offers). agent: None means no node at all.
    """

    def __init__(
        self, directory: Path, *, agent: FakeAgent | None = None, no_node: bool = False, store: Any = None,
        admins: tuple[str, ...] = (), own_uid: int | None = None, ignore: tuple[str, ...] = (),
        clock: FakeClock | None = None,
    ) -> None:  # fmt: skip
        self.directory = directory
        self.socket = directory / "gpuq.sock"
        self.clock = clock or FakeClock()
        self.store: Any = store
        if store is None:
            self.store = FakeStore()
        self.agent = agent or FakeAgent()
        self.loop = Loop(self.store, self.clock)
        self.places = launch.Places(home=directory, logs=directory / "logs", log_limit_bytes=1 << 30)
        config = AgentConfig(name=LOCAL, spool=str(directory / "spool"), ignore=ignore)
        connections = [] if no_node else [Connection(self.loop, config, self.places, self.agent.open)]
        self.fleet = Fleet(connections)
        self.planner = DaemonPlanner(self.loop, PlannerConfig(), ImpactConfig())
        self.desk = Desk(
            loop=self.loop, journal=self.store, fleet=self.fleet, planner=self.planner, places=self.places,
            home=directory, socket=self.socket, log_path=directory / "daemon.log", started_at=self.clock.wall_s,
        )  # fmt: skip
        uid = os.getuid() if own_uid is None else own_uid
        self._api = Api(self.desk, Callers(admins, uid), uid)
        self._running: list[asyncio.Task[None]] = []
        self._client: aiohttp.ClientSession | None = None
        self.loop.on_actions = self.fleet.carry_out
        self.loop.on_change = self.planner.look_again

    async def __aenter__(self) -> Stage:
        self.loop.load()
        self._running = [asyncio.create_task(self.loop.run()), asyncio.create_task(self.planner.run())]
        with bind_address(str(self.socket)) as address:
            listener = bind_socket(self.socket, address)
        self.fleet.start()
        await self._api.start(listener)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._client is not None:
            await self._client.close()
        await self.stop()

    async def stop(self) -> None:
        """What the daemon does at its end."""
        await self._api.stop()
        await self.fleet.stop()
        for each in self._running:
            each.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self.socket.unlink(missing_ok=True)

    # --- the socket --------------------------------------------------------------------------------------

    async def exchange(
        self, method: str, path: str, body: object = None, query: Mapping[str, object] | None = None
    ) -> tuple[int, Json]:
        """One request; the status and the answer."""
        if self._client is None:
            self._client = aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=self._address()))
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        wanted = {name: str(value) for name, value in (query or {}).items()}
        async with self._client.request(method, f"http://gpuq{path}", data=content, params=wanted) as answer:
            return answer.status, json.loads(await answer.read())

    def _address(self) -> str:
        with connect_address(str(self.socket)) as address:
            assert address == str(self.socket), "the directory's path is too long for a test"
        return str(self.socket)

    async def get(self, path: str, **query: object) -> Json:
        """A question; raises Refusal."""
        return self._answer(*await self.exchange("GET", path, query=query))

    async def post(self, path: str, body: object = None) -> Json:
        """A request; raises Refusal."""
        return self._answer(*await self.exchange("POST", path, {} if body is None else body))

    @staticmethod
    def _answer(status: int, document: Json) -> Json:
        assert document["schema"] == 1
        if status != 200 or "error" in document:
            raise Refusal(status, document["error"])
        return document

    async def refusal(self, method: str, path: str, body: object = None, **query: object) -> Refusal:
        """The refusal that a request must meet."""
        status, document = await self.exchange(method, path, body, query)
        assert status != 200, document
        return Refusal(status, document["error"])

    # --- the state ---------------------------------------------------------------------------------------

    def job(self, id_: str) -> Job:
        """A job as the loop has it now."""
        return self.loop.state.jobs[JobId(id_)]

    def attempt(self, id_: str) -> AttemptId:
        """The id of a job's current attempt."""
        attempt = self.job(id_).attempt
        assert attempt is not None
        return attempt.id

    async def submit(self, resources: Json | None = None, **spec: Any) -> str:
        """Submit a job; its id."""
        return str((await self.post("/v1/jobs", submit_body(resources, **spec)))["id"])

    async def reaches(self, id_: str, *words: str) -> None:
        """Wait until a job is in one of the states."""
        await until(lambda: self.job(id_).state.value in words, f"job {id_} is {' or '.join(words)}")

    async def run_job(self, resources: Json | None = None, **spec: Any) -> str:
        """Submit a job and wait until it runs; its id."""
        id_ = await self.submit(resources, **spec)
        await self.reaches(id_, "RUNNING")
        return id_

    async def end_job(self, id_: str, exit_code: int = 0, **fields: Any) -> None:
        """Let a running job's program end, and wait until the daemon knows."""
        self.agent.end(self.attempt(id_), exit_code, **fields)
        await until(lambda: not self.job(id_).state.holds_gpus, f"job {id_} has ended")
