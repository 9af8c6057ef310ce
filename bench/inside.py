"""Parts on their own: a planning pass, one commit, the start of an agent. Imports core, journal, links, builders."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable

from bench.figures import Limit, Row, Unit
from bench.place import Place
from gpuq.core import greedy
from gpuq.core.apply import apply
from gpuq.core.events import JobsSubmitted
from gpuq.core.model import JobId, Stamp
from gpuq.core.state import ClusterState
from gpuq.core.survey import snapshot
from gpuq.hardware.catalogue import simulated
from gpuq.journal.store import Journal
from gpuq.links.local import LocalLink
from tests.builders import cluster, node, spec, stamp, submit, user
from tests.builders import place as put

ROUNDS = 30
WAITING = 10_000
TYPES = ("H100-80G", "A100-40G", "V100-16G", "RTX3090-24G")  # 16 nodes of 4 GPUs


def planning_pass(place: Place) -> list[Row]:
    """Greedy over 200 waiting jobs of 200 shapes, 64 GPUs of 4 types, half of them busy."""
    state = _busy_cluster()
    now = stamp(3600.0)
    full = _timed(lambda: greedy.plan(snapshot(state, now)))
    starts = _timed(lambda: greedy.dispatch(state, now))
    return [
        Row("planning pass, greedy, with estimates: 200 waiting, 64 GPUs of 4 types", Unit.SECONDS, full, Limit(0.010)),
        Row("the same, only what starts now", Unit.SECONDS, starts, Limit(0.010)),
        *(_dispatch_of_names(names) for names in (1, 100, 10_000)),
    ]


def _dispatch_of_names(names: int) -> Row:
    """What starts now when one of 8 GPUs is free and 10,000 jobs wait: jobs of one name share a queue."""
    state = cluster(node("mill", "A100-40G:8"))
    for _ in range(7):
        put(state, submit(state), "mill")
    for number in range(WAITING):
        id_ = JobId(str(state.next_id))
        event = JobsSubmitted(id=id_, spec=spec(name=f"job{number % names}"), owner=user(), key="", tasks=(), held=None)
        apply(state, event, stamp(1.0))
    values = _timed(lambda: greedy.dispatch(state, stamp(60.0)), 10)
    named = "name" if names == 1 else "names"
    return Row(f"what starts now, {WAITING:,} waiting of {names:,} {named}, 1 of 8 GPUs free", Unit.SECONDS, values)


def _busy_cluster() -> ClusterState:
    state = cluster(*(node(f"n{number}", f"{TYPES[number // 4]}:4") for number in range(16)))
    for number in range(0, 16, 2):
        for _ in range(4):
            put(state, submit(state, name=f"running{number}"), f"n{number}", at=float(60 * number))
    for number in range(200):
        submit(
            state, owner=("anna", "tom", "bob", "eve")[number % 4], at=float(number), name=f"job{number}",
            gpus=(1, 1, 1, 2, 4)[number % 5], gpu_type=(None, *TYPES)[number % 5],
            time_limit_s=600.0 * (1 + number % 12),
        )  # fmt: skip
    return state


def _timed(once: Callable[[], object], rounds: int = ROUNDS) -> tuple[float, ...]:
    once()
    found = []
    for _ in range(rounds):
        begin_s = time.perf_counter()
        once()
        found.append(time.perf_counter() - begin_s)
    return tuple(found)


def one_commit(place: Place) -> list[Row]:
    """One event, durable."""
    directory = place.new_directory()
    journal = Journal.open(directory)
    event = JobsSubmitted(id=JobId("1"), spec=spec(), owner=user(), key="", tasks=(), held=None)
    try:
        values = _timed(lambda: journal.append([(Stamp(wall_s=time.time(), steady_s=1.0), event)]), 200)
    finally:
        journal.close()
        shutil.rmtree(directory)
    return [Row("one commit, durable", Unit.SECONDS, values)]


def agent_start(place: Place) -> list[Row]:
    """From starting an agent to its `ready`, with 8 simulated GPUs."""
    values = tuple(asyncio.run(_agent_ready_s(str(place.new_directory()))) for _ in range(10))
    return [Row("agent start: from exec to ready", Unit.SECONDS, values)]


async def _agent_ready_s(spool: str) -> float:
    begin_s = time.perf_counter()
    link = await LocalLink.open(lambda line: None)
    hello = {
        "type": "hello", "protocol": 1, "node": "local", "spool": spool, "simulate": simulated("A100", 8),
        "sample_every_s": 1.0, "heartbeat_every_s": 5.0, "foreign_memory_mib": 512,
    }  # fmt: skip
    await link.send(hello)
    first = await anext(link.frames())
    ready_s = time.perf_counter() - begin_s
    await link.close()
    if first["type"] != "ready":
        raise RuntimeError(f"the agent answered {first}")
    return ready_s
