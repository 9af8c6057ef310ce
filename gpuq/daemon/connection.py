"""The conversation with one node: actions go out as frames, frames come back as requests. Imports core, links, loop.

Samples stay here and are never written down; what a decision needs (health, foreign use) becomes a request.

One thing to know: actions for a node that is not connected are dropped on purpose. When its agent says hello, the
core derives from the state everything that has to be done there, so nothing can get lost in a queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from gpuq.core.events import (
    AnyAction,
    FenceAttempt,
    ReleaseAttempt,
    SetLimit,
    SignalAttempt,
    StartAttempt,
    StopAttempt,
)
from gpuq.core.model import GpuUuid, Node, NodeName, Reach, User
from gpuq.core.requests import AnyRequest, DeclareDead, GpusSeen, NodeReached, NodeReady
from gpuq.daemon import inventory, launch
from gpuq.daemon.loop import Loop
from gpuq.daemon.ports import Frame, Link
from gpuq.errors import GpuqError, NodeError
from gpuq.journal.failpoints import mutant, reach

log = logging.getLogger("gpuq.node")

PROTOCOL = 1
READY_WITHIN_S = 30.0
SUSPECT_AFTER_S = 15.0
UNREACHABLE_AFTER_S = 60.0
WATCH_EVERY_S = 1.0
PAUSE_S = 3.0  # a longer delay of our own timer means that nothing was observed meanwhile
FIRST_BACK_OFF_S = 0.2
LAST_BACK_OFF_S = 10.0
RESEND_S = 5.0  # before an action that could not be put together (a full disk, say) is tried again
HISTORY_LENGTH = 60  # samples kept per GPU


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What gpuq.toml says about one node, ready for the agent's hello."""

    name: NodeName
    spool: str
    simulate: list[dict[str, Any]] | None = None
    cpus: int | None = None
    memory_mib: int | None = None
    sample_every_s: float = 1.0
    heartbeat_every_s: float = 5.0
    foreign_memory_mib: int = 512
    ignore: tuple[str, ...] = ()
    pynvml_path: str | None = None


