"""The journal: the only SQL in gpuq. Imports core and errors.

Events are the truth; a snapshot bounds replay; ended jobs move to an archive. One thing to know: everything here is
synchronous and belongs to the daemon's one writer thread.
"""

from gpuq.journal.archive import ArchivedGpu, ArchivedJob, HistoryQuery
from gpuq.journal.backup import list_backups, newest_backup, restore
from gpuq.journal.blobs import blob_id
from gpuq.journal.codec import CODEC_VERSION, Entry
from gpuq.journal.problems import JournalBroken, JournalFull
from gpuq.journal.store import Journal

__all__ = [
    "Journal", "Entry", "ArchivedJob", "ArchivedGpu", "HistoryQuery", "JournalFull", "JournalBroken", "CODEC_VERSION",
    "blob_id", "list_backups", "newest_backup", "restore",
]  # fmt: skip
