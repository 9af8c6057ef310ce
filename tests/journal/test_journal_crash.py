"""Kills, order of flushes, failpoints and migrations: what was acknowledged is there afterwards."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from journal_cases import (
    BLOB,
    ENVIRONMENT,
    ROOT,
    STAMP,
    ended_job,
    environment,
    one_of_each,
    released,
    run_program,
    start_program,
)

from gpuq.core.model import JobId
from gpuq.journal import Journal, JournalFull, list_backups, schema
from gpuq.journal.highwater import read_mark

pytestmark = pytest.mark.e2e

APPENDER = """
import os, sys
from pathlib import Path
from gpuq.journal import Journal
from journal_cases import *
journal = Journal.open(Path(sys.argv[1]))
for number in range(int(sys.argv[2])):
    seq = journal.append([(STAMP, released(number))])
    if number % 5 == 4:
        journal.snapshot(str(seq).encode(), seq)
    os.write(1, f"ack {seq}\\n".encode())
"""


def acknowledged(text: str) -> int:
    """The newest entry that was acknowledged."""
    return max((int(line.split()[1]) for line in text.splitlines()), default=0)


def entries_of(home: Path) -> tuple[int, int]:
    """Number of the snapshot's entry (0: none) and of the newest one, after a full replay."""
    journal = Journal.open(home)
    try:
        state, entries = journal.load()
        return int(state or b"0"), max((entry.seq for entry in entries), default=int(state or b"0"))
    finally:
        journal.close()


def test_kill_at_random_instants_loses_nothing(tmp_path: Path) -> None:
    """Twelve times SIGKILL in the middle of appends: every acknowledged entry is there, and the journal opens."""
    chance = random.Random(4)
    newest = 0
    for _ in range(12):
        program = start_program(APPENDER, tmp_path / "home", 100_000)
        assert program.stdout is not None
        lines = [program.stdout.readline()]
        deadline = time.monotonic() + chance.random() * 0.1
        while time.monotonic() < deadline:
            lines.append(program.stdout.readline())
        program.send_signal(signal.SIGKILL)
        rest, errors = program.communicate(timeout=30)
        assert program.returncode == -signal.SIGKILL, errors
        promised = acknowledged("".join(lines) + rest)
        assert promised > newest
        _, newest = entries_of(tmp_path / "home")
        assert newest >= promised


@pytest.mark.parametrize(
    ("place", "least", "most"),
    [
        ("journal.before_commit", 2, 2),
        ("journal.after_commit", 3, 3),
        ("journal.before_highwater", 3, 3),
        ("journal.after_highwater", 3, 3),
        ("journal.before_snapshot", 5, 5),
        ("journal.after_snapshot", 5, 5),
    ],
)
@pytest.mark.parametrize("action", ["kill", "exit"])
def test_death_at_each_failpoint(tmp_path: Path, place: str, least: int, most: int, action: str) -> None:
    """At each failpoint the journal holds what was acknowledged and at most the one entry in flight."""
    hit = "1" if "snapshot" in place else "3"
    answer = run_program(APPENDER, tmp_path / "home", 9, GPUQ_FAILPOINTS=f"{place}={action}@{hit}")
    assert answer.returncode == (-signal.SIGKILL if action == "kill" else 70), answer.stderr
    covered, newest = entries_of(tmp_path / "home")
    assert least <= newest <= most
    assert newest >= acknowledged(answer.stdout)
    assert covered == (5 if place == "journal.after_snapshot" else 0)


def test_death_while_the_journal_is_made(tmp_path: Path) -> None:
    """A first start that dies before its first commit leaves nothing that stops the second start."""
    run_program(APPENDER, tmp_path / "home", 1, GPUQ_FAILPOINTS="journal.before_commit=kill")
    (tmp_path / "home" / "journal.db.new").write_bytes(b"half")
    (tmp_path / "home" / "highwater").unlink()
    assert entries_of(tmp_path / "home") == (0, 0)


CALL = re.compile(r"(?P<name>\w+)\((?P<fd>\d+)<(?P<path>[^>]*)>")


