"""Environments and scripts beside the events, named by their SHA-256. Imports core and sqlite3.

One thing to know: the name is the content's digest, so the same environment of a thousand submits is stored once, and
a damaged blob is noticed when it is read.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Collection, Mapping

from gpuq.core.model import BlobId
from gpuq.errors import JournalError
from gpuq.journal.problems import JournalBroken


def blob_id(data: bytes) -> BlobId:
    """The name under which `data` is stored."""
    return BlobId(hashlib.sha256(data).hexdigest())


def check_names(blobs: Mapping[BlobId, bytes]) -> None:
    """Raise JournalError when a blob does not bear its digest as its name."""
    for id_, data in blobs.items():
        if id_ != blob_id(data):
            raise JournalError(f"The blob {id_} is not named by its SHA-256.", "This is a fault of gpuq: report it.")


def put_blobs(connection: sqlite3.Connection, blobs: Mapping[BlobId, bytes]) -> None:
    """Store blobs; those that are there already stay as they are."""
    connection.executemany("INSERT OR IGNORE INTO blob (id, data) VALUES (?, ?)", blobs.items())


def get_blob(connection: sqlite3.Connection, id_: BlobId) -> bytes:
    """The content of a blob; raises JournalError when it is missing or damaged."""
    row = connection.execute("SELECT data FROM blob WHERE id = ?", (id_,)).fetchone()
    if row is None:
        raise JournalError(f"The journal has no blob {id_}.", "The job that names it cannot start; submit it again.")
    data = bytes(row[0])
    if blob_id(data) != id_:
        raise JournalBroken(f"The blob {id_} is damaged: its content does not match its name.")
    return data


def collect_blobs(connection: sqlite3.Connection, keep: Collection[BlobId]) -> int:
    """Delete all blobs but those in `keep`; returns how many went."""
    kept = frozenset(keep)
    stored = [row[0] for row in connection.execute("SELECT id FROM blob")]
    gone = [(id_,) for id_ in stored if id_ not in kept]
    connection.executemany("DELETE FROM blob WHERE id = ?", gone)
    return len(gone)
