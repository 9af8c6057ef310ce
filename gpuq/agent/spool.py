"""The spool: a directory on the node that is the only truth about attempts. Owns its files and their order.

May import: linux, failpoints. One thing to know: `claim` appears by link(2), locked and complete, so the
first link decides whether an attempt was started or fenced; the kernel frees the lock when a shim dies.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import uuid
from typing import Any, Dict, List, Optional

from . import linux
from .failpoints import mutant

SPEC = "spec.json"
ENVIRONMENT = "environment"
SCRIPT = "script"
CLAIM = "claim"
CONTROL = "control"
STOP = "stop.json"
LIMIT = "limit.json"
ENDING = "ending.json"
RESERVE = "exit.reserve"
EXIT = "exit.json"
SHIM_LOG = "shim.log"
WAKE = "wake"
LOCK = "agent.lock"
ID = "id"
REMOVED = ".removed"  # ends the name of an attempt's directory that is on its way out

NETWORK_FILESYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "lustre", "fuse.sshfs", "9p", "afs", "gpfs", "beegfs")
_ATTEMPT = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class SpoolRefused(Exception):
    """The spool cannot be used; its text is one sentence for the administrator."""


def is_attempt(name: object) -> bool:
    """Whether a name is an attempt's UUID in lower case, and so a safe file name."""
    return isinstance(name, str) and _ATTEMPT.fullmatch(name) is not None


