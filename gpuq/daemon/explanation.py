"""The `why` object of docs/api.md, put together from what the core says. Imports core.

One thing to know: the command line, `top` and scripts read this one object, so what a person is told and what the
planner did come from the same plan.
"""

from __future__ import annotations

from math import inf
from typing import Any

import msgspec

from gpuq.core import explain
from gpuq.core.accounts import standings
from gpuq.core.costs import Stranding, costs_of
from gpuq.core.estimate import predict, remaining
from gpuq.core.impact import COSTS, MEASURED_COSTS, Weights, deadline_rise, deadline_slack_s, weight
from gpuq.core.model import Job, Stamp
from gpuq.core.plan import Plan, Start
from gpuq.core.problem import Problem, Queue
from gpuq.core.profile import CapProfile
from gpuq.core.state import ClusterState
from gpuq.core.states import JobState

Json = dict[str, Any]

AHEAD_SHOWN = 10


def why(state: ClusterState, job: Job, problem: Problem, plan: Plan, now: Stamp) -> Json:
    """Everything that is known about why a job waits (or about its prediction, when it runs or has ended)."""
    weights = problem.weights
    prediction = predict(state, job, weights)
    found: Json = {
        "id": job.id,
        "name": job.spec.name,
        "user": job.owner.name,
        "state": job.state.value,
        "reason": job.reason.value,
        "message": job.message,
        "prediction": {
            "run_s": prediction.run_s,
            "low_s": prediction.low_s,
            "high_s": prediction.high_s,
            "lowest_s": prediction.lowest_s,
            "highest_s": prediction.highest_s,
            "basis": prediction.basis,
            "informed": prediction.informed,
            "speed_factors": state.memory.factors(job.owner.name, job.spec.name),
        },
        "expected_use": _expected_use(state, job),
        "progress": job.attempt.progress[-1][1] if job.attempt and job.attempt.progress else None,
        "prices": plan.prices,
        "planned_at": plan.stamp.wall_s,
        "planner": plan.planner,
        "solve": _solve(plan),
        "impact": next((each.impact for each in problem.running if each.job == job.id), None),
        "weight": None,
        "costs": [],
        "planned": None,
        "options": [],
        "nodes": [],
        "ahead": [],
        "blockers": [],
        "hint": None,
        "stopped": _stopped(job),
    }
    if job.state is JobState.PENDING:
        found |= _of_waiting(state, job, problem, plan, now)
    elif job.state.holds_gpus:
        found["message"] = _of_active(job)
    return found


def _of_active(job: Job) -> str:
    """Where it runs, or why it is being ended."""
    attempt = job.attempt
    where = attempt.node if attempt else "a node"
    if attempt is not None and attempt.stop is not None and attempt.stop.room_for is not None:
        return f"it is being stopped to make room for job {attempt.stop.room_for} on {where}; it waits again then"
    return f"it is {job.state.value.lower()} on {where}"


def _stopped(job: Job) -> Json | None:
    """How often the job was stopped to make room for others, and what it keeps of that."""
    if not job.evictions:
        return None
    return {"times": job.evictions, "kept_s": job.kept_s, "message": job.message}


def _expected_use(state: ClusterState, job: Job) -> Json | None:
    """What completed runs of this owner and name used of each GPU, as expected of the next; null without any."""
    use = state.memory.uses.get((job.owner.name, job.spec.name))
    if use is None:
        return None
    gpus = [gpu for node in state.nodes.values() for gpu in node.gpus]
    limits_w = {gpu.type: gpu.power_limit_w for gpu in reversed(gpus)}
    draws = []
    for gpu_type in sorted({*limits_w, *use.power_w}):
        power_w = use.expected_power_w(gpu_type, limits_w.get(gpu_type))
        if power_w is not None:
            runs = use.power_w[gpu_type].runs if gpu_type in use.power_w else 0
            draws.append({"type": gpu_type, "power_w": power_w, "runs": runs})
    return {
        "utilization": use.expected_utilization(),
        "utilization_runs": use.utilization.runs,
        "memory_mib": use.expected_memory_mib(),
        "memory_runs": len(use.memory_mib),
        "draws": draws,
    }


def _of_waiting(state: ClusterState, job: Job, problem: Problem, plan: Plan, now: Stamp) -> Json:
    reason, message = explain.waiting_reason(state, job, plan, now)
    start = plan.estimates.get(job.id)
    queue, position = _queue_of(problem, job)
    options = _options(state, queue, position, problem, plan)
    return {
        "reason": reason.value,
        "message": message,
        "impact": start.impact if start else (max((each["impact"] for each in options), default=None)),
        "weight": _weight(state, queue, position, problem) if queue else None,
        "costs": _costs(problem.weights),
        "planned": _planned(state, start, now) if start else None,
        "options": options,
        "nodes": [msgspec.to_builtins(each) for each in _plain(explain.why_nodes(state, job, now))],
        "ahead": [
            {"id": each.job, "name": state.jobs[each.job].spec.name, "impact": each.impact}
            for each in explain.ahead_of(state, job, plan)[:AHEAD_SHOWN]
        ],
        "blockers": [_blocker(state, each, now, problem.weights) for each in explain.blockers(state, job)],
        "hint": _hint(job, start),
    }


