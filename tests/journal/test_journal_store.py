"""The journal in normal use: what goes in comes out, in order, also after it was closed; files are private."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from journal_cases import BLOB, ENVIRONMENT, SPEC, STAMP, ended_job, one_of_each, released, run_program

from gpuq.core.events import JobHeld, JobPlaced, JobsSubmitted
from gpuq.core.model import AttemptId, BlobId, Hold, JobId, NodeName, Stamp, User
from gpuq.core.states import JobState
from gpuq.errors import JournalError
from gpuq.journal import HistoryQuery, Journal, JournalBroken, blob_id, list_backups
from gpuq.journal.store import EVENT_DAYS


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory that does not exist yet."""
    return tmp_path / "new" / "home"


@pytest.fixture
def journal(home: Path) -> Iterator[Journal]:
    """A fresh journal."""
    opened = Journal.open(home)
    yield opened
    opened.close()


def replayed(home: Path) -> tuple[bytes | None, list[int]]:
    """Snapshot and entry numbers that a start would see."""
    journal = Journal.open(home)
    try:
        state, entries = journal.load()
        return state, [entry.seq for entry in entries]
    finally:
        journal.close()


def test_a_new_journal_is_empty(journal: Journal) -> None:
    """First use makes an empty journal with a random state id and no warnings."""
    state, entries = journal.load()
    assert (state, list(entries), journal.last_seq, journal.lost_entries) == (None, [], 0, 0)
    assert len(journal.state_id) == 36
    assert journal.warnings == ()


def test_entries_come_back_in_order_after_reopening(home: Path, journal: Journal) -> None:
    """Every event type is replayed with its number and stamp; numbers go on after reopening."""
    events = one_of_each()
    assert journal.append([(STAMP, event) for event in events[:5]]) == 5
    assert journal.append([(STAMP, event) for event in events[5:]]) == len(events)
    state_id = journal.state_id
    journal.close()
    again = Journal.open(home)
    _, entries = again.load()
    found = list(entries)
    assert [entry.event for entry in found] == events
    assert [entry.seq for entry in found] == list(range(1, len(events) + 1))
    assert {entry.stamp for entry in found} == {STAMP}
    assert (again.state_id, again.append([(STAMP, released(1))])) == (state_id, len(events) + 1)
    again.close()


def test_appending_nothing_changes_nothing(journal: Journal) -> None:
    """An empty append is allowed and uses no number."""
    assert journal.append([]) == 0
    assert list(journal.load()[1]) == []


def test_a_refused_event_leaves_nothing_behind(journal: Journal) -> None:
    """When one event of a group cannot be stored, neither it nor its group nor its blobs are there."""
    bad = JobHeld(job=JobId("1"), hold=Hold.USER, message="\ud800")
    with pytest.raises(JournalError):
        journal.append([(STAMP, released(1)), (STAMP, bad)], blobs={BLOB: ENVIRONMENT})
    with pytest.raises(JournalError):
        journal.append([(STAMP, released(1))], archive=[ended_job("1", 1, state=JobState.RUNNING)])
    assert list(journal.load()[1]) == []
    with pytest.raises(JournalError, match="no blob"):
        journal.blob(BLOB)


def test_a_snapshot_bounds_the_replay(home: Path, journal: Journal) -> None:
    """After a snapshot at 3 of 5 entries, the replay has that state and entries 4 and 5; only the newest counts."""
    journal.append([(STAMP, released(n)) for n in range(5)])
    journal.snapshot(b"early", 2)
    journal.snapshot(b"\x00state", 3)
    journal.close()
    assert replayed(home) == (b"\x00state", [4, 5])


def test_a_long_replay_has_every_entry(journal: Journal) -> None:
    """Replay reads in pieces: no entry is left out or doubled at their borders, nor is an append meanwhile seen."""
    journal.append([(STAMP, released(n)) for n in range(2500)])
    _, entries = journal.load()
    first = next(entries)
    journal.append([(STAMP, released(0))])
    assert [first.seq, *(entry.seq for entry in entries)] == list(range(1, 2501))


