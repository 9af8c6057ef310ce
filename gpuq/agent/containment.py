"""What holds an attempt's processes together: cgroup v2 (A), cgroup v1 (B), or the process tree alone (C).

May import: linux, processes. One thing to know: the level is chosen by trying it on a real process when the
agent starts, and each attempt carries the choice in its claim, so that a later agent cleans up the same way.
"""

from __future__ import annotations

import enum
import os
import signal
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from . import linux, processes

FREEZE_DEADLINE_S = 0.5
PROBE_DEADLINE_S = 2.0
REMOVE_DEADLINE_S = 0.2


class Level(str, enum.Enum):
    """How much the kernel helps."""

    UNIFIED = "A"
    FREEZER = "B"
    TREE = "C"


class Containment(NamedTuple):
    """The choice of a node: directories below which one directory per attempt is made (empty: none)."""

    level: Level
    detail: str
    unified: str
    freezer: str
    memory: str

    def as_json(self) -> Dict[str, Any]:
        """For the claim and the spec file."""
        return {**self._asdict(), "level": self.level.value}

    @property
    def limits_memory(self) -> bool:
        """Whether a memory limit can be kept."""
        return bool(self.memory)


TREE_ONLY = Containment(Level.TREE, "no cgroup: process tree only", "", "", "")


def from_json(record: Any) -> Containment:
    """Inverse of `as_json`; anything unreadable counts as the process tree alone."""
    try:
        paths = [str(record[name]) for name in ("detail", "unified", "freezer", "memory")]
        return Containment(Level(record["level"]), *paths)
    except (TypeError, KeyError, ValueError):
        return TREE_ONLY


class Enclosure:
    """The cgroup directories of one attempt; at level C it has none and every call does nothing."""

    def __init__(self, containment: Containment, attempt: str) -> None:
        self._unified = _below(containment.unified, attempt)
        self._freezer = _below(containment.freezer, attempt)
        self._memory = _below(containment.memory, attempt)
        self.directories = [path for path in dict.fromkeys((self._unified, self._freezer, self._memory)) if path]

    def make(self, memory_limit_mib: Optional[int]) -> None:
        """Create the directories and set the memory limit; raises OSError."""
        if memory_limit_mib is None and self._memory != self._unified:
            self.directories = [path for path in self.directories if path != self._memory]
            self._memory = ""
        for path in self.directories:
            os.makedirs(path, 0o755, exist_ok=True)
        if memory_limit_mib is not None and self._memory:
            unified = self._memory == self._unified
            limit = "memory.max" if unified else "memory.limit_in_bytes"
            linux.write_text(os.path.join(self._memory, limit), str(memory_limit_mib * 1024 * 1024))

    def enter(self) -> None:
        """Move the calling process in; raises OSError."""
        for path in self.directories:
            linux.write_text(os.path.join(path, "cgroup.procs"), "0")

    def members(self) -> List[int]:
        """Pids inside, nested groups included."""
        found: List[int] = []
        top = self._unified or self._freezer
        for directory, _, _ in os.walk(top) if top else ():
            try:
                found += [int(pid) for pid in linux.read_text(os.path.join(directory, "cgroup.procs")).split()]
            except OSError:
                continue
        return found

    def kill(self) -> None:
        """Send SIGKILL to everything inside, frozen or not; errors are left to the caller's next look."""
        try:
            if self._unified:
                linux.write_text(os.path.join(self._unified, "cgroup.kill"), "1")
            elif self._freezer:
                self._freeze_and_kill()
        except OSError:
            pass  # the group is gone, and so is all that was in it

    def _freeze_and_kill(self) -> None:
        state = os.path.join(self._freezer, "freezer.state")
        linux.write_text(state, "FROZEN")
        deadline = time.monotonic() + FREEZE_DEADLINE_S
        while linux.read_text(state).strip() != "FROZEN" and time.monotonic() < deadline:
            time.sleep(0.001)
        for pid in self.members():  # frozen processes cannot end, so their pids cannot be reused
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        for directory, _, _ in os.walk(self._freezer):
            linux.write_text(os.path.join(directory, "freezer.state"), "THAWED")

    def memory_kills(self) -> int:
        """How often the kernel killed in here for want of memory; 0 when unknown."""
        if not self._memory:
            return 0
        name = "memory.events" if self._memory == self._unified else "memory.oom_control"
        try:
            lines = linux.read_text(os.path.join(self._memory, name)).splitlines()
        except OSError:
            return 0
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def remove(self) -> None:
        """Remove the directories, nested ones too; one that is still in use stays for a later try."""
        deadline = time.monotonic() + REMOVE_DEADLINE_S
        for top in self.directories:
            for directory, _, _ in os.walk(top, topdown=False):
                while not _removed(directory) and time.monotonic() < deadline:
                    time.sleep(0.002)


def _below(top: str, attempt: str) -> str:
    return os.path.join(top, attempt) if top else ""


def _removed(directory: str) -> bool:
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def remove_if_empty(containment: Containment) -> None:
    """Remove the node's own directories, unless attempts are still in them; they are made again when needed."""
    for top in (containment.unified, containment.freezer, containment.memory):
        if top:
            _removed(top)


