"""The journal's directory: its lock, durable replacement of files, the space reserve, and what disk it is on.

Imports errors and the standard library. One thing to know: every file is born with mode 0600 by the mode given to
open(2), so the process-wide umask is never touched; SQLite gives its -wal file the mode of the database.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Final

from gpuq.errors import JournalError
from gpuq.journal.problems import owned_error

DATABASE: Final = "journal.db"
HIGHWATER: Final = "highwater"
RESERVE: Final = "reserve"
BACKUPS: Final = "backups"
LOCK: Final = "journal.lock"
RESERVE_BYTES: Final = 4 << 20

_SHARED_FILESYSTEMS: Final = (
    "nfs", "nfs3", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "pvfs2", "orangefs",
    "9p", "davfs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.juicefs", "fuse.s3fs", "fuse.rclone",
)  # fmt: skip


def make_home(home: Path) -> None:
    """Make the directory (mode 0700) when it is missing; raises JournalError when it cannot be written."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise JournalError(f"The state directory {home} cannot be made: {error.strerror}.", _HOME_HINT) from error
    if not os.access(home, os.W_OK | os.X_OK):
        raise JournalError(f"The state directory {home} is read-only.", _HOME_HINT)


_HOME_HINT: Final = "Make it writable, or set GPUQ_HOME to a directory on a local disk."


def take_lock(home: Path) -> int:
    """A descriptor that keeps every other daemon away until it is closed; raises JournalError."""
    path = home / LOCK
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise JournalError(f"The lock {path} cannot be opened: {error.strerror}.", _HOME_HINT) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
        os.close(fd)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise owned_error(home / DATABASE, owner) from None
        raise JournalError(
            f"The file system of {home} cannot lock files: {error.strerror}.",
            "Set GPUQ_HOME to a directory on a local disk.",
        ) from error
    _sign_lock(fd)
    return fd


def _sign_lock(fd: int) -> None:
    try:
        os.pwrite(fd, f"{os.getpid():<20}".encode("ascii"), 0)
    except OSError:
        pass  # the number only makes a message better; the lock itself is the kernel's


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def create_private(path: Path) -> int:
    """A descriptor of a new, empty file of mode 0600; what an earlier, broken-off try left there is removed."""
    path.unlink(missing_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def replace_durably(path: Path, data: bytes) -> None:
    """Put `data` at `path`: a power cut leaves the old content or the new one, never a mixture."""
    fresh = path.with_name(path.name + ".new")
    fd = create_private(fresh)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)
    move_durably(fresh, path)


def move_durably(source: Path, target: Path) -> None:
    """Rename within a directory, durably."""
    source.replace(target)
    sync_directory(target.parent)


class Reserve:
    """Space kept back for the moment when the disk is full, so that ends of running jobs can still be recorded."""

    def __init__(self, home: Path) -> None:
        self.path = home / RESERVE

    def is_whole(self) -> bool:
        """Whether the reserved space is there."""
        try:
            stat = self.path.stat()
        except OSError:
            return False
        return stat.st_size == RESERVE_BYTES and stat.st_blocks * 512 >= RESERVE_BYTES

    def make(self) -> bool:
        """Reserve the space; False when the disk does not have it."""
        if self.is_whole():
            return True
        try:
            fd = create_private(self.path)
            try:
                os.posix_fallocate(fd, 0, RESERVE_BYTES)
            finally:
                os.close(fd)
        except OSError:
            self.free()
            return False
        return self.is_whole()

    def free(self) -> bool:
        """Give the space back to the disk; False when there was none."""
        try:
            self.path.unlink()
        except OSError:
            return False
        return True


def filesystem_warning(home: Path, mountinfo: str | None = None) -> str | None:
    """A sentence when `home` lies on a network file system; `mountinfo` is the text of /proc/self/mountinfo."""
    if mountinfo is None:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
        except OSError:
            return None
    kind, source = _mount_of(os.path.realpath(home), mountinfo)
    if kind not in _SHARED_FILESYSTEMS:
        return None
    return (
        f"The state directory {home} lies on {kind} ({source}), where locks and flushes cannot be relied on; "
        "set GPUQ_HOME to a directory on a local disk."
    )


def _mount_of(path: str, mountinfo: str) -> tuple[str, str]:
    """Type and source of the mount that holds `path`: the longest mount point, and of equal ones the last."""
    best, found = -1, ("", "")
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) < 5 or len(tail) < 2:
            continue
        point = _unescape(fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, found = len(point), (tail[0], _unescape(tail[1]))
    return found


def _unescape(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
