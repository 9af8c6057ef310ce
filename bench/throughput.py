"""How much goes through: durable submits, and the drain of a full queue. Imports place."""

from __future__ import annotations

import json
import time

from bench.figures import PEER, Limit, Row, Unit
from bench.peer import MOST_JOBS, Spooler
from bench.place import Place, counts, submit_many, wait_until_none
from bench.wire import Wire
from tests.e2e.harness import ACTIVE, Queue

SUBMITS = 2000
DRAINED = 1000
SLOTS = 8
ROUNDS = 3


def durable_submits(place: Place) -> list[Row]:
    """Submits one after the other over one connection, each answered when it is on the disk; then one large array."""
    with place.queue(gpus=2) as queue:
        queue.api.post("/v1/nodes/local/drain", {"reason": "benchmark"})
        body = queue.body(["true"])
        singles = [_one_by_one(queue, body) for _ in range(ROUNDS)]
        batches = [_in_batches(queue, 2000) for _ in range(ROUNDS)]
        arrays = [_array(queue, 10_000) for _ in range(ROUNDS)]
    return [
        Row("durable submits over one connection", Unit.PER_SECOND, tuple(singles), Limit(1000, is_most=False)),
        Row("durable submits in batches of 1,000", Unit.PER_SECOND, tuple(batches)),
        Row("10,000 jobs as one array", Unit.SECONDS, tuple(arrays), Limit(0.5)),
    ]


def _one_by_one(queue: Queue, body: dict[str, object]) -> float:
    requests = [json.dumps({**body, "key": f"{time.time_ns()}-{number}"}).encode() for number in range(SUBMITS)]
    with Wire(queue.api.path) as wire:
        begin_s = time.perf_counter()
        for request in requests:
            wire.post("/v1/jobs", request)
        return SUBMITS / (time.perf_counter() - begin_s)


def _in_batches(queue: Queue, count: int) -> float:
    begin_s = time.perf_counter()
    submit_many(queue, ["true"], count)
    return count / (time.perf_counter() - begin_s)


def _array(queue: Queue, tasks: int) -> float:
    request = json.dumps(queue.body(["true"], tasks=range(tasks))).encode()
    with Wire(queue.api.path) as wire:
        begin_s = time.perf_counter()
        wire.post("/v1/jobs", request)
        return time.perf_counter() - begin_s


def drain(place: Place) -> list[Row]:
    """1,000 waiting jobs that do nothing, through 8 GPUs, from the moment the node may start them."""
    with place.queue(gpus=SLOTS) as queue:
        rates = [_drained(queue) for _ in range(ROUNDS)]
    peer = []
    for _ in range(ROUNDS):
        with place.spooler(SLOTS) as spooler:
            if spooler:
                peer.append(_drained_by_peer(spooler))
    return [
        Row(
            "drain of 1,000 × true through 8 slots", Unit.PER_SECOND, tuple(rates), Limit(150, False), tuple(peer),
            note=f"{PEER}: of {MOST_JOBS}, about the most it queues" if peer else "",
        )
    ]  # fmt: skip


def _drained(queue: Queue) -> float:
    done = counts(queue).get("COMPLETED", 0)
    queue.api.post("/v1/nodes/local/drain", {"reason": "benchmark"})
    ids = submit_many(queue, ["true"], DRAINED)
    begin_s = time.time()
    queue.api.post("/v1/nodes/local/resume")
    wait_until_none(queue, ACTIVE | {"PENDING"})
    end_s = float(queue.job(ids[-1])["ended_at"])
    found = [float(job["ended_at"]) for job in queue.jobs() if job["state"] == "COMPLETED"]
    if len(found) < min(done + DRAINED, 2000):
        raise RuntimeError(f"{len(found) - done} of {DRAINED} jobs completed: {counts(queue)}")
    return DRAINED / (max(end_s, *found) - begin_s)


def _drained_by_peer(spooler: Spooler) -> float:
    """The slots are held by jobs that wait for a file, until all others are queued."""
    gate = spooler.directory / "gate"
    spooler.block(SLOTS, gate)
    for _ in range(MOST_JOBS):
        spooler.say("-n", "true")
    begin_s = time.perf_counter()
    gate.touch()
    spooler.wait_until("finished", MOST_JOBS + SLOTS)
    return MOST_JOBS / (time.perf_counter() - begin_s)
