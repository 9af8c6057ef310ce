"""A seeded storm: real jobs on eight simulated GPUs while all that gpuq is made of is killed and stopped at random.

Faults: `kill -9` of the daemon, the agent, a shim, the forker, the sampler; SIGSTOP and SIGCONT of the daemon, the
agent, a shim. Clients submit, cancel and requeue meanwhile, and jobs stop others that allow it, for the smallest gain.
At the end every promise is checked against the jobs' own evidence.

GPUQ_STORM_S sets the length, GPUQ_STORM_SEED the seed; both are printed. One thing to know: a seed repeats the choices,
not the moments at which processes happen to be, so a failure may need a few runs with the same seed to come back.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.chaos.laboratory import Laboratory, Promise
from tests.e2e.harness import FINAL, ApiError, is_alive

pytestmark = pytest.mark.chaos

LENGTH_S = float(os.environ.get("GPUQ_STORM_S", "45"))
SEED = int(os.environ.get("GPUQ_STORM_SEED", "0")) or random.SystemRandom().randrange(1, 1_000_000)
PAUSES_S = (0.05, 0.8)  # between two faults
STOPPED_S = {"daemon": 2.0, "agent": 1.5, "shim": 1.0}
STARTING_DAEMON = 0.2  # how often a daemon that does not answer yet is struck
WAITING_JOBS = 12  # a client submits no more while so many are unfinished
CLIENTS = 2
LEAST_FAULTS = round(LENGTH_S * 60 / 45)  # on a slow machine the storm lasts until so many have happened
LONGEST_S = 4 * LENGTH_S
FAULTS = {
    "kill daemon": 4, "kill agent": 4, "kill shim": 3, "kill forker": 2, "kill sampler": 1,
    "stop daemon": 1, "stop agent": 1, "stop shim": 2,
}  # fmt: skip


@dataclass
class Storm:
    """Faults against one laboratory."""

    laboratory: Laboratory
    choose: random.Random
    done: Counter[str] = field(default_factory=Counter)
    resume_at_s: dict[int, float] = field(default_factory=dict)

    def rage(self) -> None:
        """Faults at random moments; what was stopped goes on again after its time."""
        began = time.monotonic()
        while (now := time.monotonic()) < began + LENGTH_S or (
            sum(self.done.values()) < LEAST_FAULTS and now < began + LONGEST_S
        ):
            time.sleep(self.choose.uniform(*PAUSES_S))
            self.resume(time.monotonic())
            self.strike(self.choose.choices(list(FAULTS), list(FAULTS.values()))[0])
        self.resume(float("inf"))

    def strike(self, fault: str) -> None:
        """One fault, if there is somebody to meet it."""
        verb, whom = fault.split()
        pids = self._pids(whom)
        if not pids:
            return
        pid = self.choose.choice(sorted(pids))
        _send(pid, signal.SIGKILL if verb == "kill" else signal.SIGSTOP)
        if fault == "kill shim":
            self._mark_jobs_of(pid)
        self.done[fault] += 1
        if verb == "stop":
            self.resume_at_s[pid] = time.monotonic() + STOPPED_S[whom]

    def resume(self, now_s: float) -> None:
        """Let go on what was stopped long enough."""
        for pid in [pid for pid, at_s in self.resume_at_s.items() if at_s <= now_s]:
            del self.resume_at_s[pid]
            _send(pid, signal.SIGCONT)  # also undoes a stop that has not reached the process yet

    def _pids(self, whom: str) -> list[int]:
        """Living processes of a kind."""
        queue = self.laboratory.queue
        if whom == "daemon":
            # Mostly one that serves: one that is killed again and again while it starts proves little.
            worthy = queue.answers() or self.choose.random() < STARTING_DAEMON
            return [queue.pid] if queue.is_running() and worthy else []
        if whom == "shim":
            return [pid for pid, _ in self._claims() if is_alive(pid)]
        if whom == "forker":
            return [pid for pid in queue.serving("forker") if _is_forker(pid)]
        return queue.serving({"agent": "serve"}.get(whom, whom))

    def _claims(self) -> list[tuple[int, str]]:
        """Pids of shims and the tags of the jobs they guard, of attempts that have not ended."""
        found = []
        for directory in (self.laboratory.queue.home / "spool").glob("*-*-*-*-*"):
            pid = self.laboratory.queue.claim(directory.name).get("shim_pid")
            try:
                tag = json.loads((directory / "spec.json").read_text())["name"]
            except (OSError, ValueError):
                continue  # released in the same instant
            if pid and not (directory / "exit.json").exists():
                found.append((int(pid), str(tag)))
        return found

    def _mark_jobs_of(self, shim: int) -> None:
        """Note whose guard was killed: what it guarded by then, which may not be what it guarded when it was chosen."""
        tags = {tag for pid, tag in self._claims() if pid == shim}
        for promise in self.laboratory.promises:
            promise.disturbed |= promise.tag in tags


def _is_forker(pid: int) -> bool:
    """Whether it is the forker itself: its shims carry the same command line, but their parent is a forker."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            parent = int(file.read().rpartition(")")[2].split()[1])
        with open(f"/proc/{parent}/cmdline", "rb") as file:
            return b"serve" in file.read().split(b"\0")
    except OSError:
        return False


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it ended in the same instant