def write_file(directory: str, name: str, data: bytes, mode: int = 0o600, durable: bool = False) -> None:
    """Put a whole file in place: temporary name, fsync when `durable`, rename."""
    temporary = os.path.join(directory, f".{name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        write_all(descriptor, data)
        if durable:
            os.fsync(descriptor)
        os.rename(temporary, os.path.join(directory, name))
    except OSError:
        unlink(temporary)
        raise
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes; raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_json(directory: str, name: str, record: Dict[str, Any], durable: bool = False) -> None:
    """Put a JSON file in place."""
    write_file(directory, name, json.dumps(record).encode("ascii"), durable=durable)


def read_json(directory: str, name: str) -> Optional[Dict[str, Any]]:
    """A JSON object of the spool; None when it is missing or not whole."""
    try:
        with open(os.path.join(directory, name), "rb", buffering=0) as file:
            record = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def unlink(path: str) -> None:
    """Remove a file that may be gone already."""
    try:
        os.unlink(path)
    except OSError:
        pass


def sync_directory(path: str) -> None:
    """Make a directory's entries durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_claim(directory: str, record: Dict[str, Any]) -> Optional[int]:
    """Claim an attempt: the locked descriptor, or None when it was claimed or fenced before.

    On return both the claim and its directory entries, up to the spool's, are durable.
    """
    temporary = os.path.join(directory, f"{CLAIM}.{os.getpid()}")
    unlink(temporary)
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.set_inheritable(descriptor, mutant("lock-inherited"))
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        write_all(descriptor, json.dumps(record).encode("ascii"))
        os.fsync(descriptor)
        # The first link wins; a rename would let a late shim win too.
        (os.rename if mutant("claim-without-exclusive") else os.link)(temporary, os.path.join(directory, CLAIM))
    except FileExistsError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    finally:
        unlink(temporary)
    sync_directory(directory)
    sync_directory(os.path.dirname(directory))
    return descriptor


def is_locked(directory: str) -> bool:
    """Whether a living process holds the claim's lock."""
    try:
        descriptor = os.open(os.path.join(directory, CLAIM), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def ring(path: str, data: bytes) -> bool:
    """Write a short message to a FIFO; False when nobody has it open or it is full."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.write(descriptor, data) == len(data)
    except OSError:
        return False
    finally:
        os.close(descriptor)


class Spool:
    """An opened spool: checked directory, identity, wake FIFO, and the lock of its one agent."""

    def __init__(self, path: str) -> None:
        """Create or check the directory; raises SpoolRefused."""
        self.path = os.path.abspath(os.path.expanduser(path))
        try:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            self._check_owner()
            self.id = self._identity()
            self._lock = os.open(os.path.join(self.path, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self.wake = self._open_wake()
        except OSError as error:
            raise SpoolRefused(
                f"The spool {self.path} cannot be used ({error.strerror or error}); "
                "free space or set another `spool` for this node."
            ) from error

    def _check_owner(self) -> None:
        found = os.lstat(self.path)
        if not stat.S_ISDIR(found.st_mode):
            raise SpoolRefused(f"The spool {self.path} is not a directory; remove it or set another `spool`.")
        if found.st_uid != os.geteuid():
            raise SpoolRefused(
                f"The spool {self.path} belongs to uid {found.st_uid}, not to uid {os.geteuid()}; "
                "set another `spool` for this node."
            )
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise SpoolRefused(
                f"The spool {self.path} is open to others (mode {stat.S_IMODE(found.st_mode):04o}); "
                f"run `chmod 700 {self.path}` if nobody else has written there."
            )

    def _identity(self) -> str:
        """The UUID made with the spool: tells an emptied or another spool from the one known."""
        file = os.path.join(self.path, ID)
        try:
            with open(file, encoding="ascii") as stream:
                known = stream.read().strip()
        except FileNotFoundError:
            known = ""
        if is_attempt(known):
            return known
        made = str(uuid.uuid4())
        write_file(self.path, ID, made.encode("ascii"), durable=True)
        sync_directory(self.path)
        return made

    def _open_wake(self) -> int:
        file = os.path.join(self.path, WAKE)
        try:
            os.mkfifo(file, 0o600)
        except FileExistsError:
            pass
        descriptor = os.open(file, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise SpoolRefused(f"{file} is not a FIFO; remove it and start the agent again.")
        return descriptor

    def lock(self) -> bool:
        """Become the one agent of this spool; False while another one is."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def directory(self, attempt: str) -> str:
        """Path of an attempt's directory; the id must have been checked."""
        return os.path.join(self.path, attempt)

    def attempts(self) -> List[str]:
        """Ids of all attempts in the spool."""
        return sorted(name for name in os.listdir(self.path) if is_attempt(name))

    def in_place(self) -> bool:
        """Whether the path still leads to the spool that was opened."""
        try:
            with open(os.path.join(self.path, ID), encoding="ascii") as stream:
                return stream.read().strip() == self.id
        except OSError:
            return False

    def warnings(self) -> List[str]:
        """One sentence for each thing the administrator should know."""
        kind = linux.filesystem_of(self.path)
        if kind in NETWORK_FILESYSTEMS:
            return [f"The spool {self.path} is on {kind}, where locks may fail; set `spool` to a local directory."]
        return []

    def remove(self, attempt: str) -> None:
        """Remove an attempt's directory, by descriptors and never through a link.

        Its name goes first and at once: half a directory would say of an attempt what is not true.
        """
        top = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.rename(attempt, attempt + REMOVED, src_dir_fd=top, dst_dir_fd=top)
            _remove_tree(top, attempt + REMOVED)
        except FileNotFoundError:
            pass
        finally:
            os.close(top)

    def finish_removals(self) -> None:
        """Remove what an agent that died was just removing; what cannot be removed stays for the next start."""
        top = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in os.listdir(top):
                if name.endswith(REMOVED):
                    _remove_tree(top, name)
        except OSError:
            pass
        finally:
            os.close(top)


def _remove_tree(parent: int, name: str) -> None:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=parent)
    try:
        for entry in os.listdir(descriptor):
            if stat.S_ISDIR(os.stat(entry, dir_fd=descriptor, follow_symlinks=False).st_mode):
                _remove_tree(descriptor, entry)
            else:
                os.unlink(entry, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    os.rmdir(name, dir_fd=parent)
