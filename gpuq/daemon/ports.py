"""What the loop needs from outside, as protocols, and the system's clock. Imports core.

One thing to know: `steady_s` continues across restarts from the last stamp in the journal, so ages neither
jump with the wall clock nor start again at zero.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from gpuq.core.events import AnyEvent
from gpuq.core.model import BlobId, JobId, Stamp
from gpuq.journal.archive import ArchivedJob

MAX_GAP_S = 30 * 86400.0  # a longer gap between two runs is taken for a wrong wall clock

Frame = dict[str, Any]


class Clock(Protocol):
    """The only source of time in the daemon."""

    def now(self) -> Stamp:
        """This moment on both clocks."""
        ...


class SystemClock:
    """Wall clock and monotonic clock of this machine."""

    def __init__(self) -> None:
        self._offset_s = -time.monotonic()

    def resume_from(self, last: Stamp) -> None:
        """Continue the steady clock after the last known stamp, counting the pause when it is plausible."""
        pause_s = min(max(0.0, time.time() - last.wall_s), MAX_GAP_S)
        self._offset_s = last.steady_s + pause_s - time.monotonic()

    def now(self) -> Stamp:
        """This moment on both clocks."""
        return Stamp(wall_s=time.time(), steady_s=time.monotonic() + self._offset_s)


class Store(Protocol):
    """The journal as the loop uses it."""

    last_seq: int  # number of the newest entry

    def append(
        self,
        entries: Sequence[tuple[Stamp, AnyEvent]],
        *,
        blobs: Mapping[BlobId, bytes] = ...,
        archive: Sequence[ArchivedJob] = ...,
        forget: Collection[JobId] = ...,
    ) -> int:
        """Write events durably, all or none; returns the last event number. Raises JournalError."""
        ...

    def load(self) -> tuple[bytes | None, Iterator[Any]]:
        """The newest snapshot and the entries after it."""
        ...

    def snapshot(self, state: bytes, seq: int) -> None:
        """Keep a snapshot of the state as of an event number."""
        ...

    def probe(self) -> bool:
        """Whether writing works (again)."""
        ...

    def blob(self, id_: BlobId) -> bytes:
        """An environment or script; raises JournalError when it is not there."""
        ...


class Link(Protocol):
    """A living connection to one agent."""

    async def send(self, frame: Frame) -> None:
        """Hand a frame over; raises NodeError when the link is gone."""
        ...

    def frames(self) -> AsyncIterator[Frame]:
        """Frames from the agent until the link ends."""
        ...

    async def close(self) -> None:
        """End the link (and with it the agent; shims go on)."""
        ...
