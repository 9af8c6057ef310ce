"""A full disk and failing writes: nothing acknowledged is lost, the reserve is spent first, work goes on by itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from journal_cases import STAMP, ended_job, released, run_program

from gpuq.core.events import JobHeld
from gpuq.core.model import Hold, JobId
from gpuq.errors import JournalError
from gpuq.journal import Journal, JournalBroken, JournalFull, blob_id
from gpuq.journal.files import RESERVE_BYTES


def event(number: int) -> JobHeld:
    """An event of about 60 KB."""
    return JobHeld(job=JobId(str(number)), hold=Hold.USER, message="x" * 60_000)


def fill_up(journal: Journal) -> int:
    """Append until the disk is full; returns the newest acknowledged entry."""
    with pytest.raises(JournalFull, match="is full, so nothing new can be recorded") as caught:
        append_for_ever(journal)
    assert "safe" in (caught.value.hint or "")
    return journal.last_seq


def append_for_ever(journal: Journal) -> None:
    """Large events until something stops it, at most 600 MB."""
    for number in range(10_000):
        journal.append([(STAMP, event(number))])


def take_all_space(disk: Path) -> Path:
    """Fill the disk to the last byte; returns the file that did it."""
    fd = os.open(disk / "ballast", os.O_WRONLY | os.O_CREAT)
    try:
        while os.write(fd, b"\0" * 4096):
            pass
    except OSError:
        return disk / "ballast"
    finally:
        os.close(fd)
    pytest.fail("the disk never became full")


def replayed(home: Path) -> list[int]:
    """The numbers of all entries after reopening."""
    journal = Journal.open(home)
    try:
        return [entry.seq for entry in journal.load()[1]]
    finally:
        journal.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An empty file system of 32 MiB."""
    point = tmp_path / "disk"
    point.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=32m", "gpuq-test", str(point)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        if os.environ.get("GPUQ_REQUIRE_ALL") == "1":
            pytest.fail("mounting a small tmpfs is not allowed here")
        pytest.skip("mounting a small tmpfs is not allowed here")
    yield point
    subprocess.run(["umount", "--lazy", str(point)], check=True)


def test_a_full_disk_loses_nothing_and_heals(small_disk: Path) -> None:
    """The reserve gives 4 MiB more, then JournalFull with nothing lost; when space returns it goes on."""
    home = small_disk / "home"
    journal = Journal.open(home)
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * (18 << 20))
    assert not journal.low_space
    before_reserve = None
    for number in range(10_000):
        journal.append([(STAMP, event(number))])
        if journal.low_space:
            before_reserve = journal.last_seq
            break
    assert before_reserve is not None
    assert not journal._reserve.is_whole()
    newest = fill_up(journal)
    assert newest > before_reserve + 10
    assert "full" in (journal.problem or "")
    assert not journal.probe()
    assert [entry.seq for entry in journal.load()[1]] == list(range(1, newest + 1))
    ballast.unlink()
    assert journal.probe()
    assert (journal.problem, journal.low_space) == (None, False)
    assert journal.append([(STAMP, released(1))]) == newest + 1
    journal.close()
    assert replayed(home) == list(range(1, newest + 2))


def test_a_start_on_a_full_disk_works(small_disk: Path) -> None:
    """After a crash on a disk that is full to the last byte the journal opens, with all entries and a warning."""
    home = small_disk / "home"
    text = """
import os, sys
from pathlib import Path
from gpuq.journal import Journal, JournalFull
from journal_cases import *
from test_journal_full import event
journal = Journal.open(Path(sys.argv[1]))
try:
    while True:
        journal.append([(STAMP, event(1))])
except JournalFull:
    print(journal.last_seq, flush=True)
    os._exit(0)
"""
    old = small_disk / "old"
    old.write_bytes(b"\0" * (16 << 20))
    answer = run_program(text, home)
    newest = int(answer.stdout)
    take_all_space(small_disk)
    for _ in range(2):
        journal = Journal.open(home)
        assert [entry.seq for entry in journal.load()[1]] == list(range(1, newest + 1))
        assert journal.low_space
        assert "nearly full" in " ".join(journal.warnings)
        journal.close()
    old.unlink()
    journal = Journal.open(home)
    assert (journal.low_space, journal.append([(STAMP, released(1))])) == (False, newest + 1)
    journal.close()


def test_snapshots_and_large_work_never_spend_the_reserve_for_good(small_disk: Path) -> None:
    """A snapshot that does not fit leaves the reserve alone; after a blob that does not fit it can be made again."""
    journal = Journal.open(small_disk / "home")
    journal.append([(STAMP, released(1))])
    journal.snapshot(b"small", 1)
    with pytest.raises(JournalFull):
        journal.snapshot(b"x" * (40 << 20), 1)
    assert journal._reserve.is_whole()
    assert journal.load()[0] == b"small"
    big = b"y" * (40 << 20)
    with pytest.raises(JournalFull):
        journal.append([(STAMP, released(2))], blobs={blob_id(big): big})
    assert journal.append([(STAMP, released(2))], archive=[ended_job("1", 1)]) == 2
    assert journal.probe()
    journal.close()


