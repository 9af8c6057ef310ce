"""Where benchmarks run: temporary homes with real daemons and simulated GPUs, and the peer's servers.

Imports the end-to-end tests' harness, which knows how to end everything that a daemon started.
One thing to know: all of it lies below one temporary directory and is gone afterwards, also after an error.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.peer import Spooler
from bench.processes import DEADLINE_S, cpu_s, proportional_mib, resident_mib
from bench.wire import Wire
from tests.e2e.harness import ACTIVE, FINAL, Queue

SLEEPER = ("sleep", "3600")


class Place:
    """One run's temporary directory and its peer."""

    def __init__(self, directory: Path, tsp: str | None) -> None:
        self.directory = directory
        self.tsp = tsp
        self._number = 0

    def new_directory(self) -> Path:
        """A directory that nobody has used."""
        self._number += 1
        return self.directory / f"{self._number}"

    @contextmanager
    def queue(self, gpus: int = 8) -> Iterator[Queue]:
        """A running gpuq with so many simulated GPUs, ended and cleaned up afterwards."""
        queue = Queue(self.new_directory(), gpus=[f"A100:{gpus}"])
        try:
            queue.start()
            queue.node_ready()
            yield queue
            empty(queue)
        finally:
            queue.close()

    @contextmanager
    def spooler(self, slots: int = 8) -> Iterator[Spooler | None]:
        """A task-spooler server; None when it is not installed."""
        if self.tsp is None:
            yield None
            return
        with Spooler(self.tsp, self.new_directory(), slots) as spooler:
            yield spooler


def command() -> list[str]:
    """gpuq as a person calls it: the installed program beside this interpreter, or the module."""
    installed = Path(sys.executable).with_name("gpuq")
    return [str(installed)] if installed.exists() else [sys.executable, "-m", "gpuq"]


def submit_many(queue: Queue, words: Sequence[str], count: int, names: int = 1) -> list[str]:
    """Submit single jobs in batches; their ids. names: how many different names (and so queues) they have."""
    ids: list[str] = []
    with Wire(queue.api.path) as wire:
        while len(ids) < count:
            part = range(len(ids), min(count, len(ids) + 1000))
            submits = [queue.body(words, name=f"job{number % names}") for number in part]
            ids += wire.post("/v1/jobs/batch", json.dumps({"submits": submits}).encode())["ids"]
    return ids


def occupy(queue: Queue, count: int) -> list[str]:
    """Fill GPUs with jobs that sleep; returns when all of them run."""
    ids = submit_many(queue, SLEEPER, count, names=1)
    for id_ in ids:
        queue.reaches(id_, "RUNNING")
    return ids


def counts(queue: Queue) -> dict[str, int]:
    """Number of jobs by state."""
    found: dict[str, int] = queue.api.get("/v1/status")["counts"]
    return found


def wait_until_none(queue: Queue, states: frozenset[str], within_s: float = DEADLINE_S) -> None:
    """Return when no job is in one of the states; raises TimeoutError."""
    end_s = time.monotonic() + within_s
    while any(state in states for state in counts(queue)):
        if time.monotonic() > end_s:
            raise TimeoutError(f"after {within_s:g} s the jobs are {counts(queue)}")
        time.sleep(0.2)  # seldom: each look costs the daemon time, and the jobs' own records say when they ended


def empty(queue: Queue) -> None:
    """Cancel whatever has not ended, and wait for it."""
    living = [job["id"] for job in queue.jobs() if job["state"] not in FINAL]
    if living:
        queue.cancel(*living, grace_s=0.0)
        wait_until_none(queue, ACTIVE | {"PENDING"})


class Parts:
    """The processes of one gpuq that are not jobs: the daemon, its agent's, and any others."""

    def __init__(self, queue: Queue) -> None:
        self.daemon = queue.pid
        self.agent = sorted({*queue.serving("serve"), *queue.serving("forker"), *queue.serving("sampler")})
        self.planning = [pid for pid in _children(self.daemon) if pid not in self.agent]

    def cpu_s(self) -> tuple[float, float]:
        """CPU time so far of the daemon with its planning processes, and of the agent's processes."""
        return sum(map(cpu_s, [self.daemon, *self.planning])), sum(map(cpu_s, self.agent))

    def memory(self) -> str:
        """Memory beside the daemon's own, in words."""
        words = [f"agent {sum(map(proportional_mib, self.agent)):.1f} MiB in {len(self.agent)} processes (shares)"]
        if self.planning:
            words.append(f"planning {sum(map(resident_mib, self.planning)):.1f} MiB")
        else:
            words.append("planning in the daemon")
        return ", ".join(words)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(word) for word in path.read_text().split()]
    return found
