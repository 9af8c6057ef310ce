"""Damaged, old, foreign, newer or missing files: nothing is lost, or the start is refused and no file changes."""

from __future__ import annotations

import hashlib
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from journal_cases import BLOB, ENVIRONMENT, STAMP, ended_job, one_of_each, released, run_program

from gpuq.core.model import JobId
from gpuq.errors import JournalError, NotFound
from gpuq.journal import HistoryQuery, Journal, newest_backup, restore
from gpuq.journal.highwater import HighWater, Mark, read_mark
from gpuq.journal.schema import newest_schema

EVENTS = len(one_of_each())

LIVE = """
import os, sys
from pathlib import Path
from gpuq.journal import Journal
from journal_cases import *
journal = Journal.open(Path(sys.argv[1]))
for number in range(int(sys.argv[2])):
    journal.append([(STAMP, released(number))])
os._exit(0)
"""


def fill(home: Path) -> None:
    """A journal with a backup after one entry of each kind, a snapshot, more entries, blobs and archived jobs."""
    journal = Journal.open(home)
    journal.append([(STAMP, event) for event in one_of_each()], blobs={BLOB: ENVIRONMENT})
    journal.backup("hourly")
    journal.append([], archive=[ended_job(str(number), number) for number in range(20)])
    journal.snapshot(b"state" * 2000, 10)
    journal.append([(STAMP, released(number)) for number in range(30)])
    journal.close()


def content(home: Path) -> object:
    """All that the journal says, or JournalError."""
    journal = Journal.open(home)
    try:
        state, entries = journal.load()
        after = list(entries)
        ids = [JobId(str(number)) for number in range(20)]
        return (
            state, after, journal.events(), journal.blob(BLOB), journal.history(HistoryQuery()),
            [journal.archived(id_) for id_ in ids], journal.archived_states(ids),
            journal.events(job="44"), journal.history(HistoryQuery(user="ada", ids=("3",))),
        )  # fmt: skip
    finally:
        journal.close()


def digests(home: Path) -> dict[str, str]:
    """Name and digest of each file that must survive a refusal."""
    files = (path for path in home.rglob("*") if path.is_file() and path.name not in ("journal.lock", "reserve"))
    return {str(path.relative_to(home)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A filled, cleanly closed journal."""
    fill(tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A journal of 40 entries whose daemon died, so that all of them are in the -wal file."""
    path = tmp_path / "home"
    answer = run_program(LIVE, path, 40)
    assert answer.returncode == 0, answer.stderr
    assert (path / "journal.db-wal").stat().st_size > 40 * 4096
    return path


def refused(home: Path) -> JournalError:
    """The error of a start that must be refused without changing any file."""
    before = digests(home)
    with pytest.raises(JournalError) as caught:
        Journal.open(home)
    assert digests(home) == before
    assert caught.value.hint
    return caught.value


def check_all_or_refused(home: Path, scratch: Path, damage: Callable[[Path], None]) -> bool:
    """Damage a copy; True when it was refused, False when all of it is still there. Anything else fails."""
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(home, scratch)
    damage(scratch / "journal.db")
    try:
        found = content(scratch)
    except JournalError:
        return True
    assert found == content(home)
    return False


def test_garbage_in_any_page_is_refused_or_harmless(home: Path, tmp_path: Path) -> None:
    """Each page of the database in turn is overwritten: nothing is ever lost silently, and most are noticed."""
    pages = (home / "journal.db").stat().st_size // 4096
    noise = random.Random(1)

    def overwrite(page: int) -> Callable[[Path], None]:
        def damage(path: Path) -> None:
            with path.open("r+b") as file:
                file.seek(page * 4096)
                file.write(noise.randbytes(4096))

        return damage

    verdicts = [check_all_or_refused(home, tmp_path / "copy", overwrite(page)) for page in range(pages)]
    assert pages > 20
    assert sum(verdicts) >= pages - 2


def test_a_flipped_bit_is_refused_or_harmless(home: Path, tmp_path: Path) -> None:
    """One bit, at 150 random places of the database."""
    size = (home / "journal.db").stat().st_size
    places = random.Random(2)

    def flip(path: Path) -> None:
        with path.open("r+b") as file:
            at = places.randrange(size)
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ (1 << places.randrange(8))]))

    verdicts = [check_all_or_refused(home, tmp_path / "copy", flip) for _ in range(150)]
    assert any(verdicts)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_database_is_refused(home: Path, share: float) -> None:
    """A database cut anywhere, also to nothing, is refused; the newest backup and the way back are named."""
    database = home / "journal.db"
    with database.open("r+b") as file:
        file.truncate(int(database.stat().st_size * share))
    error = refused(home)
    assert "damaged" in error.message
    assert str(newest_backup(home)) in (error.hint or "")
    assert "gpuq daemon restore" in (error.hint or "")


