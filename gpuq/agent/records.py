"""The exit record of an attempt. Owns its fields and the disk space kept back for it.

May import: spool, logs, failpoints. One thing to know: the file is made and filled before the attempt is claimed,
so that writing the record to a full disk only overwrites blocks that are there already.
"""

from __future__ import annotations

import errno
import json
import os
import time
from typing import Any, Callable, Dict, Optional

from . import spool
from .failpoints import reach

RESERVED_BYTES = 4096
RETRY_S = 1.0


class ExitReserve:
    """Disk space for one exit record, and its way into place."""

    def __init__(self, directory: str) -> None:
        """Reserve the space; raises OSError on a full disk."""
        self._directory = directory
        # The pid keeps a shim that loses the claim away from the winner's record.
        self._path = os.path.join(directory, f"{spool.RESERVE}.{os.getpid()}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o600)
        try:
            spool.write_all(self._descriptor, b" " * RESERVED_BYTES)
        except OSError:
            self.drop()
            raise

    def drop(self) -> None:
        """Close the file, and give the space back if no record was written into it."""
        os.close(self._descriptor)
        spool.unlink(self._path)

    def commit(self, record: Dict[str, Any], free_space: Callable[[], None]) -> None:
        """Write the record durably, however long the disk stays full; gives up only if the spool is gone."""
        data = json.dumps(record).encode("ascii")
        while True:
            try:
                reach("shim.before_exit_record")
                self._write(data)
                return
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    free_space()
                time.sleep(RETRY_S)

    def _write(self, data: bytes) -> None:
        padded = data.ljust(RESERVED_BYTES - 1) + b"\n"
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        spool.write_all(self._descriptor, padded)
        os.fsync(self._descriptor)
        os.rename(self._path, os.path.join(self._directory, spool.EXIT))
        spool.sync_directory(self._directory)


def exit_record(
    attempt: str, wait_status: Optional[int], reason: Optional[str], error: Optional[str], started_at: Optional[float]
) -> Dict[str, Any]:
    """The record without its measurements; `wait_status` None means that nothing was started."""
    status, code, number = "not_started", None, None
    if wait_status is not None and os.WIFSIGNALED(wait_status):
        status, number = "signaled", os.WTERMSIG(wait_status)
    elif wait_status is not None:
        status, code = "exited", os.WEXITSTATUS(wait_status)
    return {
        "attempt": attempt,
        "status": status,
        "exit_code": code,
        "signal": number,
        "reason": reason,
        "error": error[:1000] if error else None,
        "started_at": started_at if wait_status is not None else None,
        "ended_at": time.time(),
        "run_s": None,
        "cpu_s": None,
        "max_rss_mib": None,
        "log_bytes": None,
        "log_dropped_bytes": None,
    }
