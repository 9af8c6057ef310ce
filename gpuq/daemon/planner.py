"""When to plan, and what becomes of a plan. Imports core and loop."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from gpuq.config import ImpactConfig, PlannerConfig
from gpuq.core import fit
from gpuq.core.events import AnyEvent
from gpuq.core.model import AttemptId, Job, Placement
from gpuq.core.requests import Place, Submit
from gpuq.daemon.loop import Loop


class DaemonPlanner:
    def __init__(self, loop: Loop, config: PlannerConfig, impact: ImpactConfig) -> None:
        self._loop = loop
        self._wake = asyncio.Event()

    def look_again(self, events: list[AnyEvent]) -> None:
        self._wake.set()

    def time_passed(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._dispatch()

    def _dispatch(self) -> None:
        state, now = self._loop.state, self._loop.clock.now()
        taken = set()
        for queue in list(state.waiting.values()):
            for id_ in list(queue):
                job = state.jobs[id_]
                for node in state.nodes.values():
                    found = fit.place_now(state, job, node, now)
                    if isinstance(found, fit.Obstacle) or taken & set(found):
                        continue
                    taken |= set(found)
                    p = Placement(job=id_, node=node.name, gpus=found)
                    self._loop.ask_later(Place(placement=p, attempt=AttemptId(str(uuid.uuid4()))))
                    break
                else:
                    break

    def estimates(self) -> Any:
        return None

    def waiting_reason(self, job: Job) -> tuple[str, str | None]:
        return "Resources", None

    def expected_end_at(self, job: Job) -> float | None:
        return None

    def explain(self, job: Job) -> dict[str, Any]:
        return {}

    def rehearse(self, request: Submit) -> dict[str, Any]:
        return {}
