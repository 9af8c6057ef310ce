"""What can go wrong with the journal, in words for people. Imports errors and sqlite3.

One thing to know: SQLite's texts are matched, not its numeric codes, because Python 3.10 does not give the codes;
the texts are fixed in SQLite's source and are the same in every language setting.
"""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path
from typing import Final

from gpuq.errors import JournalError

RESTORE_COMMAND: Final = "gpuq daemon restore"
ROLLBACK_COMMAND: Final = "gpuq daemon start --allow-rollback"
DAMAGE_HINT: Final = f"Nothing was changed; go back to a backup with '{RESTORE_COMMAND}'."
_FULL_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT)


class JournalFull(JournalError):
    """The disk (or the quota) is full; what was to be written is not, and all that was acknowledged is safe."""

    kind = "journal_full"
    http_status = 507


class JournalBroken(JournalError):
    """The journal cannot be written or read; what was to be written is not acknowledged."""

    kind = "journal_broken"


def is_full(error: BaseException) -> bool:
    """Whether a failure means: no space left, or quota used up."""
    if isinstance(error, OSError):
        return error.errno in _FULL_ERRNOS
    return isinstance(error, sqlite3.Error) and "disk is full" in str(error)


def is_busy(error: BaseException) -> bool:
    """Whether somebody else holds SQLite's lock."""
    return isinstance(error, sqlite3.Error) and "is locked" in str(error)


def full_error(home: Path) -> JournalFull:
    """The journal's disk has no space left."""
    return JournalFull(
        f"The disk that holds {home} is full, so nothing new can be recorded.",
        "Free some space there; waiting and running jobs are safe, and gpuq goes on by itself.",
    )


def owned_error(path: Path, pid: str = "") -> JournalError:
    """A second daemon was started on the same journal."""
    whose = f" (process {pid})" if pid else ""
    return JournalError(
        f"another gpuq daemon owns {path}{whose}",
        "Use the running daemon, stop it with 'gpuq daemon stop', or set GPUQ_HOME to another directory.",
    )


def damaged_error(path: Path, what: str, newest: Path | None) -> JournalError:
    """The file is not what gpuq wrote; it is kept as it is, and the way back is named."""
    if newest is None:
        hint = f"There is no backup. Keep the file; '{RESTORE_COMMAND}' needs a copy of it from elsewhere."
    else:
        hint = f"Nothing was changed. The newest backup is {newest}: go back to it with '{RESTORE_COMMAND}'."
    return JournalError(f"The state file {path} is damaged: {what}.", hint)


def write_error(error: BaseException, home: Path) -> JournalError:
    """A failed write (SQLite's or the operating system's) as JournalFull or JournalBroken."""
    if is_full(error):
        return full_error(home)
    text = str(error)
    if "readonly" in text or (isinstance(error, OSError) and error.errno == errno.EROFS):
        return JournalBroken(
            f"The journal in {home} cannot be written: the file system is read-only.",
            f"Make {home} writable again; running jobs are not touched meanwhile.",
        )
    if "malformed" in text or "not a database" in text:
        return JournalBroken(
            f"The journal in {home} was damaged while gpuq ran: {text}.",
            f"Stop the daemon, then go back to a backup with '{RESTORE_COMMAND}'; running jobs are not touched.",
        )
    return JournalBroken(
        f"The journal in {home} cannot be used: {text}.",
        "Look at the disk (dmesg, df); running jobs are not touched, and gpuq tries again.",
    )