def test_damage_while_running_is_told_in_words(home: Path, journal: Journal) -> None:
    """A page that goes bad under the running daemon gives JournalBroken, never a bare SQLite error."""
    journal.append([(STAMP, released(n)) for n in range(2000)])
    journal.close()
    again = Journal.open(home)
    size = (home / "journal.db").stat().st_size
    again._connection.execute("PRAGMA cache_size = 0").fetchone()
    with (home / "journal.db").open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    with pytest.raises(JournalBroken, match="damaged while gpuq ran"):
        again.events()
    with pytest.raises(JournalBroken, match="damaged while gpuq ran"):
        list(again.load()[1])
    again.close()


@pytest.mark.parametrize("seq", [-1, 6])
def test_a_snapshot_of_a_future_entry_is_refused(journal: Journal, seq: int) -> None:
    """A snapshot must be of an entry that exists, or the replay would skip entries."""
    journal.append([(STAMP, released(n)) for n in range(5)])
    with pytest.raises(JournalError, match="ends at entry 5"):
        journal.snapshot(b"x", seq)


def test_old_entries_go_with_a_snapshot_and_numbers_never_return(home: Path, journal: Journal) -> None:
    """Entries older than the kept days by the steady clock go when covered; the wall clock has no say."""
    late = Stamp(wall_s=0.0, steady_s=STAMP.steady_s + EVENT_DAYS * 86400 + 1)
    jumped = Stamp(wall_s=STAMP.wall_s + 1e9, steady_s=late.steady_s)
    journal.append([(STAMP, released(1)), (STAMP, released(2)), (late, released(3)), (jumped, released(4))])
    journal.snapshot(b"s", 1)
    assert [entry.seq for entry in journal.events()] == [2, 3, 4]
    journal.snapshot(b"s", 4)
    assert [entry.seq for entry in journal.events()] == [3, 4]
    journal.close()
    assert replayed(home) == (b"s", [])
    again = Journal.open(home)
    assert again.append([(STAMP, released(5))]) == 5
    again.close()


def test_events_of_a_job_an_array_or_a_task(journal: Journal) -> None:
    """A task's history has its array's submit but no sibling; an array's has all; no other id is mixed in."""
    def placed(job: str) -> JobPlaced:
        return JobPlaced(job=JobId(job), attempt=AttemptId(job), node=NodeName("n"))

    owner = User(name="ada", uid=1)
    submits = [JobsSubmitted(id=JobId(n), spec=SPEC, owner=owner) for n in ("4", "42", "421")]
    rest = [placed(job) for job in ("42_1", "42_2", "421_1", "4", "42_10")]
    journal.append([(STAMP, event) for event in (*submits, *rest)])

    def numbers(**filters: object) -> list[int]:
        return [entry.seq for entry in journal.events(**filters)]  # type: ignore[arg-type]

    assert numbers(job="42_1") == [2, 4]
    assert numbers(job="42") == [2, 4, 5, 8]
    assert numbers(job="4") == [1, 7]
    assert numbers(job="9") == []
    assert numbers(since=5) == [6, 7, 8]
    assert numbers(since=2, job="42", limit=2) == [4, 5]
    assert numbers(limit=0) == []


def test_blobs_are_kept_by_digest_and_collected(journal: Journal) -> None:
    """A blob is read back by its digest, stored once, and goes when nobody keeps it; a false name is refused."""
    other = blob_id(b"other")
    journal.append([], blobs={BLOB: ENVIRONMENT, other: b"other"})
    journal.append([(STAMP, released(1))], blobs={BLOB: ENVIRONMENT})
    assert journal.blob(BLOB) == ENVIRONMENT
    assert journal.collect({BLOB}) == 1
    assert journal.blob(BLOB) == ENVIRONMENT
    with pytest.raises(JournalError, match="no blob"):
        journal.blob(other)
    with pytest.raises(JournalError, match="SHA-256"):
        journal.append([], blobs={BlobId("a" * 64): b"x"})


