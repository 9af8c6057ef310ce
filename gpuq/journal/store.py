"""The journal: events in, durable; events, snapshots, blobs and ended jobs out. Imports core, errors, sqlite3.

One connection, one caller at a time (the daemon's writer thread), no fork without exec while it is open. What is
acknowledged (`append` returned) survives any crash: SQLite flushes the commit, then the high-water mark follows.
One thing to know: when the disk fills up, the reserve file is given back and the write is tried once more; from then
on `low_space` is true, and the daemon takes no new work until `probe` has made the reserve whole again.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

import gpuq
from gpuq.core.events import AnyEvent
from gpuq.core.model import BlobId, JobId, Stamp
from gpuq.core.states import JobState
from gpuq.errors import JournalError
from gpuq.journal import archive as archived_jobs
from gpuq.journal import blobs as stored_blobs
from gpuq.journal.archive import ArchivedJob, HistoryQuery
from gpuq.journal.backup import make_backup
from gpuq.journal.codec import Entry, EventRow, checksum, entry_of, event_rows
from gpuq.journal.failpoints import reach
from gpuq.journal.files import Reserve, filesystem_warning, make_home, take_lock
from gpuq.journal.opening import Opened, newest_snapshot, open_database
from gpuq.journal.problems import DAMAGE_HINT, JournalBroken, JournalFull, write_error
from gpuq.journal.schema import set_meta

T = TypeVar("T")

READ_AT_ONCE: Final = 1000  # entries, so that a long replay never holds all rows in memory
EVENT_DAYS: Final = 30  # how long entries that a snapshot covers are kept for `events`
_NO_BLOBS: Final[Mapping[BlobId, bytes]] = MappingProxyType({})
_PUT_EVENT: Final = "INSERT INTO event (seq, wall_s, steady_s, v, job, body, crc) VALUES (?, ?, ?, ?, ?, ?, ?)"
_GET_EVENTS: Final = "SELECT seq, wall_s, steady_s, v, job, body, crc FROM event WHERE seq > :since"
_OF_JOB: Final = (
    " AND (job IN (:job, :array) OR (:job = :array AND job >= :job || '_' AND job < :job || '`'))"  # "`" follows "_"
)


class Journal:
    """The open journal of one home directory.

    state_id: random, made with the database. last_seq: number of the newest entry. warnings: sentences for people.
    lost_entries: acknowledged entries that an allowed rollback gave up; None when their number is unknown.
    low_space: the reserve is spent. problem: why the last write failed, None after one that worked.
    """

    def __init__(self, home: Path, lock: int, opened: Opened) -> None:
        self.home = home
        self.state_id = opened.state_id
        self.last_seq = opened.last_seq
        self.lost_entries = opened.lost_entries
        self.problem: str | None = None
        self._lock = lock
        self._connection = opened.connection
        self._mark = opened.mark
        self._mark_is_behind = False
        self._is_signed = False
        self._is_closed = False
        self._reserve = Reserve(home)
        self.low_space = not self._reserve.make()
        self.warnings = self._warnings()

    @classmethod
    def open(cls, home: Path, *, allow_rollback: bool = False) -> Journal:
        """Open the journal in `home`, or make it on first use.

        Raises JournalError: another daemon owns it; it is damaged, foreign, from a newer gpuq or read-only; it is
        gone; or it lacks acknowledged entries and allow_rollback is false. A refusal changes no file of the journal.
        """
        make_home(home)
        lock = take_lock(home)
        try:
            return cls(home, lock, open_database(home, allow_rollback))
        except BaseException:
            os.close(lock)
            raise

    def close(self) -> None:
        """Close everything; harmless when repeated."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._connection.close()
        finally:
            self._mark.close()
            os.close(self._lock)

    def _warnings(self) -> tuple[str, ...]:
        warnings = [filesystem_warning(self.home)]
        if self.lost_entries != 0:
            number = "An unknown number of" if self.lost_entries is None else str(self.lost_entries)
            warnings.append(f"{number} acknowledged entries of the journal were given up by an allowed rollback.")
        if self.low_space:
            warnings.append(f"The disk that holds {self.home} is nearly full; no new work is taken.")
        return tuple(warning for warning in warnings if warning is not None)

    # --- reading -----------------------------------------------------------------------------------------

    def load(self) -> tuple[bytes | None, Iterator[Entry]]:
        """The newest snapshot (None: there is none) and the entries after it, checked as they are read.

        Raises JournalError, also from the iterator, at damage, at a gap, or at what only a newer gpuq knows.
        """
        row = self._reading(lambda: newest_snapshot(self._connection))
        if row is None:
            return None, self._entries(0, self.last_seq)
        seq, state, _ = row
        return state, self._entries(seq, self.last_seq)

    def _entries(self, seq: int, last: int) -> Iterator[Entry]:
        """The entries after `seq` up to `last`."""
        while seq < last:
            limit = min(READ_AT_ONCE, last - seq)
            rows = self._rows(_GET_EVENTS + " ORDER BY seq LIMIT :limit", {"since": seq, "limit": limit})
            for row in rows or [(0,)]:
                seq += 1
                if row[0] != seq:
                    raise JournalBroken(f"Entry {seq} of the journal is missing (it ends at {last}).", DAMAGE_HINT)
                yield entry_of(EventRow(*row))

    def events(self, since: int = 0, job: str | None = None, limit: int | None = None) -> list[Entry]:
        """Up to `limit` entries after `since`, oldest first: all, or of a job, an array, or a task with its submit."""
        text = _GET_EVENTS + (_OF_JOB if job is not None else "") + " ORDER BY seq LIMIT :limit"
        array = job.partition("_")[0] if job is not None else None
        values = {"since": since, "job": job, "array": array, "limit": -1 if limit is None else limit}
        return [entry_of(EventRow(*row)) for row in self._rows(text, values)]

    def blob(self, id_: BlobId) -> bytes:
        """The content of a blob; raises JournalError when it is missing or damaged."""
        return self._reading(lambda: stored_blobs.get_blob(self._connection, id_))

    def archived(self, id_: JobId) -> ArchivedJob | None:
        """One ended job from the archive, or None."""
        return self._reading(lambda: archived_jobs.get_job(self._connection, id_))

    def archived_states(self, ids: Collection[JobId]) -> dict[JobId, JobState]:
        """Final states of the named jobs that the archive knows (of all its tasks when an array is named)."""
        return self._reading(lambda: archived_jobs.states_of(self._connection, ids))

    def history(self, query: HistoryQuery) -> list[ArchivedJob]:
        """Ended jobs that match, newest submit first."""
        return self._reading(lambda: archived_jobs.query_jobs(self._connection, query))

    # --- writing -----------------------------------------------------------------------------------------

    def append(
        self,
        entries: Sequence[tuple[Stamp, AnyEvent]],
        *,
        blobs: Mapping[BlobId, bytes] = _NO_BLOBS,
        archive: Sequence[ArchivedJob] = (),
        forget: Collection[JobId] = (),
    ) -> int:
        """Record all of it in one transaction, durable on return; returns the number of the newest entry.

        forget: ids of jobs, tasks or arrays whose archive rows go, before those of `archive` come.
        Raises JournalFull or JournalBroken with nothing recorded, JournalError for what cannot be stored.
        """
        rows = event_rows(self.last_seq + 1, entries)
        stored_blobs.check_names(blobs)

        def work() -> None:
            self._sign()
            if blobs:
                stored_blobs.put_blobs(self._connection, blobs)
            self._connection.executemany(_PUT_EVENT, rows)
            if forget:
                archived_jobs.forget_jobs(self._connection, forget)
            if archive:
                archived_jobs.put_jobs(self._connection, archive)
            reach("journal.before_commit")

        self._write(work, may_spend_reserve=True)
        self._is_signed = True
        self.last_seq += len(rows)
        self._raise_mark()
        return self.last_seq

    def snapshot(self, state: bytes, seq: int) -> None:
        """Store the state as it was after entry `seq`, so that replay begins there.

        Older snapshots go, and so do entries that it covers and that are older than EVENT_DAYS (by the steady clock).
        """
        if not 0 <= seq <= self.last_seq:
            raise JournalError(f"A snapshot at entry {seq} cannot be: the journal ends at entry {self.last_seq}.")

        def work() -> None:
            reach("journal.before_snapshot")
            put = "INSERT OR REPLACE INTO snapshot (seq, state, crc) VALUES (?, ?, ?)"
            self._connection.execute(put, (seq, state, checksum((seq,), state)))
            self._connection.execute("DELETE FROM snapshot WHERE seq <> ?", (seq,))
            self._connection.execute(
                "DELETE FROM event WHERE seq <= :seq AND steady_s <"
                " (SELECT steady_s FROM event ORDER BY seq DESC LIMIT 1) - :kept_s",
                {"seq": seq, "kept_s": EVENT_DAYS * 86400.0},
            )

        self._write(work)
        try:
            reach("journal.after_snapshot")
        except OSError as error:
            raise write_error(error, self.home) from error

    def forget(self, ids: Collection[JobId]) -> int:
        """Delete archived jobs (an array's id: its tasks) and specs that none names now; returns how many jobs went."""
        counts: list[int] = []

        def work() -> None:
            counts[:] = [archived_jobs.forget_jobs(self._connection, ids)]
            archived_jobs.collect_specs(self._connection)

        self._write(work)
        return counts[0]

    def collect(self, keep: Collection[BlobId]) -> int:
        """Delete all blobs but those in `keep`; returns how many went. A rare, slow operation."""
        counts: list[int] = []

        def work() -> None:
            counts[:] = [stored_blobs.collect_blobs(self._connection, keep)]
            archived_jobs.collect_specs(self._connection)

        self._write(work)
        return counts[0]

    def backup(self, reason: str) -> Path:
        """A checked copy in home/backups, of which the newest five of each reason stay. Raises JournalError."""
        return make_backup(self._connection, self.home, self.last_seq, reason)

    def probe(self) -> bool:
        """Whether a small durable write works again, the high-water mark too, and the reserve is whole."""
        try:
            self._catch_up()
            self._transact(lambda: set_meta(self._connection, "probe", os.urandom(8).hex()))
            self._mark.write(self.last_seq)
        except (JournalError, OSError) as error:
            self.problem = str(error)
            return False
        self.low_space = not (self._reserve.make() or (self._shrink() and self._reserve.make()))
        self.problem = None
        return not self.low_space

    def _shrink(self) -> bool:
        """Fold the -wal file into the database and cut it to nothing; False when it could not be done."""
        try:
            (busy, _, _) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error:
            return False
        return not busy

    # --- transactions ------------------------------------------------------------------------------------

    def _write(self, work: Callable[[], None], may_spend_reserve: bool = False) -> None:
        """Run `work` in one transaction; on a full disk give the reserve back, if allowed, and try once more."""
        try:
            self._catch_up()
            try:
                self._transact(work)
            except JournalFull:
                self.low_space = True
                if not (may_spend_reserve and self._reserve.free()):
                    raise
                self._transact(work)
        except JournalError as error:
            self.problem = error.message
            raise
        self.problem = None

    def _transact(self, work: Callable[[], None]) -> None:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            work()
            self._connection.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            self._roll_back()
            raise write_error(error, self.home) from error
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # SQLite has rolled back by itself; what is reported is the first failure

    def _raise_mark(self) -> None:
        """Let the high-water mark follow a commit; the entries are durable already, so a failure is left for later."""
        try:
            reach("journal.after_commit")
            reach("journal.before_highwater")
            self._mark.write(self.last_seq)
            reach("journal.after_highwater")
        except OSError as error:
            self._mark_is_behind = True
            self.problem = write_error(error, self.home).message

    def _catch_up(self) -> None:
        """Write a mark that failed before; raises JournalError so that at most one commit is ever unguarded."""
        if not self._mark_is_behind:
            return
        try:
            self._mark.write(self.last_seq)
        except OSError as error:
            raise write_error(error, self.home) from error
        self._mark_is_behind = False

    def _sign(self) -> None:
        """Note which gpuq writes, for the message of one that is too old to read it."""
        if not self._is_signed:
            set_meta(self._connection, "gpuq", gpuq.__version__)

    def _rows(self, text: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        return self._reading(lambda: self._connection.execute(text, values).fetchall())

    def _reading(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise write_error(error, self.home) from error
