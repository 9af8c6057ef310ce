"""The high-water mark: how far the journal was acknowledged, kept outside the database. Imports files.

SQLite forgets commits silently when its -wal file is lost or damaged, or when an old copy is put back, and
still calls the result sound. This file remembers the newest acknowledged entry, so that gpuq notices.
One thing to know: two fixed slots are written in turn, each with its checksum. A power cut can tear only the slot being
written; the other one then holds the mark before, which the database is allowed to be ahead of.
"""

from __future__ import annotations

import os
import struct
import uuid
import zlib
from pathlib import Path
from typing import Final, NamedTuple

from gpuq.journal.files import replace_durably

SLOT_BYTES: Final = 64
_MAGIC: Final = b"gpuqhw01"
_BODY: Final = struct.Struct("<8s16sQQ20x")  # magic, state id, count of writes, entry number
_CRC: Final = struct.Struct("<I")


class Mark(NamedTuple):
    """The newest acknowledged entry of a state."""

    state_id: str
    seq: int
    writes: int = 0  # rises with each write; says which slot is newer


class HighWater:
    """The open file; `write` is durable when it returns."""

    def __init__(self, fd: int, mark: Mark) -> None:
        self._fd = fd
        self.mark = mark

    @classmethod
    def create(cls, path: Path, state_id: str, seq: int) -> HighWater:
        """Replace the file by one that says `seq`; raises OSError."""
        first, second = Mark(state_id, seq, 0), Mark(state_id, seq, 1)
        replace_durably(path, _slot(first) + _slot(second))
        return cls.reopen(path, second)

    @classmethod
    def reopen(cls, path: Path, mark: Mark) -> HighWater:
        """Go on from `mark`, which `read_mark` found in the file; raises OSError."""
        return cls(os.open(path, os.O_WRONLY | os.O_CLOEXEC), mark)

    def write(self, seq: int) -> None:
        """Say that entry `seq` is acknowledged; raises OSError."""
        mark = Mark(self.mark.state_id, seq, self.mark.writes + 1)
        offset = SLOT_BYTES * (mark.writes % 2)
        if os.pwrite(self._fd, _slot(mark), offset) != SLOT_BYTES:
            raise OSError(f"short write of the high-water mark {seq}")
        os.fdatasync(self._fd)
        self.mark = mark

    def close(self) -> None:
        """Close the file; nothing is left to write."""
        os.close(self._fd)


def read_mark(path: Path) -> Mark | None:
    """The newest intact mark, or None when both slots are damaged; raises FileNotFoundError and other OSErrors."""
    data = path.read_bytes()
    slots = (data[start : start + SLOT_BYTES] for start in (0, SLOT_BYTES))
    marks = [mark for mark in map(_mark_in, slots) if mark is not None]
    return max(marks, key=lambda mark: mark.writes, default=None)


def _slot(mark: Mark) -> bytes:
    body = _BODY.pack(_MAGIC, uuid.UUID(mark.state_id).bytes, mark.writes, mark.seq)
    return body + _CRC.pack(zlib.crc32(body))


def _mark_in(slot: bytes) -> Mark | None:
    if len(slot) != SLOT_BYTES:
        return None
    body, (crc,) = slot[: _BODY.size], _CRC.unpack(slot[_BODY.size :])
    if crc != zlib.crc32(body):
        return None
    magic, state_id, writes, seq = _BODY.unpack(body)
    return Mark(str(uuid.UUID(bytes=state_id)), seq, writes) if magic == _MAGIC else None
