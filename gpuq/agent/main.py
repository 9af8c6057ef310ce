"""The agent's frame loop: one thread, one selector. Owns the process, its descriptors and its timers.

May import: every module of the package but the shim's. One thing to know: the loop never waits for anything but
the selector; whatever can hang (drivers, jobs, the daemon) is another process behind a pipe.
"""

from __future__ import annotations

import os
import selectors
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from . import PROTOCOL, VERSION, containment, linux, spool
from .attempts import Attempts
from .children import Forker
from .frames import Frame, FrameReader, FrameWriter, note
from .gpufeed import GpuFeed

LOCK_WAIT_S = 5.0
LOCK_RETRY_S = 0.05
REVIVE_S = 1.0
LAST_WORDS_S = 2.0
SIMULATED_STATE = "simulated.json"


class Refused(Exception):
    """The agent cannot serve; its text is the sentence of the `refused` frame."""


class Parts(NamedTuple):
    """What exists once the daemon has said hello."""

    place: spool.Spool
    level: containment.Containment
    forker: Forker
    feed: GpuFeed
    attempts: Attempts
    heartbeat_every_s: float


def serve() -> int:
    """Speak with the daemon until its end of the pipe closes; returns the exit code."""
    reader, writer = _take_standard_streams()
    agent = Agent(reader, writer)
    try:
        return agent.run()
    except Refused as refusal:
        writer.send({"type": "refused", "error": str(refusal)})
        _flush_patiently(writer)
        return 1


def _take_standard_streams() -> Tuple[FrameReader, FrameWriter]:
    """Keep stdin and stdout for frames alone: a stray print goes to stderr."""
    source, target = os.dup(0), os.dup(1)
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    for descriptor in (source, target):
        os.set_blocking(descriptor, False)
    return FrameReader(source), FrameWriter(target)


def _flush_patiently(writer: FrameWriter) -> None:
    deadline = time.monotonic() + LAST_WORDS_S
    writer.flush()
    while writer.waiting and time.monotonic() < deadline:
        time.sleep(0.01)
        writer.flush()


