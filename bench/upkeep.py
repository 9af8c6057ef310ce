"""What gpuq costs while it waits: memory and CPU, with an empty queue and with 10,000 jobs in it. Imports place."""

from __future__ import annotations

import time

from bench.figures import Limit, Row, Unit
from bench.place import Parts, Place, occupy, submit_many
from bench.processes import cpu_s, resident_mib
from tests.e2e.harness import Queue

WATCHED_S = 60.0
SETTLE_S = 3.0
QUEUED = 10_000
GPUS = 8


def idle_and_loaded(place: Place) -> list[Row]:
    """Memory and CPU of daemon and agent, first idle, then with 8 jobs running and 10,000 waiting in 20 queues."""
    with place.queue(gpus=GPUS) as queue, place.spooler(GPUS) as spooler:
        time.sleep(SETTLE_S)
        peer_mib = (resident_mib(spooler.server()),) if spooler else ()
        idle = _memory("daemon memory, idle", queue, Limit(100), peer_mib)
        peer_cpu_s = cpu_s(spooler.server()) if spooler else 0.0
        empty = _cpu("CPU in 60 s, empty queue", queue, 0.3)
        if spooler:
            used_s = cpu_s(spooler.server()) - peer_cpu_s
            empty[0] = empty[0]._replace(peer=(used_s,))
        occupy(queue, GPUS)
        submit_many(queue, ["true"], QUEUED, names=20)
        time.sleep(SETTLE_S)
        loaded = _memory("daemon memory, 10,000 queued", queue, Limit(200), ())
        full = _cpu("CPU in 60 s, 10,000 queued", queue, 0.6)
    return [idle, loaded, *empty, *full]


def _memory(what: str, queue: Queue, limit: Limit, peer: tuple[float, ...]) -> Row:
    parts = Parts(queue)
    return Row(what, Unit.MIB, (resident_mib(parts.daemon),), limit, peer, note=parts.memory())


def _cpu(what: str, queue: Queue, limit_s: float) -> list[Row]:
    """Both together hold the limit; then each apart."""
    parts = Parts(queue)
    before = parts.cpu_s()
    time.sleep(WATCHED_S)
    after = parts.cpu_s()
    daemon_s, agent_s = after[0] - before[0], after[1] - before[1]
    return [
        Row(f"{what}: daemon and agent", Unit.SECONDS, (daemon_s + agent_s,), Limit(limit_s),
            note=f"daemon {daemon_s:.3f} s, agent {agent_s:.3f} s"),
    ]  # fmt: skip
