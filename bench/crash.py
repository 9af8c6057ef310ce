"""What is left after `kill -9` of the daemon, and how soon it is back. Imports place."""

from __future__ import annotations

import time

from bench.figures import Limit, Row, Unit
from bench.place import Place, counts, empty, occupy, submit_many
from bench.processes import DEADLINE_S
from tests.e2e.harness import ACTIVE, Queue, eventually

TRIES = 5
RUNNING = 8
QUEUED = 100
WATCHED_S = 2.0
RESTARTED_JOBS = 10_000


def killed(place: Place) -> list[Row]:
    """kill -9 with 8 jobs running and 100 waiting: how many are known afterwards, how many started too many."""
    known: list[float] = []
    extra: list[float] = []
    with place.queue(gpus=RUNNING) as queue:
        for _ in range(TRIES):
            running = occupy(queue, RUNNING)
            waiting = submit_many(queue, ["true"], QUEUED)
            queue.kill()
            queue.start()
            queue.node_ready()
            extra.append(_started_beside(queue, running))
            states = {job["id"]: job["state"] for job in queue.jobs()}
            known.append(sum(states.get(id_) == "RUNNING" for id_ in running)
                         + sum(states.get(id_) == "PENDING" for id_ in waiting))  # fmt: skip
            empty(queue)
    peer_known, peer_extra = _peer_killed(place)
    return [
        Row("kill -9, 8 running, 100 queued: known after", Unit.COUNT, tuple(known), Limit(RUNNING + QUEUED),
            peer_known),
        Row("kill -9: started beside survivors", Unit.COUNT, tuple(extra), Limit(0), peer_extra),
    ]  # fmt: skip


def _started_beside(queue: Queue, running: list[str]) -> int:
    """The most jobs that held GPUs beside the survivors, looked at for a while."""
    most = 0
    end_s = time.monotonic() + WATCHED_S
    while time.monotonic() < end_s:
        active = [job["id"] for job in queue.jobs() if job["state"] in ACTIVE]
        most = max(most, len(set(active) - set(running)))
        time.sleep(0.1)
    return most


def _peer_killed(place: Place) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The same of the peer, once: its server is killed, and the next command starts another."""
    with place.spooler(RUNNING) as spooler:
        if spooler is None:
            return (), ()
        gate = spooler.directory / "gate"
        spooler.block(RUNNING, gate)
        for _ in range(QUEUED):
            spooler.say("-n", "true")
        _kill(spooler.server())
        states = spooler.states()
        gate.touch()
        return (float(sum(states.values())),), (float(states.get("running", 0)),)


def _kill(pid: int) -> None:
    import os
    import signal

    os.kill(pid, signal.SIGKILL)
    end_s = time.monotonic() + DEADLINE_S
    while os.path.exists(f"/proc/{pid}/fd") and time.monotonic() < end_s:
        time.sleep(0.01)


def restart(place: Place) -> list[Row]:
    """From starting the daemon to its first answer, with 10,000 jobs in the journal."""
    with place.queue(gpus=2) as queue:
        occupy(queue, 2)
        submit_many(queue, ["true"], RESTARTED_JOBS, names=20)
        replayed = [_ready_after(queue, clean=False) for _ in range(TRIES)]
        snapshot = [_ready_after(queue, clean=True) for _ in range(TRIES)]
        found = counts(queue)
        if sum(found.values()) != RESTARTED_JOBS + 2:
            raise RuntimeError(f"after the restarts the jobs are {found}")
    return [
        Row("restart after kill -9, 10,000 jobs replayed from the journal: ready", Unit.SECONDS, tuple(replayed),
            Limit(2.0)),
        Row("restart after a stop, 10,000 jobs from a snapshot: ready", Unit.SECONDS, tuple(snapshot), Limit(2.0)),
    ]  # fmt: skip


def _ready_after(queue: Queue, clean: bool) -> float:
    if clean:
        queue.stop()
    else:
        queue.kill()
    begin_s = time.perf_counter()
    queue.start()
    ready_s = time.perf_counter() - begin_s
    eventually(lambda: queue.node().get("reach") == "up", "the node is back")
    return ready_s
