"""Records that describe GPUs, and the interface that every GPU vendor implements.

Owns: Device, Sample, GpuProcess, Driver, the health of one GPU over time, and who a process id belongs to.
May import: the standard library only; it runs on nodes with Python 3.8 and nothing installed.
One thing to know: every measured value is optional. None means "not known" and is never replaced by 0.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import pwd
from typing import Any, Dict, List, Optional, Tuple

ERRORS_UNTIL_LOST = 3
RECOVERY_S = 60.0


class Health(str, enum.Enum):
    """What the driver's recent answers say about a GPU."""

    OK = "ok"
    SUSPECT = "suspect"
    LOST = "lost"


class Link(str, enum.Enum):
    """The closest connection between two GPUs of a node, best first."""

    NVLINK = "nvlink"
    PIX = "pix"  # one PCIe switch
    PXB = "pxb"  # several PCIe switches
    PHB = "phb"  # one PCIe host bridge
    NODE = "node"  # one NUMA node
    SYSTEM = "sys"  # across NUMA nodes


class ProcessKind(str, enum.Enum):
    """How a process uses a GPU; graphics processes do not make it busy."""

    COMPUTE = "compute"
    GRAPHICS = "graphics"
    MPS = "mps"


@dataclasses.dataclass(frozen=True)
class Driver:
    """The driver stack of a node: `vendor` is "nvidia", "simulated" or "none", `error` one sentence."""

    vendor: str
    version: Optional[str] = None
    cuda: Optional[str] = None
    error: Optional[str] = None

    def wire(self) -> Dict[str, Any]:
        """The record as the agent protocol sends it."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Device:
    """A GPU, or a MIG slice of one (`parent` is then the UUID of its card).

    `reason` says why the device is not usable, or what is suspicious about one that still is.
    """

    uuid: str
    index: int
    vendor: str
    name: str
    memory_mib: Optional[int] = None
    pci_bus_id: Optional[str] = None
    minor: Optional[int] = None
    numa_node: Optional[int] = None
    compute_capability: Optional[str] = None
    power_limit_w: Optional[float] = None
    mig: Optional[str] = None
    parent: Optional[str] = None
    usable: bool = True
    reason: Optional[str] = None
    health: Health = Health.OK
    peers: Dict[str, Link] = dataclasses.field(default_factory=dict)

    def wire(self) -> Dict[str, Any]:
        """The inventory record of the agent protocol."""
        record = dataclasses.asdict(self)
        record["health"] = self.health.value
        record["peers"] = {uuid: link.value for uuid, link in self.peers.items()}
        return record


@dataclasses.dataclass(frozen=True)
class GpuProcess:
    """One process that holds memory on a GPU."""

    pid: int
    kind: ProcessKind
    memory_mib: Optional[int] = None
    user: Optional[str] = None
    name: Optional[str] = None

    def wire(self) -> Dict[str, Any]:
        """The process as the agent protocol sends it; the agent fills in `attempt`."""
        return {
            "pid": self.pid,
            "user": self.user,
            "name": self.name,
            "memory_mib": self.memory_mib,
            "kind": self.kind.value,
            "attempt": None,
        }


@dataclasses.dataclass(frozen=True)
class Sample:
    """One reading of one device; `utilization` runs from 0 to 1, `energy_j` counts since the driver loaded.

    `memory_includes_reserve` is true when an old driver counts its own reserve (hundreds of MiB) as used.
    `processes` is None when they are not known, and an empty tuple when there are none.
    """

    uuid: str
    utilization: Optional[float] = None
    memory_used_mib: Optional[int] = None
    memory_total_mib: Optional[int] = None
    memory_includes_reserve: bool = False
    power_w: Optional[float] = None
    power_limit_w: Optional[float] = None
    energy_j: Optional[float] = None
    temperature_c: Optional[int] = None
    clock_mhz: Optional[int] = None
    throttle: Optional[Tuple[str, ...]] = None
    processes: Optional[Tuple[GpuProcess, ...]] = None

    def wire(self) -> Dict[str, Any]:
        """The sample as the agent protocol sends it; the agent, who knows its attempts, fills in `foreign`."""
        record = dict(self.__dict__)
        if self.processes is not None:
            record["processes"] = [process.wire() for process in self.processes]
        record["foreign"] = None
        return record


class HealthTracker:
    """Health of one GPU: ok -> suspect at an error -> lost at the third; ok again after a quiet while.

    One answer proves nothing about a card that just failed, so it must answer for `recovery_s` on end
    before it is trusted again. Times are seconds of a monotonic clock, given by the caller.
    """

    def __init__(self, recovery_s: float = RECOVERY_S) -> None:
        self._recovery_s = recovery_s
        self._start_afresh()

    def _start_afresh(self) -> None:
        self.health = Health.OK
        self.reason: Optional[str] = None
        self._errors = 0
        self._answering_since_s: Optional[float] = None

    def answered(self, now_s: float) -> None:
        """Note that the GPU answered everything it was asked."""
        if self.health is Health.OK:
            return
        if self._answering_since_s is None:
            self._answering_since_s = now_s
        if now_s - self._answering_since_s >= self._recovery_s:
            self._start_afresh()

    def failed(self, reason: str) -> None:
        """Note one error; `reason` is a short phrase that a user can read."""
        self._errors += 1
        self._answering_since_s = None
        self.reason = reason
        lost = self.health is Health.LOST or self._errors >= ERRORS_UNTIL_LOST
        self.health = Health.LOST if lost else Health.SUSPECT

    def lost(self, reason: str) -> None:
        """Note that the GPU is gone: there is nothing to wait for."""
        self._errors = ERRORS_UNTIL_LOST
        self.failed(reason)


class Vendor:
    """One family of GPUs on this node. No method raises for a missing driver, GPU or value.

    `refresh` looks at everything that rarely changes (which GPUs there are, their health, MIG) and may
    take a while; `sample` is the cheap one, called about once a second; the others only report.
    """

    def refresh(self) -> None:
        """Look again which devices there are and how they are; also retries a driver that was missing."""
        raise NotImplementedError

    def sample(self, with_processes: bool) -> List[Sample]:
        """Read every device; without `with_processes` the process lists are those of the last time."""
        raise NotImplementedError

    def inventory(self) -> List[Device]:
        """Every device known, also the lost ones, as of the last `refresh` or `sample`."""
        raise NotImplementedError

    def driver(self) -> Driver:
        """The state of the driver as of the last `refresh` or `sample`."""
        raise NotImplementedError

    def needs_fresh_process(self) -> bool:
        """True when only a newly started process can reach the driver again."""
        return False

    def close(self) -> None:
        """Let go of the driver."""


class ProcessTable:
    """Answers who owns a process id that a driver reports, from /proc."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._namespace_depth = max(0, len(self._namespace_pids("self")) - 1)

    def describe(self, reported_pid: int, kind: ProcessKind, memory_mib: Optional[int]) -> GpuProcess:
        """The process with user and command name, None where it has ended or is hidden from us."""
        pid = self._pid_here(reported_pid)
        return GpuProcess(pid, kind, memory_mib, self._user(reported_pid), self._command(reported_pid))

    def _pid_here(self, reported_pid: int) -> int:
        """The pid in our own namespace when /proc shows an outer one, else the pid as reported.

        Drivers know no pid namespaces. Inside a container with its own /proc nothing can be resolved.
        """
        if not self._namespace_depth:
            return reported_pid
        pids = self._namespace_pids(str(reported_pid))
        return pids[self._namespace_depth] if len(pids) > self._namespace_depth else reported_pid

    def _namespace_pids(self, entry: str) -> List[int]:
        return [int(pid) for pid in self._status_field(entry, "NSpid:")]

    def _user(self, pid: int) -> Optional[str]:
        uids = self._status_field(str(pid), "Uid:")
        if not uids:
            return None
        try:
            return pwd.getpwuid(int(uids[0])).pw_name
        except KeyError:
            return uids[0]

    def _command(self, pid: int) -> Optional[str]:
        text = self._read(os.path.join(self._proc, str(pid), "comm"))
        return text.strip() or None

    def _status_field(self, entry: str, field: str) -> List[str]:
        for line in self._read(os.path.join(self._proc, entry, "status")).splitlines():
            if line.startswith(field):
                return line[len(field) :].split()
        return []

    def _read(self, path: str) -> str:
        try:
            with open(path, errors="replace") as file:
                return file.read()
        except OSError:  # the process has ended, or hidepid hides it
            return ""