@pytest.mark.parametrize("data", [b"hello, world\n" * 500, b"\0" * 8192])
def test_what_is_not_a_database_is_refused(home: Path, data: bytes) -> None:
    """A text file or zeros in the database's place are named for what they are."""
    (home / "journal.db").write_bytes(data)
    assert "not a database" in refused(home).message


def test_another_programs_database_is_refused(home: Path) -> None:
    """A sound SQLite file that gpuq did not make is not touched."""
    (home / "journal.db").unlink()
    other = sqlite3.connect(home / "journal.db")
    other.execute("CREATE TABLE event (seq INTEGER)")
    other.commit()
    other.close()
    assert "not gpuq's" in refused(home).message


def test_a_newer_schema_is_refused(home: Path) -> None:
    """A journal of a later gpuq names both schema numbers."""
    raw = sqlite3.connect(home / "journal.db")
    raw.execute(f"PRAGMA user_version = {newest_schema() + 1}")
    raw.close()
    error = refused(home)
    assert f"schema {newest_schema() + 1}" in error.message
    assert "newer gpuq" in (error.hint or "")


def test_a_lost_wal_is_noticed(crashed: Path) -> None:
    """Without its -wal file the database is sound but lacks what was acknowledged: refused, or 40 lost by consent."""
    (crashed / "journal.db-wal").unlink()
    assert "went backwards: it ends at entry 0, but 40 were acknowledged" in refused(crashed).message
    journal = Journal.open(crashed, allow_rollback=True)
    assert (journal.last_seq, journal.lost_entries) == (0, 40)
    assert any("40 acknowledged entries" in warning for warning in journal.warnings)
    journal.append([(STAMP, released(1))])
    journal.close()
    again = Journal.open(crashed)
    assert (again.last_seq, again.lost_entries, again.warnings) == (1, 0, ())
    again.close()


def test_a_flipped_bit_in_the_wal_is_refused_or_harmless(crashed: Path, tmp_path: Path) -> None:
    """One bit of the -wal, at 60 places: all 40 entries are there, or the start is refused and the -wal is kept."""
    wal = crashed / "journal.db-wal"
    size, places = wal.stat().st_size, random.Random(3)
    outcomes = set()
    for _ in range(60):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(crashed, copy)
        data = bytearray((copy / wal.name).read_bytes())
        data[places.randrange(size)] ^= 1 << places.randrange(8)
        (copy / wal.name).write_bytes(data)
        try:
            journal = Journal.open(copy)
        except JournalError:
            assert (copy / wal.name).read_bytes() == bytes(data)
            outcomes.add("refused")
            continue
        assert len(list(journal.load()[1])) == 40
        journal.close()
        outcomes.add("whole")
    assert "refused" in outcomes


