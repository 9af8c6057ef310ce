"""The file in which a job says how much of its work is done. Owns its name, and reads it.

May import: nothing. One thing to know: the job writes it while it is read, so whatever is no fraction is no news.
"""

from __future__ import annotations

import os
import stat
from typing import Optional

FILE = "progress"
VARIABLE = b"GPUQ_PROGRESS_FILE"
_TAIL_BYTES = 64


def with_variable(environment: bytes, directory: str) -> bytes:
    """The NUL-separated environment of an attempt, with the path of its file."""
    kept = [entry for entry in environment.split(b"\0") if entry and not entry.startswith(VARIABLE + b"=")]
    kept.append(VARIABLE + b"=" + os.fsencode(os.path.join(directory, FILE)))
    return b"\0".join(kept)


def fraction(directory: str) -> Optional[float]:
    """The last word of the file as a fraction from 0 to 1, to three places; None without a file or a fraction."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(os.path.join(directory, FILE), flags)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None
        words = os.pread(descriptor, _TAIL_BYTES, max(0, found.st_size - _TAIL_BYTES)).split()
        value = float(words[-1])
    except (OSError, ValueError, IndexError):
        return None
    finally:
        os.close(descriptor)
    return round(value, 3) if 0.0 <= value <= 1.0 else None
