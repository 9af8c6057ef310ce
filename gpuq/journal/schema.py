"""The tables, their version and the migrations. Imports sqlite3.

The schema number stands in SQLite's user_version, gpuq's mark in application_id. A released number never changes its
meaning: a change of the tables appends one step to STEPS, and tests/journals/ keeps a file of every number.
One thing to know: a step runs with its number in one transaction, so a crash leaves either schema whole.
"""

from __future__ import annotations

import sqlite3
from typing import Final

APPLICATION_ID: Final = 0x67707571  # "gpuq"

# STEPS[n] leads from schema n to schema n + 1; schema 0 is an empty file.
STEPS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
        """CREATE TABLE event (
            seq INTEGER PRIMARY KEY, wall_s REAL NOT NULL, steady_s REAL NOT NULL,
            v INTEGER NOT NULL, job TEXT, body BLOB NOT NULL, crc INTEGER NOT NULL
        )""",
        "CREATE INDEX event_of_job ON event (job, seq) WHERE job IS NOT NULL",
        "CREATE TABLE snapshot (seq INTEGER PRIMARY KEY, state BLOB NOT NULL, crc INTEGER NOT NULL)",
        "CREATE TABLE blob (id TEXT PRIMARY KEY, data BLOB NOT NULL)",
        "CREATE TABLE spec (id TEXT PRIMARY KEY, v INTEGER NOT NULL, body BLOB NOT NULL)",
        """CREATE TABLE archive (
            id TEXT PRIMARY KEY, array_id TEXT NOT NULL, position INTEGER NOT NULL,
            user TEXT NOT NULL, uid INTEGER NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL, node TEXT,
            submitted_at REAL NOT NULL, started_at REAL, ended_at REAL, gpus INTEGER NOT NULL,
            spec TEXT NOT NULL REFERENCES spec (id), v INTEGER NOT NULL, body BLOB NOT NULL, crc INTEGER NOT NULL
        )""",
        "CREATE INDEX archive_by_position ON archive (position)",
        "CREATE INDEX archive_by_array ON archive (array_id)",
        "CREATE INDEX archive_by_user ON archive (user, position)",
        "CREATE INDEX archive_by_end ON archive (ended_at)",
        "CREATE INDEX archive_by_spec ON archive (spec)",
    ),
)


def newest_schema() -> int:
    """The schema this gpuq writes."""
    return len(STEPS)


def schema_of(connection: sqlite3.Connection) -> int:
    """The schema number of an open database."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def is_journal(connection: sqlite3.Connection) -> bool:
    """Whether gpuq made this database."""
    return int(connection.execute("PRAGMA application_id").fetchone()[0]) == APPLICATION_ID


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a database, even an empty one, to the newest schema; raises sqlite3.Error with that step undone."""
    for number in range(schema_of(connection), newest_schema()):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in STEPS[number]:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID:d}")
            connection.execute(f"PRAGMA user_version = {number + 1:d}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def set_meta(connection: sqlite3.Connection, key: str, value: str) -> None:
    """Store one fact about the journal itself."""
    connection.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, value))


def get_meta(connection: sqlite3.Connection, key: str) -> str | None:
    """A fact about the journal, or None."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])
