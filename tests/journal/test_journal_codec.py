"""The codec: every event survives storage, old rows read, new ones are refused, poison never gets in."""

from __future__ import annotations

import json
import typing

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_cases import EVENT_TYPES, STAMP, one_of_each, released

from gpuq.core import events, model
from gpuq.core.model import JobId, Record, Stamp
from gpuq.errors import JournalError
from gpuq.journal import JournalBroken
from gpuq.journal.codec import CODEC_VERSION, EventRow, checksum, entry_of, event_rows

NUMBERS = st.integers(-(2**53), 2**53)
REALS = st.floats(allow_nan=False, allow_infinity=False)
RECORDS = [
    value
    for module in (model, events)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, Record) and value not in (Record, events.Event, events.Action)
]


def values_of(hint: typing.Any) -> st.SearchStrategy[typing.Any]:
    """Values of one annotation; plain numbers and texts are limited to what JSON carries."""
    if isinstance(hint, typing.NewType):
        return values_of(hint.__supertype__)
    simple = {int: NUMBERS, float: REALS, str: st.text(max_size=8), bool: st.booleans(), type(None): st.none()}
    if hint in simple:
        return simple[hint]
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        if arguments[-1] is Ellipsis:
            return st.lists(values_of(arguments[0]), max_size=2).map(tuple)
        return st.tuples(*map(values_of, arguments))
    if arguments:
        return st.one_of(*map(values_of, arguments))
    if issubclass(hint, msgspec.Struct):
        return records_of(hint)
    return st.sampled_from(hint)


def records_of(kind: type[msgspec.Struct]) -> st.SearchStrategy[typing.Any]:
    """Records of one type with every field drawn."""
    return st.builds(kind, **{field.name: values_of(field.type) for field in msgspec.structs.fields(kind)})


@settings(max_examples=200, deadline=None)
@given(st.one_of(*map(records_of, EVENT_TYPES)), REALS, REALS, st.integers(1, 2**60))
def test_every_event_reads_back_the_same(event: events.AnyEvent, wall_s: float, steady_s: float, seq: int) -> None:
    """Whatever an event holds, its row decodes to an equal entry."""
    (row,) = event_rows(seq, [(Stamp(wall_s=wall_s, steady_s=steady_s), event)])
    entry = entry_of(row)
    assert (entry.seq, entry.stamp.wall_s, entry.stamp.steady_s, entry.event) == (seq, wall_s, steady_s, event)
    assert type(entry.event) is type(event)


def test_the_cases_name_every_event_type() -> None:
    """The list that the golden journal is made of leaves no event type out."""
    assert {type(event) for event in one_of_each()} == set(EVENT_TYPES)


def test_all_records_are_frozen() -> None:
    """No record that is stored can be changed after it was stored."""
    assert len(RECORDS) > 20
    assert all(kind.__struct_config__.frozen for kind in RECORDS)


def row_of(body: str, v: int = CODEC_VERSION) -> EventRow:
    """A row as some gpuq might have written it."""
    columns = (5, 1.0, 2.0, v, None)
    return EventRow(*columns, body.encode(), checksum(columns, body.encode()))


def test_fields_added_later_take_their_defaults() -> None:
    """A row written before a field existed decodes with that field's default."""
    event = entry_of(row_of('{"type":"JobPlaced","job":"1","attempt":"a","node":"n"}')).event
    assert event == events.JobPlaced(job=JobId("1"), attempt=model.AttemptId("a"), node=model.NodeName("n"))


def test_a_newer_format_is_refused_by_its_number() -> None:
    """A row of a newer codec is an error that names its format, even when it would decode."""
    with pytest.raises(JournalError, match=f"newer gpuq: entry 5 has format {CODEC_VERSION + 1}"):
        entry_of(row_of('{"type":"JobReleased","job":"1"}', v=CODEC_VERSION + 1))


@pytest.mark.parametrize("body", ['{"type":"JobsMerged","job":"1"}', '{"type":"JobReleased"}', "{", "\udc80"])
def test_an_unknown_event_is_an_error_that_names_the_entry(body: str) -> None:
    """An event that this gpuq does not know stops the replay and points to a newer gpuq."""
    data = body.encode("utf-8", "surrogateescape")
    columns = (5, 1.0, 2.0, CODEC_VERSION, None)
    with pytest.raises(JournalError, match="entry 5") as caught:
        entry_of(EventRow(*columns, data, checksum(columns, data)))
    assert "newer gpuq" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "event",
    [
        events.AttemptStarted(job=JobId("1"), attempt=model.AttemptId("a"), started_at=float("nan")),
        events.AttemptStarted(job=JobId("1"), attempt=model.AttemptId("a"), started_at=float("inf")),
        events.JobHeld(job=JobId("1"), hold=model.Hold.USER, message="\udcff"),
        events.JobReleased(job=7),  # type: ignore[arg-type]
    ],
)
def test_what_would_not_read_back_is_refused_before_it_is_written(event: events.AnyEvent) -> None:
    """Infinity, a lone surrogate or a wrong type never reaches the file."""
    with pytest.raises(JournalError, match="cannot be stored"):
        event_rows(1, [(STAMP, event)])


@pytest.mark.parametrize("position", range(7))
def test_each_column_is_under_the_checksum(position: int) -> None:
    """A change of any column of a row is noticed."""
    (row,) = event_rows(3, [(STAMP, released(9))])
    changed: typing.Any = list(row)
    changed[position] = row.body + b" " if position == 5 else (row[position] + 1 if position != 4 else "8")  # type: ignore[operator]
    with pytest.raises(JournalBroken, match="checksum"):
        entry_of(EventRow(*changed))


def test_stored_events_are_plain_json_with_their_tag() -> None:
    """Rows can be read without gpuq: JSON with the event's name under `type`."""
    for event, row in zip(one_of_each(), event_rows(1, [(STAMP, event) for event in one_of_each()]), strict=True):
        assert json.loads(row.body)["type"] == type(event).__name__