def traced(tmp_path: Path, **variables: str) -> list[tuple[str, str]]:
    """(system call, file name) of each write and flush of three appends, in order."""
    if shutil.which("strace") is None:
        if os.environ.get("GPUQ_REQUIRE_ALL") == "1":
            pytest.fail("strace is missing")
        pytest.skip("strace is missing")
    log = tmp_path / "trace"
    command = ["strace", "-f", "-y", "-o", str(log), "-e", "trace=write,pwrite64,fsync,fdatasync", sys.executable]
    with (tmp_path / "out").open("wb") as out:
        answer = subprocess.run(
            [*command, "-c", APPENDER, str(tmp_path / "home"), "3"],
            env=environment(**variables), stdout=out, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    if answer.returncode != 0 and "ptrace" in answer.stderr:
        pytest.skip("this machine does not allow ptrace")
    assert answer.returncode == 0, answer.stderr
    calls = (CALL.search(line) for line in log.read_text().splitlines())
    return [(call["name"], Path(call["path"]).name) for call in calls if call is not None]


def flushed_before_answers(calls: list[tuple[str, str]]) -> bool:
    """Whether before each answer the -wal and then the mark were written and flushed, in this order."""
    order = [("pwrite64", "journal.db-wal"), ("fdatasync", "journal.db-wal")]
    order += [("pwrite64", "highwater"), ("fdatasync", "highwater")]
    done, answers = 0, 0
    for call in calls:
        if call == ("write", "out"):
            if done < len(order):
                return False
            done, answers = 0, answers + 1
        elif done < len(order) and call == order[done]:
            done += 1
    return answers == 3


def test_flushes_come_before_the_answer(tmp_path: Path) -> None:
    """The kernel is told to flush the commit, then the mark, before append returns."""
    assert flushed_before_answers(traced(tmp_path))


def test_the_planted_mutant_is_found(tmp_path: Path) -> None:
    """With synchronous=NORMAL planted, the same check fails: it is able to."""
    assert not flushed_before_answers(traced(tmp_path, GPUQ_MUTANT="sync-normal"))


def test_no_file_is_ever_created_with_a_wider_mode(tmp_path: Path) -> None:
    """Every file the journal creates has mode 0600 in the very call that makes it, under umask 0."""
    if shutil.which("strace") is None:
        if os.environ.get("GPUQ_REQUIRE_ALL") == "1":
            pytest.fail("strace is missing")
        pytest.skip("strace is missing")
    log, home = tmp_path / "trace", tmp_path / "home"
    text = "import os\nos.umask(0)\n" + APPENDER + "journal.backup('hourly')\n"
    command = ["strace", "-f", "-o", str(log), "-e", "trace=openat,open,creat,mkdir,rename", sys.executable, "-c", text]
    answer = subprocess.run(
        [*command, str(home), "2"], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    if answer.returncode != 0 and "ptrace" in answer.stderr:
        pytest.skip("this machine does not allow ptrace")
    assert answer.returncode == 0, answer.stderr
    first: dict[str, str] = {}  # path: the call that makes it; later calls find it there, or moved to another name
    for call, path, line in re.findall(rf'(\w+)\([^"]*"({home}[^"]*)"(.*)', log.read_text()):
        if call == "rename":
            first[line.split('"')[1]] = first[path]
        elif ("O_CREAT" in line or call == "mkdir") and " = -1" not in line:
            first.setdefault(path, line)
    assert {"journal.db.new", "highwater.new", "reserve", "journal.lock", "copy.new"} <= {Path(p).name for p in first}
    assert [path for path, line in first.items() if not re.search(r", 0[67]00\)", line)] == []


# --- migrations -----------------------------------------------------------------------------------------

NEXT = ("ALTER TABLE event ADD COLUMN kind TEXT", "CREATE INDEX event_kind ON event (kind)")


def test_a_migration_backs_up_first_and_keeps_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new schema step runs once, after a backup of the old schema, and all entries survive."""
    journal = Journal.open(tmp_path / "home")
    journal.append([(STAMP, event) for event in one_of_each()])
    journal.close()
    old = schema.newest_schema()
    monkeypatch.setattr(schema, "STEPS", (*schema.STEPS, NEXT))
    for _ in range(2):
        again = Journal.open(tmp_path / "home")
        assert [entry.event for entry in again.load()[1]] == one_of_each()
        again.close()
    (backup,) = list_backups(tmp_path / "home")
    assert backup.name.endswith(f"-before-schema-{old + 1}.db")
    copy = sqlite3.connect(backup)
    assert schema.schema_of(copy) == old
    copy.close()


def test_a_failed_migration_leaves_the_old_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that fails half-way is undone; the older gpuq still opens the journal."""
    journal = Journal.open(tmp_path / "home")
    journal.append([(STAMP, released(1))])
    journal.close()
    with monkeypatch.context() as patch:
        patch.setattr(schema, "STEPS", (*schema.STEPS, (*NEXT, "CREATE TABLE event (x)")))
        with pytest.raises(Exception, match="already exists") as caught:
            Journal.open(tmp_path / "home")
    assert type(caught.value).__name__ == "JournalError"
    assert entries_of(tmp_path / "home") == (0, 1)


@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "journals").glob("schema-*.db")), ids=lambda path: path.stem)
def test_every_released_schema_is_read_forever(tmp_path: Path, path: Path) -> None:
    """The journal of each schema that was ever released opens, migrates and replays; new entries can be added."""
    home = tmp_path / "home"
    home.mkdir()
    shutil.copyfile(path, home / "journal.db")
    journal = Journal.open(home, allow_rollback=True)
    state, entries = journal.load()
    events = {type(entry.event).__name__: entry.event for entry in entries}
    assert state == b"a snapshot"
    assert len(events) >= 20
    ended = events["AttemptEnded"]
    assert (ended.job, ended.exit.code, ended.exit.log_bytes) == ("42_3", 3, 1 << 40)  # type: ignore[attr-defined]
    assert events["JobsSubmitted"].spec.argv[3] == "$(echo no)\n"  # type: ignore[attr-defined]
    assert journal.blob(BLOB) == ENVIRONMENT
    assert journal.archived(JobId("8_2")) == ended_job("8_2", 2, task=2)
    assert journal.append([(STAMP, released(1))]) == journal.last_seq
    journal.close()


