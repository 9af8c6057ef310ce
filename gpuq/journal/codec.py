"""Rows to records and back: events, archived jobs, their versions and checksums. Imports core, msgspec.

Each row carries the version of the codec that wrote it. Older rows decode with the defaults of fields added
since; rows of a newer codec are refused, since skipping what one does not know would change the state silently.
One thing to know: an event is read back before it is written. A value that JSON cannot carry (infinity, a lone
surrogate) is so refused at once, and can never make a journal that cannot be replayed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from gpuq.core.events import AnyEvent, JobsForgotten, JobsSubmitted
from gpuq.core.model import JobId, Record, Stamp
from gpuq.errors import JournalError
from gpuq.journal.problems import DAMAGE_HINT, JournalBroken

CODEC_VERSION: Final = 1  # to be raised whenever an event, or a field of one, is added

_encoder: Final = msgspec.json.Encoder()
_decoder: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(AnyEvent)


class Entry(Record, frozen=True, kw_only=True):
    """One event of the journal: its number, when it happened, and what."""

    seq: int
    stamp: Stamp
    event: AnyEvent


class EventRow(NamedTuple):
    """One row of the table `event`."""

    seq: int
    wall_s: float
    steady_s: float
    v: int
    job: str | None
    body: bytes
    crc: int


def event_rows(first_seq: int, entries: Iterable[tuple[Stamp, AnyEvent]]) -> list[EventRow]:
    """The rows of consecutive entries; raises JournalError for an event that would not read back the same."""
    return [_event_row(seq, stamp, event) for seq, (stamp, event) in enumerate(entries, first_seq)]


def _event_row(seq: int, stamp: Stamp, event: AnyEvent) -> EventRow:
    body = encode_checked(event, _decoder)
    columns = (seq, float(stamp.wall_s), float(stamp.steady_s), CODEC_VERSION, _job_of(event))
    return EventRow(*columns, body, checksum(columns, body))


def entry_of(row: EventRow) -> Entry:
    """The entry of a row; raises JournalError when it is damaged or of a newer gpuq."""
    check_row(row, f"Entry {row.seq} of the journal")
    event = decode_checked(row.body, row.v, _decoder, f"entry {row.seq}")
    return Entry(seq=row.seq, stamp=Stamp(wall_s=row.wall_s, steady_s=row.steady_s), event=event)


def checksum(columns: Sequence[object], body: bytes) -> int:
    """CRC-32 of a row: of its columns as JSON, then of its body."""
    return zlib.crc32(body, zlib.crc32(_encoder.encode(columns)))


def check_row(row: Sequence[Any], what: str) -> None:
    """Raise JournalBroken unless the last value of the row is the checksum of those before; `what` names it."""
    *columns, body, crc = row
    if not isinstance(body, bytes) or crc != checksum(columns, body):
        raise JournalBroken(f"{what} is damaged: its checksum is wrong.", DAMAGE_HINT)


def encode_checked(record: Record, decoder: msgspec.json.Decoder[Any]) -> bytes:
    """The record as JSON; raises JournalError unless it reads back the same."""
    try:
        body = _encoder.encode(record)
        same = decoder.decode(body) == record
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise _unwritable(record, str(error)) from error
    if not same:
        raise _unwritable(record, "a value in it changes when it is stored")
    return body


def decode_checked(body: bytes, v: int, decoder: msgspec.json.Decoder[Any], what: str) -> Any:
    """The record in `body`, which a codec of version `v` wrote; `what` names it in errors."""
    if v > CODEC_VERSION:
        raise JournalError(
            f"The journal was written by a newer gpuq: {what} has format {v}, this one reads up to {CODEC_VERSION}.",
            "Start the newer gpuq again.",
        )
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise JournalBroken(
            f"The journal's {what} (format {v}) is not known to this gpuq: {error}.",
            "If a newer gpuq has used this journal, start that one again.",
        ) from error


def _unwritable(record: Record, why: str) -> JournalError:
    name = type(record).__name__
    return JournalError(f"The record {name} cannot be stored: {why}.", "This is a fault of gpuq: report it.")


def _job_of(event: AnyEvent) -> JobId | None:
    """The job whose history the event belongs to, or None when it is about no single job."""
    if isinstance(event, JobsSubmitted):
        return event.id
    if isinstance(event, JobsForgotten):
        return event.jobs[0] if len(event.jobs) == 1 else None
    return getattr(event, "job", None)