def _plain(verdicts: list[explain.NodeVerdict]) -> list[Json]:
    return [
        {
            "node": each.node,
            "gpu": each.gpu,
            "type": each.type,
            "ok": each.ok,
            "when": each.when,
            "reason": each.reason.value,
            "message": each.message,
        }
        for each in verdicts
    ]


def _queue_of(problem: Problem, job: Job) -> tuple[Queue | None, int]:
    for queue in problem.queues:
        for position, head in enumerate(queue.heads):
            if head.job == job.id:
                return queue, position
    return None, 0


def _options(state: ClusterState, queue: Queue | None, position: int, problem: Problem, plan: Plan) -> list[Json]:
    """What the job would get on each type of GPU: when that would start if it had them to itself, and its impact."""
    if queue is None:
        return []
    found: dict[str, Json] = {}
    stranding = Stranding(problem)
    for site in queue.sites:
        run_s = queue.prediction.on(site.speed)
        free = sorted(problem.slots[slot].free_at_s for slot in site.slots)
        if len(free) < queue.gpus:
            continue
        wait_s = _capped_s(problem, queue, free[queue.gpus - 1] if queue.gpus else 0.0, run_s)
        if wait_s == inf:
            continue
        stranded = 0.0 if wait_s else stranding.gpus(queue, site)
        option = {
            "type": site.type,
            "node": problem.machines[site.machine].node,
            "start_at": plan.stamp.wall_s + wait_s,
            "end_at": plan.stamp.wall_s + wait_s + run_s,
            "run_s": run_s,
            "price": plan.prices.get(site.type),
            "impact": queue.impact(
                position, run_s, problem.weights, costs_of(queue, site, run_s, problem.weights, stranded)
            ),
            "power_w": site.power_w or None,
            "energy_kwh": queue.gpus * site.power_w * run_s / 3.6e6 if site.power_w else None,
            "stranded_gpus": stranded if stranding.counts else None,
        }
        if site.type not in found or option["end_at"] < found[site.type]["end_at"]:
            found[site.type] = option
    return list(found.values())


def _capped_s(problem: Problem, queue: Queue, start_s: float, run_s: float) -> float:
    """The first time from start_s at which no cap is in the way, by the jobs that run now; inf: never."""
    caps = [CapProfile(problem.caps[number]) for number in queue.caps]
    while start_s < inf:
        blocked = (cap.blocked_until_s(start_s, run_s, queue.gpus) for cap in caps)
        until_s = next((each for each in blocked if each is not None), None)
        if until_s is None:
            break
        start_s = until_s
    return start_s


def _weight(state: ClusterState, queue: Queue, position: int, problem: Problem) -> Json:
    """The weight of a waiting job and the factors it is the product of."""
    weights, stamp = problem.weights, problem.stamp
    waited_s = queue.heads[position].waited_s
    account = standings(state, stamp, weights).get(queue.shape.user)
    balance = account.balance if account else 1.0
    slack_s = deadline_slack_s(queue.shape, stamp.wall_s, queue.best_run_s)
    rise = deadline_rise(slack_s, queue.best_run_s, weights)
    return {
        "value": queue.weight(position),
        "priority": queue.standing / (balance * rise),
        "balance": balance,
        "account": account._asdict() if account else None,
        "deadline": rise,
        "deadline_at": queue.shape.deadline_at,
        "slack_s": slack_s,
        "age": weight(1.0, waited_s, queue.age_s),
        "waited_s": waited_s,
        "age_base_s": max(queue.best_run_s, weights.age_floor_s),
        "age_parameter": weights.age,
    }


def _costs(weights: Weights) -> list[Json]:
    """Each cost with its parameter (0: off), and whether the planner knows its amount; if not, nothing is taken off."""
    return [
        {"name": name, "parameter": getattr(weights, name), "measured": name in MEASURED_COSTS} for name in COSTS
    ]


def _solve(plan: Plan) -> Json | None:
    """What a solver made of the greedy plan; None when none was asked."""
    found: Json | None = None if plan.solve is None else msgspec.structs.asdict(plan.solve)
    return found


def _planned(state: ClusterState, start: Start, now: Stamp) -> Json:
    offset_s = now.wall_s - now.steady_s
    node = state.nodes.get(start.node)
    index = {gpu.uuid: gpu.index for gpu in node.gpus} if node else {}
    return {
        "node": start.node,
        "gpus": [{"uuid": uuid, "index": index.get(uuid), "type": start.type} for uuid in start.gpus],
        "type": start.type,
        "start_at": start.start_s + offset_s,
        "end_at": start.end_s + offset_s,
        "predicted_s": start.end_s - start.start_s,
        "informed": start.informed,
    }


def _blocker(state: ClusterState, blocker: explain.Blocker, now: Stamp, weights: Weights) -> Json:
    job = state.jobs[blocker.job]
    left = remaining(state, job, now, weights)
    return {
        "id": job.id,
        "name": job.spec.name,
        "user": job.owner.name,
        "node": blocker.node,
        "gpus": blocker.gpus,
        "ends_at": now.wall_s + left.left_s if left.informed else None,
    }


def _hint(job: Job, start: Start | None) -> str | None:
    """What would start it sooner, when something would."""
    if start is not None and start.passed_over is not None:
        return f"gpuq update {job.id} gpus={start.passed_over}:{job.spec.resources.gpus} would start it now"
    if job.held is not None:
        return f"gpuq release {job.id}"
    return None