def test_archived_jobs_come_back_whole(home: Path, journal: Journal) -> None:
    """A job's record, spec and GPUs survive reopening; one that ran again replaces the earlier record."""
    first, task = ended_job("7", 1), ended_job("8_2", 2, task=2)
    journal.append([(STAMP, released(7))], archive=[first, task])
    journal.close()
    again = Journal.open(home)
    assert again.archived(JobId("7")) == first
    assert again.archived(JobId("8_2")) == task
    assert again.archived(JobId("8")) is None
    newer = ended_job("7", 1, state=JobState.FAILED, restarts=1)
    again.append([], archive=[newer])
    assert again.archived(JobId("7")) == newer
    assert again.archived_states([JobId("7"), JobId("8"), JobId("9")]) == {"7": "FAILED", "8_2": "COMPLETED"}
    again.close()


def test_history_filters_and_pages(journal: Journal) -> None:
    """Each filter alone gives the right jobs, newest submit first; `before` pages on without gap or repeat."""
    jobs = [
        ended_job("1", 1, owner=User(name="bob", uid=2), ended_at=100.0),
        ended_job("2", 2, state=JobState.FAILED, ended_at=200.0),
        ended_job("3_1", 3, task=1, ended_at=300.0),
        ended_job("3_2", 4, task=2, ended_at=400.0, attempt=None),
        ended_job("33", 5, ended_at=500.0),
    ]
    journal.append([], archive=jobs)

    def ids(**filters: object) -> list[str]:
        return [found.job.id for found in journal.history(HistoryQuery(**filters))]  # type: ignore[arg-type]

    assert ids() == ["33", "3_2", "3_1", "2", "1"]
    assert ids(user="bob") == ["1"]
    assert ids(states=(JobState.FAILED, JobState.TIMEOUT)) == ["2"]
    assert ids(name=SPEC.name, limit=2) == ["33", "3_2"]
    assert ids(name="other") == []
    assert ids(since=200.0, until=400.0) == ["3_1", "2"]
    assert ids(ids=("3", "1")) == ["3_2", "3_1", "1"]
    assert ids(ids=("3_2",)) == ["3_2"]
    assert ids(before=4, limit=2) == ["3_1", "2"]
    assert ids(user="x' OR 1=1 --") == []


def test_forgetting_removes_records_and_lonely_specs(journal: Journal) -> None:
    """Pruned jobs and their specs are gone; a spec that another job shares stays."""
    journal.append([], archive=[ended_job("3_1", 1), ended_job("3_2", 2), ended_job("4", 3)])
    journal.append([(STAMP, released(1))], forget=[JobId("3_1")])
    assert journal.archived(JobId("3_1")) is None
    assert journal.forget([JobId("3"), JobId("99")]) == 1
    assert journal.archived(JobId("4")) == ended_job("4", 3)
    assert journal.forget([JobId("4")]) == 1
    journal.append([], archive=[ended_job("5", 4)])
    assert journal.archived(JobId("5")) == ended_job("5", 4)


def test_a_sweep_stores_its_spec_once(home: Path, journal: Journal) -> None:
    """A thousand ended tasks with a large common spec cost one copy of it."""
    from msgspec.structs import replace

    spec = replace(SPEC, values=(("lr", tuple(str(n) * 20 for n in range(1000))),))
    journal.append([], archive=[ended_job(f"5_{n}", n, task=n, spec=spec) for n in range(1000)])
    journal.close()
    assert (home / "journal.db").stat().st_size < 3_000_000


def test_files_are_private_from_birth(home: Path) -> None:
    """With umask 0 no file of the journal is readable by others, not even its -wal and backups."""
    before = os.umask(0)
    try:
        journal = Journal.open(home)
        journal.append([(STAMP, released(1))])
        journal.backup("hourly")
        found = [path for path in home.rglob("*") if path.is_file()]
        names = {path.name for path in found}
        modes = {stat.S_IMODE(path.stat().st_mode) for path in found}
        journal.close()
    finally:
        os.umask(before)
    assert {"journal.db", "journal.db-wal", "highwater", "reserve"} <= names
    assert modes == {0o600}
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