class Connection:
    """The daemon's side of one node."""

    def __init__(
        self, loop: Loop, config: AgentConfig, places: launch.Places, open_link: Callable[[], Awaitable[Link]]
    ) -> None:
        self.config = config
        self.samples: dict[GpuUuid, deque[dict[str, Any]]] = {}
        self.last_seen_steady_s: float | None = None
        self.last_error: str | None = None
        self.ready = asyncio.Event()  # its actions are sent
        self.introduced = asyncio.Event()  # it has been seen, or has failed, at least once
        self._loop = loop
        self._places = places
        self._open_link = open_link
        self._link: Link | None = None
        self._began_steady_s = loop.clock.now().steady_s
        self.back_off_s = FIRST_BACK_OFF_S  # before the next try to connect
        self._scan_due: asyncio.TimerHandle | None = None
        self._outbox: asyncio.Queue[AnyAction | Frame] = asyncio.Queue()

    async def run(self) -> None:
        """Keep the node connected until cancelled."""
        while True:
            began_steady_s = self._loop.clock.now().steady_s
            try:
                await self._converse()
            except GpuqError as error:
                self.last_error = error.message
                log.warning("node %s: %s", self.config.name, error.message)
            except Exception:
                self.last_error = "the conversation with its agent failed; the log has the details"
                log.exception("node %s: the conversation with its agent failed", self.config.name)
            finally:
                self.introduced.set()
                await self._hang_up()
            is_long = self._silent_s() > UNREACHABLE_AFTER_S
            await self._ask(NodeReached(node=self.config.name, reach=Reach.UNREACHABLE if is_long else Reach.SUSPECT))
            if self._loop.clock.now().steady_s - began_steady_s > LAST_BACK_OFF_S:
                self.back_off_s = FIRST_BACK_OFF_S  # the link held for a while
            await asyncio.sleep(self.back_off_s)
            self.back_off_s = min(LAST_BACK_OFF_S, self.back_off_s * 2)

    async def _hang_up(self) -> None:
        self.ready.clear()
        link, self._link = self._link, None
        self._outbox = asyncio.Queue()
        if link is not None:
            try:
                await link.close()
            except Exception:
                log.exception("node %s: the link was not closed properly", self.config.name)

    async def _converse(self) -> None:
        """One life of an agent: hello, ready, then frames both ways until the link ends."""
        link = self._link = await self._open_link()
        await link.send(self._hello())
        frames = link.frames()
        ready = await _first_of(frames)
        if ready is None:
            raise NodeError("the agent ended before it was ready; the log has its last words")
        if ready.get("type") != "ready":
            raise NodeError(str(ready.get("error") or "the agent refused to start"))
        if ready.get("protocol") != PROTOCOL:
            raise NodeError(f"the agent speaks protocol {ready.get('protocol')}, this daemon {PROTOCOL}")
        self._heard()
        await self._introduce(ready)
        sender = asyncio.create_task(self._send_actions(link))
        watch = asyncio.create_task(self._watch())
        try:
            async for frame in frames:
                self._heard()
                await self._receive(frame)
        finally:
            sender.cancel()
            watch.cancel()
        raise NodeError("the agent ended; starting another")

    def _hello(self) -> Frame:
        config = self.config
        return {
            "type": "hello",
            "protocol": PROTOCOL,
            "node": config.name,
            "spool": config.spool,
            "simulate": config.simulate,
            "sample_every_s": config.sample_every_s,
            "heartbeat_every_s": config.heartbeat_every_s,
            "foreign_memory_mib": config.foreign_memory_mib,
            "pynvml_path": config.pynvml_path,
        }

    async def _introduce(self, ready: Frame) -> None:
        """Tell the core about the node; from then on its actions are sent."""
        node = inventory.node_of(self.config.name, ready, self.config.cpus, self.config.memory_mib)
        known = self._loop.state.nodes.get(node.name)
        if known is not None:
            node = msgspec.structs.replace(node, gpus=inventory.with_use_of(known.gpus, node.gpus))
            if mutant("relaunch-when-spool-gone"):
                node = msgspec.structs.replace(node, spool_id=known.spool_id)
        attempts = tuple(inventory.report_of(node.name, frame) for frame in inventory.records_of(ready, "attempts"))
        self.ready.set()
        outcome = await self._loop.ask(NodeReady(node=node, attempts=attempts))
        for note in outcome.notes:
            log.warning("%s", note)
        self.last_error = None
        self.introduced.set()
        for job in self._loop.state.active():
            if job.attempt is not None and job.attempt.node == node.name and job.attempt.started_at is not None:
                self.post(SetLimit(node=node.name, attempt=job.attempt.id, time_limit_s=job.spec.time_limit_s))
        log.info("node %s is ready: %d GPUs, containment %s", node.name, len(node.gpus), node.containment.value)

    # --- out ---------------------------------------------------------------------------------------------

    def post(self, action: AnyAction | Frame) -> None:
        """Send an action, or a frame, when the node is connected; dropped otherwise (see the module's docstring)."""
        if self.ready.is_set():
            self._outbox.put_nowait(action)

    async def _send_actions(self, link: Link) -> None:
        outbox = self._outbox
        while True:
            action = await outbox.get()
            try:
                frame = action if isinstance(action, dict) else self._frame_of(action)
            except Exception as error:
                unforeseen = not isinstance(error, GpuqError | OSError)
                log.error("an action was not sent: %s: %s", action, error, exc_info=unforeseen)
                asyncio.get_running_loop().call_later(RESEND_S, self.post, action)
                continue
            if frame is None:
                continue
            if frame["type"] in ("start", "stop", "release"):
                reach(f"daemon.before_{frame['type']}")
            try:
                await link.send(frame)
            except NodeError as error:
                log.warning("node %s: %s", self.config.name, error.message)
                return

    def _frame_of(self, action: AnyAction) -> Frame | None:
        """The frame that carries an action; None when the state has moved on."""
        attempt = action.attempt
        if isinstance(action, StartAttempt):
            return self._start_frame(action)
        if isinstance(action, StopAttempt):
            return {"type": "stop", "attempt": attempt, "reason": action.reason, "grace_s": action.grace_s}
        if isinstance(action, SignalAttempt):
            return {"type": "signal", "attempt": attempt, "signal": action.signal}
        if isinstance(action, SetLimit):
            return {"type": "limit", "attempt": attempt, "time_limit_s": action.time_limit_s}
        if isinstance(action, FenceAttempt):
            return {"type": "fence", "attempt": attempt}
        assert isinstance(action, ReleaseAttempt)
        return {"type": "release", "attempt": attempt}

    def _start_frame(self, action: StartAttempt) -> Frame | None:
        job = self._loop.state.jobs.get(action.job)
        if job is None or job.attempt is None or job.attempt.id != action.attempt or job.attempt.stop is not None:
            return None
        node = self._loop.state.nodes[job.attempt.node]
        store = self._loop.store
        environment = store.blob(job.spec.environment)
        script = store.blob(job.spec.script) if job.spec.script else None
        launch.checkpoint_directory(job, self._places).mkdir(mode=0o700, parents=True, exist_ok=True)
        return {
            "type": "start",
            "attempt": action.attempt,
            "spec": launch.start_spec(job, node, environment, script, self._places),
        }

    # --- in ----------------------------------------------------------------------------------------------

    def _heard(self) -> None:
        self.last_seen_steady_s = self._loop.clock.now().steady_s

    def _silent_s(self) -> float:
        """How long nothing has been heard: since the last frame, or since this daemon began to try."""
        since_s = self._began_steady_s if self.last_seen_steady_s is None else self.last_seen_steady_s
        return self._loop.clock.now().steady_s - since_s

    async def _receive(self, frame: Frame) -> None:
        kind = frame.get("type")
        if kind == "attempt":
            reach("daemon.before_report")
            self._ask_later(inventory.report_of(self.config.name, frame))
        elif kind == "samples":
            await self._take_samples(frame)
        elif kind == "inventory":
            await self._take_inventory(frame)
        elif kind == "heartbeat" and frame.get("stalled"):
            log.warning("node %s: stopped shims: %s", self.config.name, ", ".join(frame["stalled"]))
        node = self._node()
        if node is not None and node.reach is not Reach.UP:
            await self._ask(NodeReached(node=self.config.name, reach=Reach.UP))

    def _node(self) -> Node | None:
        return self._loop.state.nodes.get(self.config.name)

    async def _take_samples(self, frame: Frame) -> None:
        samples = inventory.records_of(frame, "gpus")
        for sample in samples:
            uuid = GpuUuid(str(sample.get("uuid")))
            self.samples.setdefault(uuid, deque(maxlen=HISTORY_LENGTH)).append(dict(sample))
        node = self._node()
        if node is None:
            return
        gpus = inventory.with_samples(node.gpus, samples, self.config.ignore)
        if not inventory.same_use(gpus, node.gpus):
            await self._ask(GpusSeen(node=node.name, gpus=gpus, driver_error=node.driver_error))

    async def _take_inventory(self, frame: Frame) -> None:
        node = self._node()
        if node is None:
            return
        gpus = inventory.with_use_of(node.gpus, inventory.gpus_of(frame, node.driver == "simulated"))
        await self._ask(GpusSeen(node=node.name, gpus=gpus, driver_error=inventory.driver_of(frame)[1]))

    async def _watch(self) -> None:
        """Say when the agent falls silent. Silence is never taken for death."""
        before_s = self._loop.clock.now().steady_s
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            now_s = self._loop.clock.now().steady_s
            if now_s - before_s > WATCH_EVERY_S + PAUSE_S:
                self._heard()  # this daemon was stopped or asleep: the silence was its own
            before_s = now_s
            silent_s = self._silent_s()
            if silent_s > UNREACHABLE_AFTER_S:
                await self._ask(NodeReached(node=self.config.name, reach=Reach.UNREACHABLE))
                if mutant("unreachable-is-dead"):
                    await self._ask(DeclareDead(node=self.config.name, by=User(name="gpuq", uid=0, is_admin=True)))
                link = self._link
                if link is not None:
                    log.warning("node %s: silent for %.0f s; connecting again", self.config.name, silent_s)
                    await link.close()
                return
            if silent_s > SUSPECT_AFTER_S:
                await self._ask(NodeReached(node=self.config.name, reach=Reach.SUSPECT))

    def _ask_later(self, request: AnyRequest) -> None:
        """Ask without waiting; after a report that was not taken, all are asked for again."""
        self._loop.ask_later(request).add_done_callback(self._see_to_report)

    def _see_to_report(self, answer: asyncio.Future[Any]) -> None:
        if answer.cancelled():
            return
        error = answer.exception()
        if error is None:
            for note in answer.result().notes:
                log.warning("%s", note)
            return
        log.warning("a report was not taken; all are asked for again soon: %s", error)
        if self._scan_due is None:
            self._scan_due = asyncio.get_running_loop().call_later(RESEND_S, self._scan)

    def _scan(self) -> None:
        self._scan_due = None
        self.post({"type": "scan"})

    async def _ask(self, request: AnyRequest) -> None:
        try:
            outcome = await self._loop.ask(request)
        except GpuqError as error:
            log.warning("node %s: %s", self.config.name, error.message)
        except Exception:
            log.exception("node %s: %s was not carried out", self.config.name, type(request).__name__)
        else:
            for note in outcome.notes:
                log.warning("%s", note)


async def _first_of(frames: AsyncIterator[Frame]) -> Frame | None:
    """The first frame, None when the link ends before it; raises NodeError when it does not come in time.

    Not asyncio.wait_for: before Python 3.12 it may lose a cancellation, and the daemon could then not stop.
    """
    first = asyncio.ensure_future(anext(frames, None))
    try:
        await asyncio.wait({first}, timeout=READY_WITHIN_S)
        if not first.done():
            raise NodeError(f"the agent was not ready within {READY_WITHIN_S:g} s")
        return first.result()
    finally:
        first.cancel()
