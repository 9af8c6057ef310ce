"""Copies of the journal, and the way back to one. Imports errors and sqlite3.

Names are `journal-NUMBER-seqSEQ-REASON.db`; NUMBER rises with each copy, so the newest is known whatever the clock
said. One thing to know: `restore` deletes nothing and leaves the high-water mark alone. gpuq then still refuses to
start until a person accepts that entries are lost, for only a start that knows it can keep ids from being used again.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Final

from gpuq.errors import JournalError, NotFound
from gpuq.journal.files import BACKUPS, DATABASE, create_private, move_durably, sync_directory, take_lock
from gpuq.journal.problems import write_error
from gpuq.journal.schema import is_journal

KEPT: Final = 5  # of each reason, so that hourly copies never push out the one made before a migration
_NAME: Final = re.compile(r"journal-(\d+)-seq(\d+)-([a-z0-9-]+)\.db")


def list_backups(home: Path) -> list[Path]:
    """All backups, oldest first."""
    try:
        found = [path for path in (home / BACKUPS).iterdir() if _NAME.fullmatch(path.name)]
    except FileNotFoundError:
        return []
    return sorted(found, key=_number)


def newest_backup(home: Path) -> Path | None:
    """The newest backup, or None."""
    return next(reversed(list_backups(home)), None)


def make_backup(connection: sqlite3.Connection, home: Path, seq: int, reason: str) -> Path:
    """Copy the open database, check the copy, keep the newest KEPT of the same reason.

    When the newest copy of that reason already reaches entry `seq`, it is returned and nothing is written.
    Raises JournalFull or JournalBroken with no half copy left behind.
    """
    if not _NAME.fullmatch(f"journal-0-seq0-{reason}.db"):
        raise JournalError(f"'{reason}' cannot be the reason of a backup.", "Use small letters, digits and dashes.")
    siblings = [path for path in list_backups(home) if _reason(path) == reason]
    if siblings and _seq(siblings[-1]) == seq:
        return siblings[-1]
    folder = home / BACKUPS
    fresh = folder / "copy.new"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        os.close(create_private(fresh))
        _copy(connection, fresh)
        newest = newest_backup(home)
        target = folder / f"journal-{_number(newest) + 1 if newest else 1:06d}-seq{seq}-{reason}.db"
        move_durably(fresh, target)
    except (sqlite3.Error, UnicodeDecodeError, OSError) as error:
        for path in folder.glob(fresh.name + "*"):
            path.unlink(missing_ok=True)
        raise write_error(error, home) from error
    for path in siblings[: max(0, len(siblings) + 1 - KEPT)]:
        path.unlink(missing_ok=True)
    return target


def restore(home: Path, backup: Path | None = None) -> Path:
    """Put a backup (None: the newest) in the journal's place; returns the directory that now holds the old files.

    Raises JournalError when a daemon runs or the backup is unreadable, NotFound when there is none.
    """
    chosen = backup or newest_backup(home)
    if chosen is None or not chosen.is_file():
        raise NotFound(f"There is no backup {backup or 'in ' + str(home / BACKUPS)}.", "Name a backup file.")
    lock = take_lock(home)
    fresh = home / (DATABASE + ".new")
    try:
        fd = create_private(fresh)
        with os.fdopen(fd, "wb") as target, chosen.open("rb") as source:
            shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(fd)
        _check_copy(fresh, chosen)
        aside = _set_aside(home)
        move_durably(fresh, home / DATABASE)
    except OSError as error:
        raise write_error(error, home) from error
    finally:
        os.close(lock)
    return aside


def _set_aside(home: Path) -> Path:
    """Move the present database into a new directory: first its -wal, which must never meet another database."""
    number = 1
    while (aside := home / f"damaged-{number}").exists():
        number += 1
    aside.mkdir(mode=0o700)
    for name in (DATABASE + "-wal", DATABASE + "-shm", DATABASE + "-journal", DATABASE):
        if (home / name).exists():
            (home / name).replace(aside / name)
            sync_directory(home)
    sync_directory(aside)
    return aside


def _copy(connection: sqlite3.Connection, target: Path) -> None:
    copy = sqlite3.connect(target, isolation_level=None)
    try:
        connection.backup(copy)
        copy.execute("PRAGMA journal_mode = WAL").fetchone()  # what a journal is from birth; closing leaves one file
        (verdict,) = copy.execute("PRAGMA quick_check(1)").fetchone()
    finally:
        copy.close()
    if verdict != "ok":
        raise sqlite3.DatabaseError(f"database disk image is malformed: {verdict}")
    fd = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _check_copy(copy: Path, origin: Path) -> None:
    connection = sqlite3.connect(copy, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
        sound = is_journal(connection) and connection.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok"
    except (sqlite3.Error, UnicodeDecodeError):
        sound = False
    finally:
        connection.close()
    if not sound:
        copy.unlink(missing_ok=True)
        raise JournalError(f"The backup {origin} is damaged or is no journal of gpuq.", "Choose another backup.")


def _number(path: Path) -> int:
    return int(path.name.split("-")[1])


def _seq(path: Path) -> int:
    return int(path.name.split("-")[2].removeprefix("seq"))


def _reason(path: Path) -> str:
    return path.stem.split("-", 3)[3]