SECOND = """
import sys
from pathlib import Path
from gpuq.errors import JournalError
from gpuq.journal import Journal
try:
    Journal.open(Path(sys.argv[1]))
except JournalError as error:
    print(error.message)
"""


def test_a_second_daemon_is_refused_in_one_sentence(home: Path, journal: Journal) -> None:
    """Another process is told who owns the journal, and neither harms it nor gets in; so is a second open here."""
    journal.append([(STAMP, released(1))])
    answer = run_program(SECOND, home)
    assert answer.stdout == f"another gpuq daemon owns {home}/journal.db (process {os.getpid()})\n"
    assert answer.stderr == ""
    with pytest.raises(JournalError, match="another gpuq daemon owns"):
        Journal.open(home)
    assert journal.append([(STAMP, released(2))]) == 2
    journal.close()
    assert replayed(home) == (None, [1, 2])


def test_other_programs_cannot_open_the_database_meanwhile(home: Path, journal: Journal) -> None:
    """SQLite's own exclusive lock keeps out what does not know gpuq's lock file."""
    journal.append([(STAMP, released(1))])
    probe = "import sqlite3,sys\ntry: sqlite3.connect(sys.argv[1],timeout=0).execute('select * from event')\n"
    answer = run_program(probe + "except sqlite3.OperationalError as e: print(e)", home / "journal.db")
    assert answer.stdout == "database is locked\n"


def test_a_database_that_another_program_holds_is_refused(home: Path, journal: Journal) -> None:
    """A foreign lock on the database is the same one-sentence error, not a wait or a traceback."""
    journal.append([(STAMP, released(1))])
    journal.close()
    other = sqlite3.connect(home / "journal.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(JournalError, match="another gpuq daemon owns"):
            Journal.open(home)
    finally:
        other.close()
    assert replayed(home) == (None, [1])


def test_closing_twice_is_harmless_and_leaves_one_file(home: Path, journal: Journal) -> None:
    """A clean stop folds the -wal into the database."""
    journal.append([(STAMP, released(1))])
    journal.close()
    journal.close()
    assert not (home / "journal.db-wal").exists()


def test_backups_are_whole_and_five_are_kept(home: Path, journal: Journal) -> None:
    """Each backup is a journal of its time; the newest five of a reason stay; another reason is not pushed out."""
    first = journal.backup("before-schema-2")
    for number in range(7):
        journal.append([(STAMP, released(number))])
        newest = journal.backup("hourly")
    assert journal.backup("hourly") == newest
    kept = list_backups(home)
    assert len(kept) == 6
    assert (kept[0], kept[-1]) == (first, newest)
    copy = sqlite3.connect(kept[2])
    assert copy.execute("SELECT max(seq) FROM event").fetchone() == (4,)
    copy.close()
    with pytest.raises(JournalError, match="reason"):
        journal.backup("../x")


def test_the_snapshot_is_checked_when_loaded(home: Path, journal: Journal) -> None:
    """A damaged snapshot stops the start; the sentence says which."""
    journal.append([(STAMP, released(1))])
    journal.snapshot(b"state", 1)
    journal.close()
    raw = sqlite3.connect(home / "journal.db")
    raw.execute("UPDATE snapshot SET state = x'00'")
    raw.commit()
    raw.close()
    with pytest.raises(JournalError, match="snapshot at entry 1"):
        replayed(home)


def test_a_missing_entry_is_noticed(home: Path, journal: Journal) -> None:
    """A gap in the numbers stops the replay instead of skipping what happened."""
    journal.append([(STAMP, released(n)) for n in range(4)])
    journal.close()
    raw = sqlite3.connect(home / "journal.db")
    raw.execute("DELETE FROM event WHERE seq = 2")
    raw.commit()
    raw.close()
    with pytest.raises(JournalBroken, match="Entry 2 of the journal is missing"):
        replayed(home)
