"""Reads a job's output file: from the end, as it grows, around holes. Imports units.

One thing to know: bytes go to a pipe as they are. For a terminal, escape sequences other than colours are taken out,
so that a log cannot retitle the window or hide what follows. A hole that the log limit punched is named, not read.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Iterator
from typing import Final

from gpuq.units import format_bytes

_BLOCK: Final = 1 << 16
_SEQUENCE: Final = re.compile(
    r"\x1b\[[0-9;:]*m"  # colours: kept
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # other control sequences
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\)"  # titles, links and strings
    r"|\x1b[ -/]*[0-~]"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f]",
    re.DOTALL,
)
_UNFINISHED: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]{0,4096}\x1b?|[ -/]*)?\Z")


class TerminalText:
    """Turns the bytes of a log into text that is safe to show; keeps what is unfinished for the next call."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""

    def shown(self, data: bytes, final: bool = False) -> str:
        """The text of `data`, after what was kept of earlier calls."""
        text = self._rest + self._decode(data, final)
        self._rest = ""
        if not final:
            cut = _UNFINISHED.search(text)
            if cut:
                text, self._rest = text[: cut.start()], text[cut.start() :]
        return _SEQUENCE.sub(_kept, text)


def _kept(found: re.Match[str]) -> str:
    sequence = found[0]
    return sequence if sequence.startswith("\x1b[") and sequence.endswith("m") and "?" not in sequence else ""


def tail_offset(descriptor: int, lines: int) -> int:
    """Where the last `lines` lines begin; reads from the end, so the size of the file does not matter."""
    size = os.fstat(descriptor).st_size
    if lines <= 0 or size == 0:
        return size
    # A line break that ends the file ends its last line: it does not begin another one.
    wanted = lines + (1 if os.pread(descriptor, 1, size - 1) == b"\n" else 0)
    position = size
    while position > 0:
        start = max(0, position - _BLOCK)
        block = os.pread(descriptor, position - start, start)
        count = block.count(b"\n")
        if count >= wanted:
            place = len(block)
            for _ in range(wanted):
                place = block.rindex(b"\n", 0, place)
            return start + place + 1
        if not block.strip(b"\0"):  # inside a hole: nothing before it belongs to these lines
            return position
        wanted -= count
        position = start
    return 0


def pieces(descriptor: int, start: int, stop: int, with_holes: bool) -> Iterator[bytes | int]:
    """The content from `start` to `stop`: blocks of bytes, and for a hole the number of bytes left out."""
    position = start
    while position < stop:
        data_at, data_end = _extent(descriptor, position, stop) if with_holes else (position, stop)
        if data_at > position:
            yield data_at - position
            position = data_at
        while position < data_end:
            block = os.pread(descriptor, min(_BLOCK, data_end - position), position)
            if not block:
                return
            yield block
            position += len(block)


def _extent(descriptor: int, position: int, stop: int) -> tuple[int, int]:
    """The next stretch of data at or after `position`."""
    try:
        data_at = os.lseek(descriptor, position, os.SEEK_DATA)
    except OSError:  # ENXIO: nothing but a hole up to the end
        return stop, stop
    return min(data_at, stop), min(os.lseek(descriptor, data_at, os.SEEK_HOLE), stop)


def hole_note(number_bytes: int) -> str:
    """What stands in the place of a hole."""
    return f"\n[… {format_bytes(number_bytes)} left out here by the log limit …]\n"


def copy(descriptor: int, start: int, write: Callable[[bytes], None], with_holes: bool) -> int:
    """Write everything from `start` to the present end; the offset that was reached."""
    stop = os.fstat(descriptor).st_size
    for piece in pieces(descriptor, start, stop, with_holes):
        write(hole_note(piece).encode() if isinstance(piece, int) else piece)
    return max(start, stop)