@dataclass
class Client:
    """One person at work until told to stop."""

    laboratory: Laboratory
    choose: random.Random
    stopping: threading.Event
    failure: BaseException | None = None

    def work(self) -> None:
        """Submit, sometimes cancel or requeue; what goes wrong is kept for the test to raise."""
        mine: list[Promise] = []
        try:
            while not self.stopping.wait(self.choose.uniform(0.02, 0.25)):
                mine = [promise for promise in mine if self.laboratory.state(promise) not in FINAL]
                if len(mine) < WAITING_JOBS:
                    mine.append(self.submit())
                if self.choose.random() < 0.15:
                    self.laboratory.cancel(self.choose.choice(mine))
                elif self.choose.random() < 0.1:
                    self.requeue(self.choose.choice(mine))
        except BaseException as failure:
            self.failure = failure

    def submit(self) -> Promise:
        """A job of some kind."""
        mode = self.choose.choices(["plain", "stubborn", "family"], [6, 1, 1])[0]
        code = self.choose.choice([0, 0, 0, 1, 7])
        kind = self.choose.choices(["fixed", "requeue", "preemptible"], [5, 2, 3])[0]
        again: dict[str, object] = {} if kind == "fixed" else {kind: True}
        promise = self.laboratory.submit(
            run_s=self.choose.uniform(0.0, 0.8), code=code, mode=mode, gpus=self.choose.choice([1, 1, 1, 2]),
            priority=self.choose.choice([0, 0, 0, 300]), **again,
        )  # fmt: skip
        promise.disturbed |= kind == "preemptible"
        return promise

    def requeue(self, promise: Promise) -> None:
        """A job that waits, or is being cancelled, cannot be requeued: that refusal is right."""
        try:
            self.laboratory.requeue(promise)
        except ApiError as refusal:
            if refusal.status >= 500:
                raise


def test_storm(laboratory: Callable[..., Laboratory]) -> None:
    """Whatever dies or stops: nothing acknowledged is lost, nothing runs twice, no GPU is shared, no end is made up."""
    print(f"seed {SEED}, {LENGTH_S:g} s")
    lab = laboratory(gpus="A100:8", constants={"gpuq.core.evictions.WORTH": 0.0}).start()
    storm = Storm(lab, random.Random(SEED))
    stopping = threading.Event()
    clients = [Client(lab, random.Random(SEED + 1 + number), stopping) for number in range(CLIENTS)]
    threads = [threading.Thread(target=client.work, daemon=True) for client in clients]
    for thread in threads:
        thread.start()
    storm.rage()
    stopping.set()
    for thread in threads:
        thread.join(lab.answer_within_s)
    violations = lab.settle() + lab.unreleased() + lab.violations()
    starts = Counter(line.attempt for line in lab.evidence() if line.what == "start")
    lost = sum("acknowledged and is gone" in text for text in violations)
    twice = sum(count > 1 for count in starts.values())
    faults = sum(storm.done.values())
    stops = sum(lab.job(promise.id)["evictions"] for promise in lab.promises if promise.id is not None)
    counts = f"{faults} faults, {len(lab.promises)} jobs, {stops} stops for others, {lost} lost, {twice} run twice"
    print(f"storm: seed {SEED}, {counts}; {dict(storm.done)}")
    assert [client.failure for client in clients if client.failure] == []
    assert violations == [], "\n".join(violations)
    assert faults >= LEAST_FAULTS, "the storm was too weak"
    assert stops > 0, "no job made room for another"
