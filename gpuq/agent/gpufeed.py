"""The agent's end of the sampler: GPU inventory and samples that never block the agent.

May import: children, frames, processes. One thing to know: the driver can hang any process that asks it, so the
sampler is one that can be killed; if even that fails, all GPUs are reported unusable.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from typing import Any, Callable, Dict, List, Optional

from . import processes
from .children import command
from .frames import Frame, FrameReader, note

SILENCE_S = 15.0
DEATH_S = 5.0
FIRST_INVENTORY_S = 20.0
RESPAWN_S = (1.0, 2.0, 5.0, 15.0, 60.0)
STUCK = "NVML is stuck"
NO_DRIVER = {"vendor": None, "version": None, "cuda": None, "error": "The GPU sampler has not answered."}


class GpuFeed:
    """The sampler process and what it last said."""

    def __init__(self, configuration: Dict[str, Any], foreign_memory_mib: float) -> None:
        self.gpus: List[Dict[str, Any]] = []
        self.driver: Dict[str, Any] = dict(NO_DRIVER)
        self.known = False
        self._configuration = configuration
        self._foreign_memory_mib = foreign_memory_mib
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._reader: Optional[FrameReader] = None
        self._heard_at_s = 0.0
        self._killed_at_s: Optional[float] = None
        self._failures = 0
        self._start_at_s: Optional[float] = 0.0
        self._ready_by_s = time.monotonic() + FIRST_INVENTORY_S
        self._spawn()

    @property
    def descriptor(self) -> int:
        """The pipe to wait on; -1 while there is none."""
        return self._reader.descriptor if self._reader is not None else -1

    @property
    def settled(self) -> bool:
        """Whether `ready` need not wait any longer."""
        return self.known or self._failures > 0 or time.monotonic() > self._ready_by_s

    def due_s(self) -> float:
        """When `tick` has something to do."""
        if self._start_at_s is not None:
            return self._start_at_s
        if self._killed_at_s is not None:
            return time.monotonic() + 1.0
        due_s = self._heard_at_s + SILENCE_S
        return due_s if self.settled else min(due_s, self._ready_by_s)

    def _spawn(self) -> None:
        self._start_at_s = None
        try:
            process = subprocess.Popen(
                command("sampler", isolated=False),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            note(f"the GPU sampler cannot be started ({error.strerror}); it is tried again.")
            self._retry_later()
            return
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._killed_at_s = None
        self._heard_at_s = time.monotonic()
        try:
            process.stdin.write(json.dumps(self._configuration).encode("ascii") + b"\n")
            process.stdin.flush()
        except OSError:
            pass  # it has ended already: the end of its output says so
        os.set_blocking(process.stdout.fileno(), False)
        self._reader = FrameReader(process.stdout.fileno())

    def _retry_later(self) -> None:
        wait_s = RESPAWN_S[min(self._failures, len(RESPAWN_S) - 1)]
        self._failures += 1
        self._start_at_s = time.monotonic() + wait_s

    def read(self, shims: Callable[[], Dict[int, str]]) -> List[Frame]:
        """Frames for the daemon out of what the sampler wrote; `shims` maps living shims to attempts."""
        if self._reader is None:
            return []
        frames: List[Frame] = []
        for frame in self._reader.read():
            self._heard_at_s = time.monotonic()
            if frame["type"] == "inventory":
                self._failures = 0
                self.gpus, self.driver, self.known = frame.get("gpus", []), frame.get("driver", {}), True
                frames.append(self.inventory())
            elif frame["type"] == "samples":
                frames.append(self._with_owners(frame, shims))
        if self._reader.ended:
            self._reader = None
        return frames

    def inventory(self) -> Frame:
        """The inventory frame of what is known now."""
        return {"type": "inventory", "gpus": self.gpus, "driver": self.driver}

    def _with_owners(self, frame: Frame, shims: Callable[[], Dict[int, str]]) -> Frame:
        """Fill `attempt` of each process and `foreign` of each GPU."""
        pids = {entry["pid"] for gpu in frame["gpus"] for entry in gpu.get("processes") or ()}
        found = processes.owners(pids, shims()) if pids else {}
        for gpu in frame["gpus"]:
            entries = gpu.get("processes")
            if entries is None:
                gpu["foreign"] = None
                continue
            for entry in entries:
                entry["attempt"] = found.get(entry["pid"])
            gpu["foreign"] = is_foreign(entries, self._foreign_memory_mib)
        return frame

    def tick(self) -> List[Frame]:
        """Kill a silent sampler, start a dead one again; returns an inventory frame when the GPUs became unusable."""
        now = time.monotonic()
        if self._start_at_s is not None:
            if now >= self._start_at_s:
                self._spawn()
            return []
        process = self._process
        if process is None:
            return []
        if process.poll() is not None:
            return self._buried(process)
        if self._killed_at_s is None and (now - self._heard_at_s > SILENCE_S or self._reader is None):
            note(f"the GPU sampler (pid {process.pid}) is silent; it is killed.")
            process.kill()
            self._killed_at_s = now
        elif self._killed_at_s is not None and now - self._killed_at_s > DEATH_S:
            return self._stuck()
        return []

    def _buried(self, process: "subprocess.Popen[bytes]") -> List[Frame]:
        """The sampler is dead: plan the next one."""
        if self._reader is not None and not self._reader.ended and self._killed_at_s is None:
            self._reader = None
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    pass  # what was still buffered for a dead reader
        self._reader, self._process = None, None
        if self._killed_at_s is None:
            note(f"the GPU sampler has ended with code {process.returncode}; it is started again.")
        if not self.known:
            self.driver = {**NO_DRIVER, "error": "The GPU sampler has ended; see the agent's log on this node."}
        self._retry_later()
        return []

    def _stuck(self) -> List[Frame]:
        if self.driver.get("error") == STUCK:
            return []
        self.gpus = [{**gpu, "usable": False, "reason": STUCK, "health": "suspect"} for gpu in self.gpus]
        self.driver = {**self.driver, "error": STUCK}
        self._failures += 1
        return [self.inventory()]


def is_foreign(entries: List[Dict[str, Any]], threshold_mib: float) -> Optional[bool]:
    """Whether a process of no attempt uses more than the threshold; None when a compute process's memory is unknown."""
    strange = [entry for entry in entries if entry["attempt"] is None]
    sizes = [entry.get("memory_mib") for entry in strange]
    if any(size is not None and size > threshold_mib for size in sizes):
        return True
    unknown = any(entry.get("memory_mib") is None and entry.get("kind") != "graphics" for entry in strange)
    return None if unknown else False