def mounts() -> Tuple[str, Dict[str, str]]:
    """Mount point of cgroup v2 (empty: none), and of each v1 controller."""
    unified, controllers = "", {}
    for line in linux.read_text("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        point, kind, options = left.split()[4], right.split()[0], right.split()[2]
        if kind == "cgroup2" and not unified:
            unified = point
        elif kind == "cgroup":
            controllers.update(dict.fromkeys(options.split(","), point))
    return unified, controllers


def own_groups() -> Dict[str, str]:
    """This process's group in each hierarchy: controller name to path, "" for v2."""
    found: Dict[str, str] = {}
    for line in linux.read_text("/proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        found.update(dict.fromkeys(names.split(","), path))
    return found


def choose(spool_id: str, forced: Optional[str] = None) -> Containment:
    """The strongest level that works here; `forced` (A, B, C) allows that one only.

    Raises ValueError with a sentence when the forced level does not work.
    """
    tries: Dict[str, Callable[[str], Containment]] = {"A": _unified, "B": _freezer}
    if forced is not None and forced not in ("A", "B", "C"):
        raise ValueError(f"GPUQ_CONTAINMENT is {forced!r}; use A, B or C.")
    reasons: List[str] = []
    for level, attempt in tries.items():
        if forced not in (None, level):
            continue
        try:
            return attempt(f"gpuq-{spool_id[:8]}")
        except OSError as error:
            reasons.append(f"{level}: {error.strerror or error}")
    if forced in tries:
        raise ValueError(f"Containment level {forced} does not work on this node ({'; '.join(reasons)}).")
    detail = "process tree only" + (f" ({'; '.join(reasons)})" if reasons else " (asked for)")
    return TREE_ONLY._replace(detail=detail)


def _unified(name: str) -> Containment:
    point, _ = mounts()
    if not point:
        raise OSError(0, "cgroup v2 is not mounted")
    own = os.path.join(point, own_groups().get("", "/").lstrip("/"))
    last = OSError(0, "no directory of cgroup v2 is writable")
    for parent in dict.fromkeys((own, point)):
        top = os.path.join(parent, name)
        try:
            _make(top)
            _probe(Containment(Level.UNIFIED, "", top, "", ""))
        except OSError as error:
            last = error
            continue
        memory = top if _memory_enabled(parent, top) else ""
        return Containment(Level.UNIFIED, f"cgroup v2 at {top}", top, "", memory)
    raise last


def _memory_enabled(parent: str, top: str) -> bool:
    """Hand the memory controller down to the attempts' directories, where the kernel allows it."""
    try:
        for directory in (parent, top):
            linux.write_text(os.path.join(directory, "cgroup.subtree_control"), "+memory")
    except OSError:
        return False
    return True


def _freezer(name: str) -> Containment:
    _, controllers = mounts()
    groups = own_groups()
    if "freezer" not in controllers:
        raise OSError(0, "the cgroup v1 freezer is not mounted")
    top = os.path.join(controllers["freezer"], groups.get("freezer", "/").lstrip("/"), name)
    _make(top)
    _probe(Containment(Level.FREEZER, "", "", top, ""))
    return Containment(Level.FREEZER, f"cgroup v1 freezer at {top}", "", top, _v1_memory(controllers, groups, name))


def _v1_memory(controllers: Dict[str, str], groups: Dict[str, str], name: str) -> str:
    if "memory" not in controllers:
        return ""
    top = os.path.join(controllers["memory"], groups.get("memory", "/").lstrip("/"), name)
    try:
        _make(top)
    except OSError:
        return ""
    return top if os.access(os.path.join(top, "memory.limit_in_bytes"), os.W_OK) else ""


def _make(path: str) -> None:
    try:
        os.mkdir(path, 0o755)
    except FileExistsError:
        pass


def _probe(containment: Containment) -> None:
    """Hold and kill one process at this level; raises OSError when any step fails."""
    enclosure = Enclosure(containment, f"probe-{os.getpid()}")
    enclosure.make(None)
    pid = 0
    try:
        ready, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            _be_probed(enclosure, told)
        os.close(told)
        entered = os.read(ready, 1)
        os.close(ready)
        enclosure.kill()
        if not entered or not _died(pid):
            raise OSError(0, "a test process could not be moved in and killed")
        pid = 0
    finally:
        if pid > 0:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        enclosure.remove()


def _be_probed(enclosure: Enclosure, told: int) -> None:
    """The probe's child: enter, say so, wait for the end. Never returns."""
    try:
        enclosure.enter()
        os.write(told, b"1")
        time.sleep(PROBE_DEADLINE_S * 2)
    finally:
        os._exit(1)


def _died(pid: int) -> bool:
    deadline = time.monotonic() + PROBE_DEADLINE_S
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        time.sleep(0.002)
    return False


def attempt_processes(enclosure: Enclosure, attempt: str) -> List[processes.Process]:
    """All that lives of an attempt whose shim is dead: in its groups, or marked, with all descendants."""
    table = {item.pid: item for item in processes.marked(attempt)}
    inside = enclosure.members()
    found = [item for item in (processes.process(pid) for pid in inside) if item and item.state not in "ZX"]
    for item in found + (processes.descendants(inside) if inside else []):
        table[item.pid] = item
    return list(table.values())