def test_there_is_a_journal_of_the_newest_schema() -> None:
    """A change of the tables must come with a journal of the new number in tests/journals."""
    assert (ROOT / "tests" / "journals" / f"schema-{schema.newest_schema()}.db").exists()


# --- the mark fails --------------------------------------------------------------------------------------


def test_a_failed_mark_never_loses_a_commit(tmp_path: Path) -> None:
    """When the mark cannot be written after a commit, the append stands; the next one repairs the mark first."""
    text = """
import sys
from pathlib import Path
from gpuq.journal import Journal
from journal_cases import *
journal = Journal.open(Path(sys.argv[1]))
print(journal.append([(STAMP, released(1))]), journal.problem)
print(journal.append([(STAMP, released(2))]), "cannot be used" in journal.problem)
print(journal.append([(STAMP, released(3))]), journal.problem)
"""
    answer = run_program(text, tmp_path / "home", GPUQ_FAILPOINTS="journal.before_highwater=eio@2")
    assert answer.stdout == "1 None\n2 True\n3 None\n", answer.stderr
    mark = read_mark(tmp_path / "home" / "highwater")
    assert mark is not None
    assert mark.seq == 3


def test_a_mark_that_stays_broken_stops_the_journal(tmp_path: Path) -> None:
    """At most one commit goes unguarded: while the mark cannot be written, the next append is refused."""
    journal = Journal.open(tmp_path / "home")
    journal.append([(STAMP, released(1))])
    whole = journal._mark._fd
    journal._mark._fd = os.open("/dev/full", os.O_WRONLY)
    assert journal.append([(STAMP, released(2))]) == 2
    assert journal.problem is not None
    with pytest.raises(JournalFull):
        journal.append([(STAMP, released(3))])
    assert not journal.probe()
    os.close(journal._mark._fd)
    journal._mark._fd = whole
    assert journal.probe()
    assert journal.append([(STAMP, released(3))]) == 3
    journal.close()
    assert entries_of(tmp_path / "home") == (0, 3)
