"""From a directory to a database that may be trusted, or a sentence that says why not. Imports errors and sqlite3.

The database is first inspected through a read-only connection, which can neither fold the -wal file into it nor
delete that: a refusal leaves every file as it was. A new database is built under another name and renamed, so
an empty or half-made `journal.db` is always damage. One thing to know: gpuq starts afresh only where there is no
trace of an earlier state: no database, no -wal, no high-water mark, no backup. Entries beyond the mark are fine (a
crash before the answer); entries missing below it are not.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from pathlib import Path
from typing import Final, NamedTuple

from gpuq.errors import JournalError
from gpuq.journal.backup import make_backup, newest_backup
from gpuq.journal.codec import check_row
from gpuq.journal.failpoints import mutant
from gpuq.journal.files import DATABASE, HIGHWATER, create_private, move_durably, sync_directory
from gpuq.journal.highwater import HighWater, Mark, read_mark
from gpuq.journal.problems import ROLLBACK_COMMAND, JournalBroken, damaged_error, is_busy, owned_error, write_error
from gpuq.journal.schema import (
    get_meta,
    is_journal,
    migrate,
    newest_schema,
    schema_of,
    set_meta,
)

FULL_CHECK_BYTES: Final = 512 << 20  # the full check reads about 300 MB/s; above this the indexes are left out
_SQLITE_HEADER: Final = b"SQLite format 3\x00"
_ACCEPT_HINT: Final = (
    f"Put the right files back, or accept the loss with '{ROLLBACK_COMMAND}'; running jobs are not touched."
)


class Opened(NamedTuple):
    """A database that may be trusted. lost_entries: acknowledged entries given up; None: an unknown number."""

    connection: sqlite3.Connection
    state_id: str
    last_seq: int
    mark: HighWater
    lost_entries: int | None


class _Known(NamedTuple):
    """What the high-water file says: nothing, that it is damaged, or a mark."""

    exists: bool
    mark: Mark | None


def open_database(home: Path, allow_rollback: bool) -> Opened:
    """Open, check and if need be create or migrate the journal; the caller holds the lock. Raises JournalError."""
    known = _known_mark(home)
    if not (home / DATABASE).exists():
        _check_fresh(home, known, allow_rollback)
        _create(home)
    _check_header(home)
    try:
        found = _inspected(home)
        lost = _lost_entries(home, known, found, allow_rollback)
        return _ready(home, known, found, lost)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise _opening_error(error, home) from error
    except OSError as error:
        raise write_error(error, home) from error


def _ready(home: Path, known: _Known, found: Mark, lost: int | None) -> Opened:
    """The inspected database, open for writing and brought to this gpuq's schema."""
    connection = _connect(home)
    try:
        _configure(connection)
        if schema_of(connection) < newest_schema():
            make_backup(connection, home, found.seq, f"before-schema-{newest_schema()}")
            migrate(connection)
        return Opened(connection, found.state_id, found.seq, _mark_file(home, known, found), lost)
    except BaseException:
        connection.close()
        raise


# --- before SQLite --------------------------------------------------------------------------------------


def _known_mark(home: Path) -> _Known:
    try:
        return _Known(True, read_mark(home / HIGHWATER))
    except FileNotFoundError:
        return _Known(False, None)
    except OSError as error:
        raise write_error(error, home) from error


def _check_fresh(home: Path, known: _Known, allow_rollback: bool) -> None:
    """Raise unless a new journal may be made; with allow_rollback a stray -wal is put aside, never replayed."""
    wal = home / (DATABASE + "-wal")
    newest = newest_backup(home)
    if not allow_rollback and (known.exists or wal.exists() or newest is not None):
        where = f" The newest backup is {newest}: go back to it with 'gpuq daemon restore'." if newest else ""
        raise JournalError(
            f"The state file {home / DATABASE} is gone, but there was one: gpuq does not start afresh by itself.",
            f"Put it back, or begin with an empty queue by '{ROLLBACK_COMMAND}'.{where}",
        )
    number = 1
    while wal.exists():
        aside = home / f"{DATABASE}-wal.stray-{number}"
        if not aside.exists():
            wal.replace(aside)
            sync_directory(home)
        number += 1


