"""When to plan, and what becomes of a plan. Imports core, config and loop.

Two plans are made. The dispatch plan says what starts now; it is made after every commit that could let something
start, costs next to nothing while no GPU is free, and its placements are checked again when the loop takes them. The
full plan adds when and where the others are expected to start; it is made when somebody asks, and kept until the state
changes.

One thing to know: a planner that fails must not stop the daemon. The error is logged, nothing starts in that pass, and
the next change tries again.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from math import inf
from typing import Any

from msgspec.structs import replace

from gpuq.config import AccountConfig, ImpactConfig, PlannerConfig
from gpuq.core import explain, greedy, settings
from gpuq.core.caps import AccountCap, Caps
from gpuq.core.compare import Comparison, compare
from gpuq.core.contract import protected_s
from gpuq.core.decide import step
from gpuq.core.estimate import remaining
from gpuq.core.events import (
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    GpusChanged,
    JobDropped,
    JobReleased,
    JobRequeued,
    JobsSubmitted,
    JobUpdated,
    NodeChanged,
    NodeResumed,
    ReachChanged,
    RoomGone,
    SettingChanged,
    StrayGone,
)
from gpuq.core.evictions import find_eviction, room_starts
from gpuq.core.fit import best_speed
from gpuq.core.impact import Account, Outcome, Weights, impact_factor, outcome
from gpuq.core.model import AttemptId, Job, Placement, Resources, Room, Setting
from gpuq.core.plan import Plan, Start
from gpuq.core.problem import Problem
from gpuq.core.requests import Evict, Place, Submit
from gpuq.core.snapshot import from_bytes, to_bytes
from gpuq.core.state import ClusterState
from gpuq.core.states import JobState
from gpuq.core.survey import snapshot
from gpuq.daemon import explanation
from gpuq.daemon.loop import Loop
from gpuq.daemon.solving import Solving
from gpuq.errors import GpuqError

log = logging.getLogger("gpuq.planner")

Json = dict[str, Any]

_MAY_LET_START = (
    AttemptEnded, AttemptStarted, GpusChanged, JobDropped, JobReleased, JobRequeued, JobsSubmitted, JobUpdated,
    NodeChanged, NodeResumed, ReachChanged, RoomGone, SettingChanged, StrayGone,
)  # fmt: skip


def _is_empty(state: ClusterState, room: Room) -> bool:
    """Whether nothing holds the GPUs of a room any more."""
    return not any(uuid in state.owners for uuid in room.placement.gpus)


class DaemonPlanner:
    """Starts what a plan lets start, and answers when, where and why."""

    def __init__(
        self, loop: Loop, config: PlannerConfig, impact: ImpactConfig, accounts: tuple[AccountConfig, ...] = ()
    ) -> None:
        self._loop = loop
        self.config = config
        self.impact = impact
        self._wake = asyncio.Event()
        self._problem: Problem | None = None  # that the full plan answers
        self._plan: Plan | None = None
        self._is_stale = True
        self._solving = Solving()
        self._look_for_room_s = 0.0  # steady clock: when to see again whether a job should make room
        self._may_look_s = 0.0  # and not before this, however much changes: it takes several plans
        loop.state.caps = Caps(
            tuple(AccountCap(each.name, each.users, each.max_gpus) for each in accounts), config.max_gpus_per_user
        )
        self._base = Weights(
            default_run_s=config.default_runtime_s,
            age=impact.age,
            balance=impact.balance,
            deadline=impact.deadline,
            energy=impact.energy,
            restart=impact.restart,
            fragmentation=impact.fragmentation,
            interference=impact.interference,
            accounts=tuple(Account(name=each.name, users=each.users, share=each.share) for each in accounts),
        )

    @property
    def weights(self) -> Weights:
        """The parameters in force: those of gpuq.toml, with what was set since."""
        return settings.weights_with(self._base, self._loop.state.settings)

    def _setting_s(self, key: str, configured_s: float) -> float:
        known = self._loop.state.settings.get(key)
        return configured_s if known is None else known.value

    # --- starting jobs -----------------------------------------------------------------------------------

    def look_again(self, events: list[AnyEvent]) -> None:
        """A commit went through: plan again if it could let something start."""
        self._is_stale = True
        if any(isinstance(event, _MAY_LET_START) for event in events):
            self._look_for_room_s = 0.0
            self._wake.set()

    def time_passed(self) -> None:
        """Begin times and back-offs may be over, and a full plan grows old."""
        if self._loop.state.waiting or self._loop.state.rooms:
            self._wake.set()
        if self._plan is not None and self._age_s(self._plan) > self._setting_s("planner.every", self.config.every_s):
            self._is_stale = True

    async def run(self) -> None:
        """Dispatch after every change until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._dispatch()
            except GpuqError as error:
                log.error("nothing was started in this pass: %s", error.message)
            except Exception:
                log.exception("planning failed; nothing was started in this pass")

    async def _dispatch(self) -> None:
        state = self._loop.state
        if not (state.waiting or state.rooms) or self._loop.degraded:
            return
        plan = await self._dispatch_plan()
        ready = [room.placement for room in state.rooms.values() if _is_empty(state, room)]
        await self._place([*ready, *plan.placements()])
        await self._make_room()

    async def _place(self, placements: list[Placement]) -> None:
        asked = [
            self._loop.ask_later(Place(placement=placement, attempt=AttemptId(str(uuid.uuid4()))))
            for placement in placements
        ]
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, GpuqError):
                log.error("a job was not started in this pass: %s", answer.message)
            elif isinstance(answer, BaseException):
                log.error("a job was not started in this pass", exc_info=answer)
            else:
                for note in answer.notes:
                    log.info("%s", note)

    async def _make_room(self) -> None:
        """Stop running jobs for a waiting one, where that is allowed and worth it; looked for when anything changed."""
        now = self._loop.clock.now()
        if now.steady_s < max(self._look_for_room_s, self._may_look_s):
            return
        protected = [protected_s(job, now) for job in self._loop.state.active() if job.spec.preemptible]
        every_s = self._setting_s("planner.every", self.config.every_s)
        self._look_for_room_s = now.steady_s + min([every_s, *(left_s for left_s in protected if left_s > 0.0)])
        if min(protected, default=inf) > 0.0:
            return
        self._may_look_s = now.steady_s + self._setting_s("planner.min_gap", self.config.min_gap_s)
        problem = snapshot(self._loop.state, now, self.weights)
        found = find_eviction(self._loop.state, problem, greedy.plan(problem))
        if found is None:
            return
        asked = Evict(placement=found.placement, attempts=found.attempts, gain_s=found.gain_s)
        outcome = await self._loop.ask(asked)
        for note in outcome.notes:
            log.info("%s (%.0f weighted seconds of waiting saved)", note, found.gain_s)
        if outcome.events:  # there may be more to gain; what was refused is not asked again at once
            self._look_for_room_s = self._may_look_s = 0.0
            self._wake.set()

    async def _dispatch_plan(self) -> Plan:
        """What starts now: at once where nobody competes for it, else after the solver had a look."""
        plan = greedy.dispatch(self._loop.state, self._loop.clock.now(), self.weights)
        if not plan.starts or not plan.waiting:
            return plan
        problem = snapshot(self._loop.state, self._loop.clock.now(), self.weights)
        full = greedy.plan(problem)
        most_s = self._setting_s("planner.budget", self.config.budget_s)
        budget_s = self._solving.budget_s(problem, full, most_s)
        return await self._solving.improve(problem, full, budget_s) if budget_s else plan

    # --- the full plan -----------------------------------------------------------------------------------

    def _age_s(self, plan: Plan) -> float:
        return self._loop.clock.now().steady_s - plan.stamp.steady_s

    def estimates(self) -> Plan:
        """The full plan as of now, or a recent one when the state changes faster than `planner.min_gap`."""
        plan = self._plan
        gap_s = self._setting_s("planner.min_gap", self.config.min_gap_s)
        if plan is None or (self._is_stale and self._age_s(plan) >= gap_s):
            plan = self._make_full_plan()[1]
        return plan

    def _make_full_plan(self) -> tuple[Problem, Plan]:
        problem = self._problem = snapshot(self._loop.state, self._loop.clock.now(), self.weights)
        found = greedy.plan(problem)
        rooms = room_starts(self._loop.state, problem.stamp, self.weights)
        plan = self._plan = replace(found, estimates=found.estimates | rooms, solve=self._solving.last)
        self._is_stale = False
        return problem, plan

    def expected_end_at(self, job: Job) -> float | None:
        """When a running job is predicted to end, on the wall clock; null on a guess."""
        if job.attempt is None or not job.state.holds_gpus:
            return None
        now = self._loop.clock.now()
        left = remaining(self._loop.state, job, now, self.weights)
        return now.wall_s + left.left_s if left.informed else None

    def impact_factor_of_period(self, since_wall_s: float) -> float | None:
        """The Impact Factor of jobs that run, or ended since a moment; null when none ran."""
        state, now = self._loop.state, self._loop.clock.now()
        found: list[Outcome] = []
        best: dict[Resources, float] = {}  # speed of the fastest GPU, by request
        for job in state.jobs.values():
            if job.state is JobState.PENDING or (job.ended_at is not None and job.ended_at < since_wall_s):
                continue
            asked = job.spec.resources
            if asked not in best:
                best[asked] = best_speed(state, asked)
            known = outcome(state, job, now, best[asked], self.weights)
            if known is not None:
                found.append(known)
        return impact_factor(found)

    # --- answers -----------------------------------------------------------------------------------------

    def explain(self, job: Job) -> Json:
        """The `why` object of docs/api.md, from the plan in force; made anew when anything changed since."""
        problem, plan = self._problem, self._plan
        if problem is None or plan is None or self._is_stale:
            problem, plan = self._make_full_plan()
        return explanation.why(self._loop.state, job, problem, plan, self._loop.clock.now())

    def compare_with(self, key: str, value: float | None) -> Comparison:
        """What the plan of this moment becomes when a key gets another value (None: what gpuq.toml says)."""
        state, now = self._loop.state, self._loop.clock.now()
        other = {each: setting for each, setting in state.settings.items() if each != key}
        if value is not None:
            other[key] = Setting(value=value, by="", at=now.wall_s)
        problem = snapshot(state, now, self.weights)
        changed = snapshot(state, now, settings.weights_with(self._base, other))
        return compare(problem, greedy.plan(problem), changed, greedy.plan(changed))

    def rehearse(self, request: Submit) -> Json:
        """Where and when a job would start: the submit is carried out on a copy of the state."""
        now = self._loop.clock.now()
        copy = from_bytes(to_bytes(self._loop.state))
        copy.caps = self._loop.state.caps
        result = step(copy, replace(request, key=""), now)  # a key that is known would make no job to look at
        id_ = next(event.id for event in result.events if isinstance(event, JobsSubmitted))
        job = copy.jobs[copy.members(id_)[0]]
        plan = greedy.plan(snapshot(copy, now, self.weights))
        start = plan.estimates.get(job.id)
        reason, message = explain.waiting_reason(copy, job, plan, now)
        starts_now = start is not None and start.start_s <= now.steady_s
        return {
            "start": {
                "now": starts_now,
                "at": now.wall_s + start.start_s - now.steady_s if start else None,
                "end_at": now.wall_s + start.end_s - now.steady_s if start else None,
                "node": start.node if start else None,
                "gpus": self._named(start),
                "reason": None if starts_now else reason.value,
                "message": None if starts_now else message,
            },
            "notes": result.notes,
        }

    def _named(self, start: Start | None) -> list[Json]:
        if start is None:
            return []
        node = self._loop.state.nodes.get(start.node)
        held = [gpu for gpu in (node.gpus if node else ()) if gpu.uuid in set(start.gpus)]
        return [{"uuid": gpu.uuid, "index": gpu.index, "type": gpu.type} for gpu in held]
