"""Stand-ins for what the daemon's loop gets from outside: a clock, a journal and an agent that a test scripts.

Owns: FakeClock, FakeStore, FakeAgent and its FakeLink, and `until`. May import: gpuq.core, gpuq.journal, gpuq.errors.

One thing to know: FakeStore keeps rows as the journal writes them (same codec, checksums and all), so what cannot be
stored for real cannot be stored here either; and FakeAgent promises what docs/agent-protocol.md says, no more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from gpuq.core.events import AnyEvent
from gpuq.core.model import BlobId, JobId, Stamp
from gpuq.core.states import JobState
from gpuq.errors import JournalError, NodeError
from gpuq.journal.archive import ArchivedJob, HistoryQuery
from gpuq.journal.codec import Entry, EventRow, entry_of, event_rows
from gpuq.journal.problems import JournalBroken

Frame = dict[str, Any]
Found = TypeVar("Found")

WALL_S = 1_700_000_000.0
DEADLINE_S = 10.0


async def until(look: Callable[[], Found], what: str, within_s: float = DEADLINE_S) -> Found:
    """Let the event loop turn until `look` gives something true; fails with `what` after the deadline."""
    end = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(0.001)


async def turns(count: int = 20) -> None:
    """Let everything that is ready run: enough for what is asked of the loop to be committed and answered."""
    for _ in range(count):
        await asyncio.sleep(0)


class FakeClock:
    """Two clocks that only a test moves."""

    def __init__(self, steady_s: float = 100.0) -> None:
        self.steady_s = steady_s
        self.wall_s = WALL_S + steady_s

    def now(self) -> Stamp:
        """This moment on both clocks."""
        return Stamp(wall_s=self.wall_s, steady_s=self.steady_s)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.steady_s += seconds
        self.wall_s += seconds

    def set_back(self, seconds: float) -> None:
        """Somebody sets the wall clock back (or, with a negative number, forward)."""
        self.wall_s -= seconds


class FakeStore:
    """A journal in memory whose writes fail when a test says so.

    failing: raised by every write while it is set. commits: the events of each `append`, in order.
    broken_load: raised by `load` while it is set.
    """

    def __init__(self) -> None:
        self.last_seq = 0
        self.failing: JournalError | None = None
        self.broken_load: JournalError | None = None
        self.commits: list[list[AnyEvent]] = []
        self.blobs: dict[BlobId, bytes] = {}
        self.snapshots: list[tuple[int, bytes]] = []
        self.probes = 0
        self.loads = 0
        self.low_space = False
        self.problem: str | None = None
        self.warnings: tuple[str, ...] = ()
        self.on_append: Callable[[], None] = lambda: None
        self._rows: list[EventRow] = []
        self._archive: dict[JobId, ArchivedJob] = {}

    # --- as the loop uses it -----------------------------------------------------------------------------

    def append(
        self,
        entries: Sequence[tuple[Stamp, AnyEvent]],
        *,
        blobs: Mapping[BlobId, bytes] | None = None,
        archive: Sequence[ArchivedJob] = (),
        forget: Collection[JobId] = (),
    ) -> int:
        """Write all or nothing."""
        rows = event_rows(self.last_seq + 1, entries)
        self.on_append()
        self._fail()
        self._rows += rows
        self.last_seq += len(rows)
        self.commits.append([event for _, event in entries])
        self.blobs.update(blobs or {})
        self._archive = {id_: each for id_, each in self._archive.items() if id_ not in set(forget)}
        self._archive.update({each.job.id: each for each in archive})
        return self.last_seq

    def load(self) -> tuple[bytes | None, Iterator[Entry]]:
        """The newest snapshot and what came after it."""
        self.loads += 1
        if self.broken_load is not None:
            raise self.broken_load
        seq, state = self.snapshots[-1] if self.snapshots else (0, None)
        return state, iter([entry_of(row) for row in self._rows if row.seq > seq])

    def snapshot(self, state: bytes, seq: int) -> None:
        """Keep the state as of an entry."""
        self._fail()
        self.snapshots.append((seq, state))

    def probe(self) -> bool:
        """Whether a write would work now."""
        self.probes += 1
        return self.failing is None

    def blob(self, id_: BlobId) -> bytes:
        """An environment or script."""
        try:
            return self.blobs[id_]
        except KeyError:
            raise JournalBroken(f"The journal has no blob {id_}.") from None

    def _fail(self) -> None:
        if self.failing is not None:
            raise self.failing

    # --- as the socket's questions use it ----------------------------------------------------------------

    def events(self, since: int = 0, job: str | None = None, limit: int | None = None) -> list[Entry]:
        """Entries after `since`."""
        found = [entry_of(row) for row in self._rows if row.seq > since and job in (None, row.job)]
        return found[:limit]

    def archived_states(self, ids: Collection[JobId]) -> dict[JobId, JobState]:
        """Final states of archived jobs."""
        return {id_: each.job.state for id_, each in self._archive.items() if id_ in ids or each.job.array in ids}

    def history(self, query: HistoryQuery) -> list[ArchivedJob]:
        """Archived jobs by id, newest first; the other filters are the real journal's business."""
        found = [
            each for id_, each in self._archive.items()
            if not query.ids or id_ in query.ids or each.job.array in query.ids
        ]  # fmt: skip
        return sorted(found, key=lambda each: -each.job.order)[: query.limit]

    def forget(self, ids: Collection[JobId]) -> int:
        """Drop archived jobs."""
        before = len(self._archive)
        self._archive = {id_: each for id_, each in self._archive.items() if id_ not in set(ids)}
        return before - len(self._archive)

    def all_events(self) -> list[AnyEvent]:
        """Everything that was written."""
        return [event for commit in self.commits for event in commit]