class Agent:
    """State of the loop."""

    def __init__(self, reader: FrameReader, writer: FrameWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._selector = selectors.DefaultSelector()
        self._watched: Dict[str, int] = {}
        self._parts: Optional[Parts] = None
        self._ready = False
        self._early: List[Frame] = []
        self._ended = False
        self._heartbeat_at_s = 0.0
        self._revive_at_s: Optional[float] = None
        self._wake_rest = b""

    def run(self) -> int:
        """Loop until end of input, `bye`, or a daemon that does not read any more."""
        self._watch("input", self._reader.descriptor)
        while not (self._ended or self._reader.ended or self._writer.broken):
            self._watch_descriptors()
            ready = {key.data for key, _ in self._selector.select(self._timeout_s())}
            self._take(ready)
            self._tick()
            self._writer.flush()
        _flush_patiently(self._writer)
        if self._parts is not None:
            self._parts.attempts.uses.save()
            self._parts.forker.close()
            _guarded("control groups", _remove_groups, self._parts)
        return 0

    def _watch(self, name: str, descriptor: int, events: int = selectors.EVENT_READ) -> None:
        """Watch a descriptor under a name; -1 watches nothing."""
        known = self._watched.get(name, -1)
        if known == descriptor:
            return
        if known >= 0:
            self._selector.unregister(known)
        if descriptor >= 0:
            self._selector.register(descriptor, events, name)
        self._watched[name] = descriptor

    def _watch_descriptors(self) -> None:
        waiting = self._writer.descriptor if self._writer.waiting else -1
        self._watch("output", waiting, selectors.EVENT_WRITE)
        if self._parts is not None:
            self._watch("wake", self._parts.place.wake)
            self._watch("forker", self._parts.forker.descriptor)
            self._watch("sampler", self._parts.feed.descriptor)

    def _timeout_s(self) -> Optional[float]:
        if self._parts is None:
            return None
        due = [self._parts.attempts.due_s(), self._parts.feed.due_s()]
        if self._ready:
            due.append(self._heartbeat_at_s)
        if self._revive_at_s is not None:
            due.append(self._revive_at_s)
        return max(0.0, min(due) - time.monotonic())

    def _take(self, ready: Set[str]) -> None:
        """Read whatever is readable."""
        if "input" in ready:
            for frame in self._reader.read():
                self._receive(frame)
        parts = self._parts
        if parts is None:
            return
        if "forker" in ready:
            self._tell_each(parts.forker.ended(), parts.attempts.shim_ended)
            if parts.forker.descriptor < 0:
                self._revive_at_s = time.monotonic()
        if "wake" in ready:
            self._tell_each(self._woken(parts.place.wake), parts.attempts.refresh)
        if "sampler" in ready:
            for frame in parts.feed.read(parts.attempts.shims):
                if frame["type"] == "samples":
                    parts.attempts.uses.take(frame["gpus"], parts.attempts.on_gpus())
                self._send_if_ready(frame)

    def _tell_each(self, attempts: List[str], action: Callable[[str], None]) -> None:
        """Look at attempts there is news of; before `ready` nothing need be told, since it tells everything."""
        for attempt in dict.fromkeys(attempts) if self._ready else ():
            if spool.is_attempt(attempt):
                _guarded(attempt, action, attempt)

    def _woken(self, descriptor: int) -> List[str]:
        try:
            data = os.read(descriptor, 65536)
        except BlockingIOError:
            return []
        *lines, rest = (self._wake_rest + data).split(b"\n")
        self._wake_rest = rest[-64:]
        return [line.decode("ascii", "replace") for line in lines]

    def _send_if_ready(self, frame: Frame) -> None:
        if self._ready:
            self._writer.send(frame)

    def _tick(self) -> None:
        """Do what time asks for."""
        parts, now = self._parts, time.monotonic()
        if parts is None:
            return
        for frame in parts.feed.tick():
            self._send_if_ready(frame)
        if not self._ready:
            if parts.feed.settled:
                self._become_ready(parts)
            return
        if now >= parts.attempts.due_s():
            _guarded("scan", parts.attempts.tick)
        if now >= self._heartbeat_at_s:
            self._heartbeat_at_s = now + parts.heartbeat_every_s
            self._writer.send({"type": "heartbeat", "at": time.time(), "stalled": parts.attempts.stalled()})
        if self._revive_at_s is not None and now >= self._revive_at_s:
            if parts.forker.revive():
                parts.attempts.ask_again()
            self._revive_at_s = None if parts.forker.descriptor >= 0 else now + REVIVE_S

    # Frames of the daemon

    def _receive(self, frame: Frame) -> None:
        kind = frame["type"]
        if self._parts is None:
            if kind == "hello":
                self._parts = self._greeted(frame)
            elif kind == "bye":
                self._ended = True
            else:
                note(f"a {kind} frame came before hello; it was ignored.")
        elif kind == "bye":
            self._ended = True
        elif not self._ready:
            self._early.append(frame)
        elif kind == "scan":
            _guarded("scan", self._parts.attempts.scan)
        elif kind in REQUESTS:
            attempt = frame.get("attempt")
            if spool.is_attempt(attempt):
                _guarded(str(attempt), REQUESTS[kind], self._parts.attempts, str(attempt), frame)
            else:
                note(f"a {kind} frame names no attempt but {attempt!r}; it was ignored.")

    def _greeted(self, hello: Frame) -> Parts:
        """Open the spool and start the children; raises Refused."""
        if hello.get("protocol") != PROTOCOL:
            raise Refused(
                f"This agent speaks protocol {PROTOCOL}, the daemon {hello.get('protocol')!r}; update the older one."
            )
        if not isinstance(hello.get("spool"), str) or not hello["spool"]:
            raise Refused("The daemon named no spool; set `spool` for this node.")
        try:
            place = spool.Spool(hello["spool"])
            _lock_soon(place)
            place.finish_removals()
            level = containment.choose(place.id, os.environ.get("GPUQ_CONTAINMENT") or None)
            forker = Forker(place.path)
        except spool.SpoolRefused as error:
            raise Refused(str(error)) from error
        except ValueError as error:
            raise Refused(str(error)) from error
        except OSError as error:
            raise Refused(f"The agent cannot start its forker ({error.strerror or error}); see the node.") from error
        feed = GpuFeed(_sampler_configuration(hello, place), float(hello.get("foreign_memory_mib") or 0.0))
        attempts = Attempts(place, forker, level, lambda: feed.gpus, self._writer.send)
        return Parts(place, level, forker, feed, attempts, float(hello.get("heartbeat_every_s") or 5.0))

    def _become_ready(self, parts: Parts) -> None:
        """Tell the daemon everything, then carry out what it asked for meanwhile."""
        level = {
            "level": parts.level.level.value,
            "detail": parts.level.detail,
            "memory_limit": parts.level.limits_memory,
        }
        self._writer.send(
            {
                "type": "ready",
                "protocol": PROTOCOL,
                "agent_version": VERSION,
                "hostname": os.uname().nodename,
                "boot_id": linux.boot_id(),
                "spool_id": parts.place.id,
                "cpus": len(os.sched_getaffinity(0)),
                "memory_mib": _memory_mib(),
                "containment": level,
                "gpus": parts.feed.gpus,
                "driver": parts.feed.driver,
                "attempts": parts.attempts.report_all(),
                "spool_filesystem": linux.filesystem_of(parts.place.path),
                "warnings": parts.place.warnings(),
            }
        )
        self._ready = True
        early, self._early = self._early, []
        for frame in early:
            self._receive(frame)


def _guarded(what: str, action: Callable[..., None], *arguments: Any) -> None:
    """Carry out a request; what goes wrong costs a log line, never the agent."""
    try:
        action(*arguments)
    except (OSError, ValueError, KeyError, TypeError) as error:
        note(f"{what}: {error!r}; the request was not carried out.")


def _remove_groups(parts: Parts) -> None:
    """Leave no control group behind, but only if the spool is empty: a shim that starts a job is about to use them."""
    if not parts.place.attempts():
        containment.remove_if_empty(parts.level)


def _lock_soon(place: spool.Spool) -> None:
    """Become the spool's one agent, waiting a little for a predecessor that is just ending."""
    deadline = time.monotonic() + LOCK_WAIT_S
    while not place.lock():
        if time.monotonic() > deadline:
            raise Refused(f"Another agent holds the spool {place.path}; stop the daemon that started it.")
        time.sleep(LOCK_RETRY_S)


def _sampler_configuration(hello: Frame, place: spool.Spool) -> Dict[str, Any]:
    return {
        "simulate": hello.get("simulate"),
        "simulated_state": os.path.join(place.path, SIMULATED_STATE),
        "seed": place.id,
        "sample_every_s": hello.get("sample_every_s"),
    }


def _memory_mib() -> Optional[int]:
    try:
        lines = linux.read_text("/proc/meminfo").splitlines()
    except OSError:
        return None
    sizes = [int(line.split()[1]) for line in lines if line.startswith("MemTotal:")]
    return sizes[0] // 1024 if sizes else None


def _start(attempts: Attempts, attempt: str, frame: Frame) -> None:
    attempts.start(attempt, dict(frame["spec"]))


def _stop(attempts: Attempts, attempt: str, frame: Frame) -> None:
    attempts.stop(attempt, frame.get("reason"), float(frame.get("grace_s") or 0.0))


def _signal(attempts: Attempts, attempt: str, frame: Frame) -> None:
    attempts.signal(attempt, int(frame["signal"]))


def _limit(attempts: Attempts, attempt: str, frame: Frame) -> None:
    limit_s = frame["time_limit_s"]
    attempts.limit(attempt, None if limit_s is None else float(limit_s))


def _fence(attempts: Attempts, attempt: str, frame: Frame) -> None:
    attempts.fence(attempt)


def _release(attempts: Attempts, attempt: str, frame: Frame) -> None:
    attempts.release(attempt)


REQUESTS: Dict[str, Callable[[Attempts, str, Frame], None]] = {
    "start": _start,
    "stop": _stop,
    "signal": _signal,
    "limit": _limit,
    "fence": _fence,
    "release": _release,
}
