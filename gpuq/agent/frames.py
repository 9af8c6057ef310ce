"""Frames on the agent's stdin and stdout: one JSON object a line. Owns their limits and their buffering.

May import: the standard library. One thing to know: neither side blocks; when the daemon does not read,
frames that go stale by themselves (samples, heartbeats) are dropped and all others are kept.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Dict, List

Frame = Dict[str, Any]

LIMIT_BYTES = 16 * 1024 * 1024
STALE_ABOVE_BYTES = 1024 * 1024
STALE_TYPES = ("samples", "heartbeat")
READ_BYTES = 256 * 1024


def note(text: str) -> None:
    """Write one log line to stderr; a closed stderr costs the line, nothing else."""
    line = " ".join(text.split())
    try:
        sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} gpuq agent: {line}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


def decoded(line: bytes) -> Frame:
    """One line as a frame; raises ValueError with a sentence when it is none."""
    try:
        frame = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a line of {len(line)} bytes is not JSON ({error}); it was ignored.") from None
    if not isinstance(frame, dict) or not isinstance(frame.get("type"), str):
        raise ValueError("a line is not a JSON object with a `type`; it was ignored.")
    return frame


class FrameReader:
    """Cuts a non-blocking descriptor's bytes into frames; bad lines are noted and skipped."""

    def __init__(self, descriptor: int, limit_bytes: int = LIMIT_BYTES) -> None:
        self.descriptor = descriptor
        self.limit_bytes = limit_bytes
        self.ended = False
        self._pieces: List[bytes] = []
        self._size = 0
        self._skipping = False

    def read(self) -> List[Frame]:
        """Every frame that is complete after one read; `ended` is set at end of input."""
        try:
            data = os.read(self.descriptor, READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.ended = True
            return []
        lines = data.split(b"\n")
        frames: List[Frame] = []
        for piece in lines[:-1]:
            self._add(piece)
            self._finish_line(frames)
        self._add(lines[-1])
        return frames

    def _add(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self.limit_bytes:
            self._pieces.clear()
            self._skipping = True
        elif piece:
            self._pieces.append(piece)

    def _finish_line(self, frames: List[Frame]) -> None:
        line, size, skipping = b"".join(self._pieces), self._size, self._skipping
        self._pieces.clear()
        self._size, self._skipping = 0, False
        if skipping:
            note(f"a frame of {size} bytes is over the limit of {self.limit_bytes} bytes; it was ignored.")
            return
        if not line.strip():
            return
        try:
            frames.append(decoded(line))
        except ValueError as error:
            note(str(error))


class FrameWriter:
    """Buffers frames for a non-blocking descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.broken = False
        self._buffer = bytearray()

    @property
    def waiting(self) -> bool:
        """Whether bytes wait for the other side to read."""
        return bool(self._buffer)

    def send(self, frame: Frame) -> None:
        """Queue one frame; it leaves at the next `flush`."""
        if frame["type"] in STALE_TYPES and len(self._buffer) > STALE_ABOVE_BYTES:
            return
        self._buffer += json.dumps(frame, separators=(",", ":")).encode("ascii") + b"\n"

    def flush(self) -> None:
        """Write as much as the descriptor takes now; `broken` is set when nobody reads any more."""
        while self._buffer:
            try:
                written = os.write(self.descriptor, memoryview(self._buffer)[:READ_BYTES])
            except BlockingIOError:
                return
            except OSError:
                self.broken = True
                self._buffer.clear()
                return
            del self._buffer[:written]