def _create(home: Path) -> None:
    fresh = home / (DATABASE + ".new")
    try:
        fresh.with_name(fresh.name + "-journal").unlink(missing_ok=True)
        os.close(create_private(fresh))
        connection = sqlite3.connect(fresh, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            migrate(connection)
            set_meta(connection, "state_id", str(uuid.uuid4()))
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
        finally:
            connection.close()
        move_durably(fresh, home / DATABASE)
    except (sqlite3.Error, OSError) as error:
        fresh.unlink(missing_ok=True)
        raise write_error(error, home) from error


def _check_header(home: Path) -> None:
    path = home / DATABASE
    try:
        with path.open("rb") as file:
            header = file.read(len(_SQLITE_HEADER))
    except OSError as error:
        raise JournalError(f"The state file {path} cannot be read: {error.strerror}.", _ACCEPT_HINT) from error
    if not os.access(path, os.W_OK):
        raise JournalError(f"The state file {path} is read-only.", "Give the daemon's user the right to write it.")
    if not header:
        raise damaged_error(path, "it is empty", newest_backup(home))
    if header != _SQLITE_HEADER:
        raise damaged_error(path, "it is not a database", newest_backup(home))


# --- SQLite ---------------------------------------------------------------------------------------------


def _inspected(home: Path) -> Mark:
    """Which state the database holds and how far it goes. Raises JournalError or sqlite3.Error; changes no file.

    The read-only connection needs 32 KiB of disk for its -shm file. Where a full disk does not have them, the
    connection that writes inspects instead: to start at all is then worth more than to leave a -wal file as it was.
    """
    before = {path for path in _side_files(home) if path.exists()}
    address = (home / DATABASE).absolute().as_uri() + "?mode=ro"
    try:
        return _inspect(sqlite3.connect(address, uri=True, isolation_level=None, timeout=0), home)
    except sqlite3.OperationalError as error:
        if "disk" not in str(error):
            raise
    finally:
        for path in _side_files(home):
            if path not in before:
                path.unlink(missing_ok=True)
    connection = _connect(home)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchone()
    return _inspect(connection, home)


def _side_files(home: Path) -> tuple[Path, Path]:
    return home / (DATABASE + "-wal"), home / (DATABASE + "-shm")


def _connect(home: Path) -> sqlite3.Connection:
    return sqlite3.connect(home / DATABASE, isolation_level=None, timeout=0, check_same_thread=False)


def _inspect(connection: sqlite3.Connection, home: Path) -> Mark:
    try:
        _check_structure(connection, home)
        state_id = get_meta(connection, "state_id")
        if state_id is None:
            raise damaged_error(home / DATABASE, "it does not say which state it is", newest_backup(home))
        return Mark(state_id, _newest_seq(connection))
    except JournalBroken as error:
        raise damaged_error(home / DATABASE, error.message.rstrip("."), newest_backup(home)) from error
    finally:
        connection.close()


def newest_snapshot(connection: sqlite3.Connection) -> tuple[int, bytes, int] | None:
    """Entry number, content and checksum of the newest snapshot, checked; None when there is none."""
    row = connection.execute("SELECT seq, state, crc FROM snapshot ORDER BY seq DESC LIMIT 1").fetchone()
    if row is not None:
        check_row(row, f"The snapshot at entry {row[0]} of the journal")
    return row  # type: ignore[no-any-return]  # sqlite3 has no types for rows; the table's definition is the type


def _newest_seq(connection: sqlite3.Connection) -> int:
    """The number of the newest entry, 0 when there is none; from rows whose checksums hold."""
    text = "SELECT seq, wall_s, steady_s, v, job, body, crc FROM event ORDER BY seq DESC LIMIT 1"
    entry = connection.execute(text).fetchone()
    if entry is not None:
        check_row(entry, f"Entry {entry[0]} of the journal")
    snapshot = newest_snapshot(connection)
    return max(row[0] if row is not None else 0 for row in (entry, snapshot))


def _configure(connection: sqlite3.Connection) -> None:
    """Exclusive lock first: then the WAL index lives in memory and a second connection is impossible."""
    connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchone()
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise sqlite3.OperationalError(f"this SQLite has no write-ahead log (it offers '{mode}')")
    connection.execute(f"PRAGMA synchronous = {'NORMAL' if mutant('sync-normal') else 'FULL'}")
    connection.execute("PRAGMA journal_size_limit = 8388608").fetchone()
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")


def _check_structure(connection: sqlite3.Connection, home: Path) -> None:
    path = home / DATABASE
    if not is_journal(connection):
        raise damaged_error(path, "it is a database, but not gpuq's", newest_backup(home))
    schema = schema_of(connection)
    if schema > newest_schema():
        raise JournalError(
            f"The state file {path} has schema {schema}, and this gpuq knows schemas up to {newest_schema()}.",
            "It was written by a newer gpuq: start that one again.",
        )
    is_small = path.stat().st_size <= FULL_CHECK_BYTES
    check = "PRAGMA integrity_check(1)" if is_small else "PRAGMA quick_check(1)"
    (verdict,) = connection.execute(check).fetchone()
    if verdict != "ok":
        raise damaged_error(path, str(verdict).replace("\n", " "), newest_backup(home))


def _opening_error(error: Exception, home: Path) -> JournalError:
    path = home / DATABASE
    if is_busy(error):
        return owned_error(path)
    if any(word in str(error) for word in ("disk I/O", "disk is full", "readonly", "unable to open", "write-ahead")):
        return write_error(error, home)
    return damaged_error(path, str(error), newest_backup(home))


# --- the high-water mark --------------------------------------------------------------------------------


def _lost_entries(home: Path, known: _Known, found: Mark, allow_rollback: bool) -> int | None:
    """How many acknowledged entries the database lacks; raises JournalError when it lacks any without leave."""
    problem, lost = _rollback(home, known, found)
    if problem is not None and not allow_rollback:
        raise JournalError(problem, _ACCEPT_HINT)
    return lost


def _rollback(home: Path, known: _Known, found: Mark) -> tuple[str | None, int | None]:
    path, mark = home / DATABASE, known.mark
    if mark is None:
        if found.seq == 0 and not known.exists:
            return None, 0  # a crash between making the database and the mark: nothing was ever acknowledged
        what = "damaged" if known.exists else "missing"
        text = f"The high-water mark {home / HIGHWATER} is {what}, so {path} may lack what was acknowledged."
        return text, None
    if mark.state_id != found.state_id:
        return f"The state file {path} belongs to another state than the high-water mark beside it.", mark.seq
    if found.seq < mark.seq:
        text = f"The state in {path} went backwards: it ends at entry {found.seq}, but {mark.seq} were acknowledged."
        return text, mark.seq - found.seq
    return None, 0


def _mark_file(home: Path, known: _Known, found: Mark) -> HighWater:
    """The mark, opened; made anew when it does not say what the database says. Raises OSError."""
    mark = known.mark
    if mark is None or mark.state_id != found.state_id or mark.seq > found.seq:
        return HighWater.create(home / HIGHWATER, found.state_id, found.seq)
    opened = HighWater.reopen(home / HIGHWATER, mark)
    if mark.seq < found.seq:
        opened.write(found.seq)
    return opened