def test_a_backup_that_does_not_fit_leaves_no_half(small_disk: Path) -> None:
    """A backup on a full disk is an error in words; the folder has no broken copy, and the journal goes on."""
    home = small_disk / "home"
    journal = Journal.open(home)
    for number in range(60):
        journal.append([(STAMP, event(number))])
    take_all_space(small_disk)
    with pytest.raises(JournalFull):
        journal.backup("hourly")
    assert list(home.glob("backups/*")) == []
    assert journal.append([(STAMP, released(1))]) == 61
    journal.close()


def test_a_page_limit_is_a_full_journal(tmp_path: Path) -> None:
    """SQLite's own word for full, without any mount: rolled back, reserve spent, then JournalFull."""
    journal = Journal.open(tmp_path / "home")
    journal.append([(STAMP, released(1))])
    journal._connection.execute("PRAGMA max_page_count = 40").fetchone()
    newest = fill_up(journal)
    assert journal.low_space
    assert not (tmp_path / "home" / "reserve").exists()
    journal._connection.execute("PRAGMA max_page_count = 100000").fetchone()
    assert journal.probe()
    assert (tmp_path / "home" / "reserve").stat().st_size == RESERVE_BYTES
    journal.close()
    assert replayed(tmp_path / "home") == list(range(1, newest + 1))


LIMITED = """
import resource, sys
from pathlib import Path
from gpuq.journal import Journal, JournalBroken
from journal_cases import *
from test_journal_full import event
journal = Journal.open(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
try:
    for number in range(100):
        journal.append([(STAMP, event(number))])
except JournalBroken as error:
    print(journal.last_seq, error.message.count("cannot be used"), len(list(journal.load()[1])) == journal.last_seq)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(journal.probe(), journal.append([(STAMP, released(1))]) == journal.last_seq)
"""


def test_a_failing_write_is_rolled_back_and_heals(tmp_path: Path) -> None:
    """A write that the system refuses gives JournalBroken; afterwards the same connection goes on without a gap."""
    answer = run_program(LIMITED, tmp_path / "home")
    first, second = answer.stdout.splitlines()
    newest = int(first.split()[0])
    assert first.split()[1:] == ["1", "True"]
    assert second == "True True"
    assert replayed(tmp_path / "home") == list(range(1, newest + 2))


@pytest.mark.parametrize("action", ["enospc", "eio"])
def test_injected_failures_roll_back(tmp_path: Path, action: str) -> None:
    """An error before the commit leaves nothing; ENOSPC is retried from the reserve, EIO is reported."""
    text = """
import sys
from pathlib import Path
from gpuq.errors import JournalError
from gpuq.journal import Journal
from journal_cases import *
journal = Journal.open(Path(sys.argv[1]))
for number in range(3):
    try:
        print(journal.append([(STAMP, released(number))]), journal.low_space)
    except JournalError as error:
        print(type(error).__name__, journal.last_seq)
"""
    answer = run_program(text, tmp_path / "home", GPUQ_FAILPOINTS=f"journal.before_commit={action}@2")
    second = "2 True" if action == "enospc" else "JournalBroken 1"
    third = "3 True" if action == "enospc" else "2 False"
    assert answer.stdout.splitlines() == ["1 False", second, third], answer.stderr
    assert len(replayed(tmp_path / "home")) == (3 if action == "enospc" else 2)


@pytest.fixture
def read_only_disk(small_disk: Path) -> Path:
    """The small disk with a journal of one entry on it, remounted read-only."""
    journal = Journal.open(small_disk / "home")
    journal.append([(STAMP, released(1))])
    journal.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    return small_disk / "home"


def test_a_read_only_disk_is_named(read_only_disk: Path) -> None:
    """A start on a read-only file system says so and what to set."""
    with pytest.raises(JournalError, match="read-only") as caught:
        Journal.open(read_only_disk)
    assert "GPUQ_HOME" in (caught.value.hint or "")


def test_a_disk_that_turns_read_only_breaks_in_words(tmp_path: Path) -> None:
    """A write refused as read-only while running is JournalBroken, and reading goes on."""
    journal = Journal.open(tmp_path / "home")
    journal.append([(STAMP, released(1))])
    journal._connection.execute("PRAGMA query_only = ON")
    with pytest.raises(JournalBroken, match="read-only"):
        journal.append([(STAMP, released(2))])
    assert [entry.seq for entry in journal.load()[1]] == [1]
    assert not journal.probe()
    journal._connection.execute("PRAGMA query_only = OFF")
    assert journal.probe()
    journal.close()