def gpu_record(index: int, **fields: Any) -> Frame:
    """An inventory record as an agent sends it."""
    return {
        "uuid": f"GPU-{index}", "index": index, "vendor": "nvidia", "name": "NVIDIA A100-SXM4-40GB",
        "memory_mib": 40960, "pci_bus_id": f"00000000:{index + 1:02X}:00.0", "minor": index, "numa_node": 0,
        "compute_capability": "8.0", "power_limit_w": 400.0, "mig": None, "parent": None, "usable": True,
        "reason": None, "health": "ok", "peers": {}, **fields,
    }  # fmt: skip


def sample(index: int, processes: list[Frame] | None = None, foreign: bool | None = False, **fields: Any) -> Frame:
    """One GPU's part of a `samples` frame."""
    return {
        "uuid": f"GPU-{index}", "utilization": 0.5, "memory_used_mib": 100, "memory_total_mib": 40960,
        "power_w": 55.0, "power_limit_w": 400.0, "energy_j": None, "temperature_c": 30, "clock_mhz": None,
        "throttle": None, "processes": processes if processes is not None else [], "foreign": foreign, **fields,
    }  # fmt: skip


class FakeAgent:
    """A node's agent, as many lives of it as the daemon opens links to it.

    gpus, vendor: what it says at hello. attempts: what its spool holds, by attempt: the `attempt` frame it would send.
    runs_jobs: whether a start is answered with `running`. unreachable: raised instead of a link while it is set.
    is_mute: it neither says `ready` nor anything else by itself.
    """

    def __init__(self, gpus: int = 2, vendor: str = "simulated") -> None:
        self.gpus = [gpu_record(index) for index in range(gpus)]
        self.vendor = vendor
        self.attempts: dict[str, Frame] = {}
        self.runs_jobs = True
        self.is_mute = False
        self.unreachable: Exception | None = None
        self.greeting: Frame = {}
        self.links: list[FakeLink] = []
        self.tries = 0

    async def open(self) -> FakeLink:
        """A new life of the agent."""
        self.tries += 1
        if self.unreachable is not None:
            raise self.unreachable
        self.links.append(FakeLink(self))
        return self.links[-1]

    @property
    def link(self) -> FakeLink:
        """The newest link."""
        return self.links[-1]

    def ready(self) -> Frame:
        """The answer to hello; `greeting` replaces fields of it."""
        return {
            "type": "ready", "protocol": 1, "agent_version": "0.1.0", "hostname": "mill", "boot_id": "boot-1",
            "spool_id": "spool-1", "cpus": 8, "memory_mib": 65536,
            "containment": {"level": "C", "detail": "no control groups", "memory_limit": False},
            "gpus": self.gpus, "driver": {"vendor": self.vendor, "version": "1", "cuda": None, "error": None},
            "attempts": list(self.attempts.values()), "spool_filesystem": "ext4", "warnings": [], **self.greeting,
        }  # fmt: skip

    def answers(self, frame: Frame) -> list[Frame]:
        """What the agent says to a frame."""
        kind, attempt = frame["type"], frame.get("attempt")
        if kind == "hello":
            return [] if self.is_mute else [self.ready()]
        if kind == "start" and self.runs_jobs:
            return [self.note(attempt, "running", job=frame["spec"]["job"], gpus=frame["spec"]["gpus"],
                              started_at=WALL_S, shim_pid=4000 + len(self.attempts), stopping=None)]  # fmt: skip
        if kind == "stop" and attempt in self.attempts:
            return [self.exit_record(attempt, signal=15, status="signaled", reason=frame["reason"])]
        if kind == "fence" and attempt not in self.attempts:
            return [self.note(attempt, "fenced")]
        if kind == "release":
            self.attempts.pop(str(attempt), None)
        return []

    def note(self, attempt: object, phase: str, **fields: Any) -> Frame:
        """An `attempt` frame, which is also what the spool holds from now on."""
        frame = {"type": "attempt", "attempt": attempt, "phase": phase, "job": None, "gpus": [], **fields}
        self.attempts[str(attempt)] = frame
        return frame

    def exit_record(self, attempt: object, **fields: Any) -> Frame:
        """An `attempt` frame of phase `ended`; `fields` replace some of it."""
        before = self.attempts.get(str(attempt), {})
        record = {
            "status": "exited", "exit_code": None, "signal": None, "reason": None, "error": None,
            "started_at": WALL_S, "ended_at": WALL_S + 60, "run_s": 60.0, "cpu_s": 50.0, "max_rss_mib": 100,
            "log_bytes": 10, "log_dropped_bytes": 0, "job": before.get("job"), "gpus": before.get("gpus", []),
        }  # fmt: skip
        return self.note(attempt, **{"phase": "ended", **record, **fields})

    def end(self, attempt: object, exit_code: int = 0, **fields: Any) -> None:
        """The program of an attempt ends."""
        self.link.say(self.exit_record(attempt, exit_code=exit_code, **fields))

    def sent(self, kind: str) -> list[Frame]:
        """Every frame of a type that the daemon sent, over all lives."""
        return [frame for link in self.links for frame in link.sent if frame["type"] == kind]


class FakeLink:
    """One life of a FakeAgent; a link as gpuq.daemon.ports has it."""

    def __init__(self, agent: FakeAgent) -> None:
        self.agent = agent
        self.sent: list[Frame] = []
        self.is_closed = False
        self._said: asyncio.Queue[Frame | None] = asyncio.Queue()

    async def send(self, frame: Frame) -> None:
        """Take a frame, and answer it as the agent would."""
        if self.is_closed:
            raise NodeError("The agent is gone.")
        self.sent.append(frame)
        for answer in self.agent.answers(frame):
            self.say(answer)

    async def frames(self) -> AsyncIterator[Frame]:
        """What the agent says, until its end."""
        while (frame := await self._said.get()) is not None:
            yield frame

    async def close(self) -> None:
        """End the agent."""
        self.break_off()

    def say(self, frame: Frame) -> None:
        """The agent says something by itself."""
        self._said.put_nowait(frame)

    def break_off(self) -> None:
        """The agent ends, or the line to it does."""
        self.is_closed = True
        self._said.put_nowait(None)