def test_a_cut_wal_is_noticed(crashed: Path) -> None:
    """Half a -wal file is a rollback."""
    wal = crashed / "journal.db-wal"
    with wal.open("r+b") as file:
        file.truncate(wal.stat().st_size // 2)
    assert "went backwards" in refused(crashed).message


def test_an_old_copy_put_back_is_noticed(home: Path) -> None:
    """An old backup in the database's place is refused until a person accepts it; what is lost is counted."""
    backup = newest_backup(home)
    assert backup is not None
    shutil.copyfile(backup, home / "journal.db")
    assert f"ends at entry {EVENTS}, but {EVENTS + 30} were acknowledged" in refused(home).message
    journal = Journal.open(home, allow_rollback=True)
    assert (journal.last_seq, journal.lost_entries) == (EVENTS, 30)
    journal.close()


def test_a_foreign_state_is_noticed(home: Path, tmp_path: Path) -> None:
    """The longer journal of another installation does not pass for this one."""
    fill(tmp_path / "other")
    shutil.copyfile(tmp_path / "other" / "journal.db", home / "journal.db")
    assert "another state" in refused(home).message


def test_a_lost_database_is_never_replaced_by_an_empty_one(crashed: Path) -> None:
    """With a mark, a -wal or a backup left behind, gpuq does not start afresh by itself."""
    (crashed / "journal.db").unlink()
    assert "is gone" in refused(crashed).message
    (crashed / "highwater").unlink()
    assert "is gone" in refused(crashed).message
    journal = Journal.open(crashed, allow_rollback=True)
    assert journal.last_seq == 0
    journal.close()
    assert (crashed / "journal.db-wal.stray-1").exists()


def test_backups_alone_stop_a_fresh_start(home: Path) -> None:
    """When only backups are left, the newest is named."""
    (home / "journal.db").unlink()
    (home / "highwater").unlink()
    error = refused(home)
    assert str(newest_backup(home)) in (error.hint or "")


def test_a_fresh_start_by_consent_knows_how_much_was_lost(home: Path) -> None:
    """After an allowed fresh start the number of lost entries is known from the mark, so ids can be kept apart."""
    (home / "journal.db").unlink()
    journal = Journal.open(home, allow_rollback=True)
    assert (journal.last_seq, journal.lost_entries) == (0, EVENTS + 30)
    journal.close()


@pytest.mark.parametrize(("damage", "word"), [("missing", "missing"), ("zeros", "damaged"), ("short", "damaged")])
def test_a_lost_high_water_mark_is_refused(home: Path, damage: str, word: str) -> None:
    """Without the mark nobody can say that the database is complete; accepting that makes a new mark."""
    mark = home / "highwater"
    if damage == "missing":
        mark.unlink()
    else:
        mark.write_bytes(b"\0" * (128 if damage == "zeros" else 5))
    assert word in refused(home).message
    journal = Journal.open(home, allow_rollback=True)
    assert journal.lost_entries is None
    journal.close()
    content(home)
    assert read_mark(mark) is not None


def test_a_torn_slot_leaves_the_other_one(tmp_path: Path) -> None:
    """Whichever slot a power cut tears, the mark before it is still read; the slots are written in turn."""
    state_id = "e8883552-e29f-4bc5-b286-8ef162d3b487"
    path = tmp_path / "mark"
    mark = HighWater.create(path, state_id, 7)
    for seq in (8, 9, 10):
        mark.write(seq)
        whole = path.read_bytes()
        survivors = set()
        for start in (0, 64):
            path.write_bytes(whole[:start] + b"\xff" * 20 + whole[start + 20 :])
            found = read_mark(path)
            assert found is not None
            survivors.add(found.seq)
        path.write_bytes(whole)
        assert survivors == {seq - 1, seq}
        assert read_mark(path) == Mark(state_id, seq, seq - 6)
    mark.close()


def test_a_database_ahead_of_its_mark_is_fine(home: Path) -> None:
    """A crash between commit and mark leaves unacknowledged entries, which are kept."""
    found = read_mark(home / "highwater")
    assert found is not None
    HighWater.create(home / "highwater", found.state_id, found.seq - 1).close()
    expected = content(home)
    again = read_mark(home / "highwater")
    assert again is not None
    assert again.seq == found.seq
    assert content(home) == expected


def test_restore_puts_a_backup_back_and_keeps_the_damaged_file(home: Path) -> None:
    """After `restore` the old file is kept, the start asks for consent, and then the backup's entries are there."""
    (home / "journal.db").write_bytes(b"garbage" * 999)
    aside = restore(home)
    assert (aside / "journal.db").read_bytes() == b"garbage" * 999
    assert "went backwards" in refused(home).message
    journal = Journal.open(home, allow_rollback=True)
    assert (journal.last_seq, journal.lost_entries) == (EVENTS, 30)
    assert journal.blob(BLOB) == ENVIRONMENT
    journal.close()


def test_restore_never_lets_an_old_wal_meet_the_backup(crashed: Path) -> None:
    """A -wal file left by a crash is put aside with its database; both are kept."""
    shutil.copytree(crashed, crashed.parent / "copy")
    journal = Journal.open(crashed.parent / "copy")
    backup = journal.backup("manual")
    journal.close()
    wal = (crashed / "journal.db-wal").read_bytes()
    aside = restore(crashed, backup)
    assert (aside / "journal.db-wal").read_bytes() == wal
    assert not (crashed / "journal.db-wal").exists()
    journal = Journal.open(crashed)
    assert journal.last_seq == 40
    journal.close()


def test_restore_refuses_what_would_make_things_worse(home: Path) -> None:
    """No backup, a damaged backup, or a running daemon: an error, and the present file stays."""
    before = digests(home)
    with pytest.raises(NotFound):
        restore(home, home / "nowhere.db")
    bad = home.parent / "bad.db"
    bad.write_bytes(b"x" * 5000)
    with pytest.raises(JournalError, match="no journal of gpuq"):
        restore(home, bad)
    assert digests(home) == before
    journal = Journal.open(home)
    with pytest.raises(JournalError, match="another gpuq daemon owns"):
        restore(home)
    journal.close()
