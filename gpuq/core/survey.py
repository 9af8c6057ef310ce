"""The snapshot: reads the state and puts it as a Problem. Imports accounts, estimate, fit, match, problem, state
and used.

With `stopping` the same is asked as if those attempts had been told to end: they wait in queues of their own.

One thing to know: window 0 asks only what may start now. The snapshot then reads no more of the state than that needs:
nothing at all when no GPU is free, and of each queue no more jobs than could start.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from math import inf

from msgspec.structs import replace

from gpuq.core import fit, match
from gpuq.core.accounts import claim_divisors, divisors
from gpuq.core.caps import Cap
from gpuq.core.estimate import Remaining, predict, predict_shape, remaining
from gpuq.core.gpu_types import is_any
from gpuq.core.impact import Weights, impact, share_of
from gpuq.core.model import AttemptId, GpuUuid, Job, JobId, Node, NodeName, Resources, Stamp
from gpuq.core.problem import ArrayRoom, CapRoom, Machine, Problem, Promise, Queue, Running, Site, Slot, Waiting
from gpuq.core.state import ClusterState, Shape
from gpuq.core.used import Use

WINDOW = 256  # waiting jobs that get an estimate
SOONEST_LATER_S = 0.001  # what is not now is at least that far away, so that no rounding makes it now


def snapshot(
    state: ClusterState,
    stamp: Stamp,
    weights: Weights | None = None,
    window: int = WINDOW,
    stopping: Mapping[AttemptId, float] | None = None,
) -> Problem:
    """The problem of this moment; window 0: only what is needed to start jobs now.

    stopping: attempts that are taken to be told to end now, and the time [s] they get for that.
    """
    weights = weights or Weights()
    stopping = stopping or {}
    nodes = [node for node in state.nodes.values() if fit.is_reachable(node)]
    wanted = _Wanted(state, [state.jobs[state.attempts[attempt]] for attempt in stopping])
    if not state.waiting or (not window and not wanted.without_gpus and not _any_free(state, nodes)):
        return Problem(stamp=stamp, weights=weights, window=window, waiting=state.waiting_count())
    ends = _predicted_ends(state, stamp, weights)
    ends |= {attempt: Remaining(left_s=left_s, informed=True) for attempt, left_s in stopping.items()}
    room_ends = _room_ends(state, ends, stamp, weights)
    machines, slots = _machines_and_slots(state, nodes, ends, room_ends)
    free = sum(1 for slot in slots if slot.free_at_s == 0.0)
    sites = _Sites(nodes, slots)
    means = divisors(state, stamp, weights)
    queues = tuple(
        _queue(state, shape, sites, means[shape.user], stamp, weights, (window, free))
        for shape in state.waiting
    ) + tuple(
        _stopped_queue(state, state.jobs[state.attempts[attempt]], sites, left_s, stamp, weights)
        for attempt, left_s in stopping.items()
    )
    caps, queues = _under_caps(state, queues, ends, room_ends) if state.caps.any else ((), queues)
    return Problem(
        stamp=stamp,
        weights=weights,
        window=window,
        caps=caps,
        machines=machines,
        slots=slots,
        queues=queues,
        arrays=_array_rooms(state, wanted.limited, ends),
        running=_running(state, weights) if window else (),
        waiting=sum(queue.count for queue in queues),
    )


class _Wanted:
    """What the waiting shapes call for, at one look."""

    def __init__(self, state: ClusterState, stopping: list[Job]) -> None:
        """stopping: running jobs that wait with the others once they are told to end."""
        self.without_gpus = False
        self.limited: list[tuple[JobId, int]] = []  # (array, limit)
        for shape, queue in state.waiting.items():
            if shape.resources.gpus == 0:
                self.without_gpus = True
            if shape.array is not None:
                head = next(iter(queue))
                self.limited.append((shape.array, state.jobs[head].spec.array_limit))
        self.limited += [(job.array, job.spec.array_limit) for job in stopping if job.spec.array_limit]


def _any_free(state: ClusterState, nodes: list[Node]) -> bool:
    taken = {*state.owners, *(uuid for room in state.rooms.values() for uuid in room.placement.gpus)}
    return any(gpu.uuid not in taken and fit.is_sound(gpu) for node in nodes for gpu in node.gpus)


def _room_ends(
    state: ClusterState, ends: dict[AttemptId, Remaining], stamp: Stamp, weights: Weights
) -> dict[JobId, Remaining]:
    """When jobs will have ended that start as soon as those are gone that were stopped for them."""
    found = {}
    for id_, room in state.rooms.items():
        job, placement = state.jobs[id_], room.placement
        wait_s = max((ends[each].left_s for each in room.attempts if each in ends), default=0.0)
        prediction = predict(state, job, weights)
        run_s = prediction.on(state.speed_for(job, placement.node, placement.gpus))
        found[id_] = Remaining(left_s=wait_s + run_s, informed=prediction.informed)
    return found


def _predicted_ends(state: ClusterState, stamp: Stamp, weights: Weights) -> dict[AttemptId, Remaining]:
    """Of every attempt that holds GPUs, CPUs, memory or a place of a limited array; inf while one cannot be killed."""
    ends = {}
    for attempt, id_ in state.attempts.items():
        job = state.jobs[id_]
        asked = job.spec.resources
        if asked.gpus or asked.cpus or asked.memory_mib or job.spec.array_limit:
            stuck = job.attempt is not None and bool(job.attempt.unkillable)
            ends[attempt] = (
                Remaining(left_s=inf, informed=False) if stuck else remaining(state, job, stamp, weights)
            )
    return ends


def _machines_and_slots(
    state: ClusterState, nodes: list[Node], ends: dict[AttemptId, Remaining], room_ends: dict[JobId, Remaining]
) -> tuple[tuple[Machine, ...], tuple[Slot, ...]]:
    promises: dict[NodeName, list[Promise]] = {}
    attempts: dict[NodeName, int] = {}
    for attempt, id_ in state.attempts.items():
        job = state.jobs[id_]
        assert job.attempt is not None
        node_name, asked = job.attempt.node, job.spec.resources
        attempts[node_name] = attempts.get(node_name, 0) + 1
        if asked.cpus or asked.memory_mib:
            promise = Promise(ends[attempt].left_s, asked.cpus, asked.memory_mib or 0)
            promises.setdefault(node_name, []).append(promise)
    kept: dict[GpuUuid, Remaining] = {}
    for id_, end in room_ends.items():
        placement, asked = state.rooms[id_].placement, state.jobs[id_].spec.resources
        kept |= dict.fromkeys(placement.gpus, end)
        if asked.cpus or asked.memory_mib:
            promises.setdefault(placement.node, []).append(Promise(end.left_s, asked.cpus, asked.memory_mib or 0))
    machines = tuple(
        Machine(
            node.name, node.cpus, node.memory_mib,
            tuple(promises.get(node.name, ())), attempts.get(node.name, 0),
        )
        for node in nodes
    )  # fmt: skip
    slots = []
    for position, node in enumerate(nodes):
        for gpu in node.gpus:
            if not fit.is_sound(gpu):
                continue
            owner = state.owners.get(gpu.uuid)
            if gpu.uuid in kept:
                slots.append(Slot(position, gpu, kept[gpu.uuid].left_s, kept[gpu.uuid].informed))
            elif owner is None:
                slots.append(Slot(position, gpu, 0.0, True))
            elif owner in ends and ends[owner].left_s < inf:
                slots.append(Slot(position, gpu, ends[owner].left_s, ends[owner].informed))
    return machines, tuple(slots)


class _Sites:
    """The sites of a request, computed once for all queues that ask for the same."""

    def __init__(self, nodes: list[Node], slots: tuple[Slot, ...]) -> None:
        self._nodes = nodes
        self._slots = slots
        self._known: dict[Resources, tuple[Site, ...]] = {}
        self._types: list[dict[str, list[int]]] = [{} for _ in nodes]
        for position, slot in enumerate(slots):
            self._types[slot.machine].setdefault(slot.gpu.type, []).append(position)

    def of(self, asked: Resources) -> tuple[Site, ...]:
        """Fastest first; then the least memory, then the order of the nodes."""
        known = self._known.get(asked)
        if known is None:
            found = [
                site
                for machine, node in enumerate(self._nodes)
                if match.node_mismatch(node, asked) is None
                for site in self._on(machine, asked)
            ]
            known = tuple(sorted(found, key=lambda site: (-site.speed, site.memory_mib, site.machine)))
            self._known[asked] = known
        return known

    def _on(self, machine: int, asked: Resources) -> list[Site]:
        if asked.gpus == 0:
            return [Site(machine, "", (), 1.0, 0)]
        open_ = is_any(asked.gpu_type) and not asked.gpu_memory_mib and not asked.gpu_ids
        groups: dict[str, list[int]] = {}
        for gpu_type, positions in self._types[machine].items():
            fitting = [
                position
                for position in positions
                if (open_ and self._slots[position].gpu.parent is None)
                or match.gpu_mismatch(self._slots[position].gpu, asked) is None
            ]
            groups.setdefault("" if asked.gpu_ids else gpu_type, []).extend(fitting)
        return [self._site(machine, found) for found in groups.values() if len(found) >= asked.gpus]

    def _site(self, machine: int, positions: list[int]) -> Site:
        gpus = [self._slots[position].gpu for position in positions]
        return Site(
            machine, gpus[0].type, tuple(positions),
            min(gpu.speed for gpu in gpus), min(gpu.memory_mib or 0 for gpu in gpus),
            power_w=sum(gpu.power_limit_w or 0.0 for gpu in gpus) / len(gpus),
        )  # fmt: skip


def _queue(
    state: ClusterState,
    shape: Shape,
    sites: _Sites,
    mean_ratio: float,
    stamp: Stamp,
    weights: Weights,
    most: tuple[int, int],
) -> Queue:
    """most: (jobs in the window, GPUs free now)."""
    members = state.waiting[shape]
    asked = shape.resources
    prediction = predict_shape(state, shape, weights)
    found = _as_learnt(sites.of(asked), state.memory.factors(shape.user, shape.name))
    found = _as_used(found, state.memory.uses.get((shape.user, shape.name)))
    best_run_s = prediction.on(found[0].speed if found else 1.0)
    since_release_s = inf if shape.not_before_at is None else stamp.wall_s - shape.not_before_at
    # One job more than could start: it keeps its place against smaller ones behind it.
    most_heads = max(most[0], most[1] // asked.gpus + 1) if asked.gpus else len(members)
    heads = islice(members, most_heads)
    return Queue(
        shape=shape,
        heads=tuple(_waiting(state.jobs[id_], stamp, max(0.0, since_release_s)) for id_ in heads),
        count=len(members),
        sites=found,
        prediction=prediction,
        standing=share_of(shape, stamp.wall_s, best_run_s, weights) / mean_ratio,
        best_run_s=best_run_s,
        age_s=max(best_run_s, weights.age_floor_s) / weights.age if weights.age else inf,
        release_s=max(-since_release_s, SOONEST_LATER_S) if since_release_s < 0 else 0.0,
    )


def _stopped_queue(
    state: ClusterState, job: Job, sites: _Sites, left_s: float, stamp: Stamp, weights: Weights
) -> Queue:
    """A running job as it would wait once it was told to end, left_s from now."""
    attempt = job.attempt
    started_s = attempt.started_steady_s if attempt is not None else None
    done_s = 0.0 if started_s is None else (stamp.steady_s - started_s) * state.job_speed(job)
    stopped = replace(job, kept_s=job.kept_s + max(done_s, SOONEST_LATER_S))
    shape, user = state.shape_of(stopped), job.owner.name
    mean_ratio = claim_divisors(state, stamp, weights)[user]
    prediction = predict_shape(state, shape, weights)
    found = _as_learnt(sites.of(shape.resources), state.memory.factors(user, shape.name))
    best_run_s = prediction.on(found[0].speed if found else 1.0)
    return Queue(
        shape=shape,
        heads=(_waiting(stopped, stamp, inf),),
        count=1,
        sites=found,
        prediction=prediction,
        standing=share_of(shape, stamp.wall_s, best_run_s, weights) / mean_ratio,
        best_run_s=best_run_s,
        age_s=max(best_run_s, weights.age_floor_s) / weights.age if weights.age else inf,
        release_s=max(left_s, SOONEST_LATER_S),
    )


def _as_learnt(sites: tuple[Site, ...], factors: dict[str, float]) -> tuple[Site, ...]:
    """The sites with the speeds that jobs of this kind have there, fastest first; none where they cannot run."""
    if not factors:
        return sites
    known = [(site, factors.get(site.type, 1.0)) for site in sites]
    learnt = [site._replace(speed=site.speed * factor) for site, factor in known if factor > 0.0]
    return tuple(sorted(learnt, key=lambda site: (-site.speed, site.memory_mib, site.machine)))


def _as_used(sites: tuple[Site, ...], use: Use | None) -> tuple[Site, ...]:
    """The sites with the draw that jobs of this kind have there, where it is known."""
    if use is None or not use.power_w:
        return sites
    return tuple(site._replace(power_w=use.expected_power_w(site.type, site.power_w) or site.power_w) for site in sites)


def _waiting(job: Job, stamp: Stamp, since_release_s: float) -> Waiting:
    waited_s = max(0.0, stamp.steady_s - job.submitted_steady_s)
    return Waiting(job.id, min(waited_s, since_release_s), job.order)


def _array_rooms(
    state: ClusterState, limited: list[tuple[JobId, int]], ends: dict[AttemptId, Remaining]
) -> dict[JobId, ArrayRoom]:
    if not limited:
        return {}
    running: dict[JobId, list[float]] = {}
    for attempt, id_ in state.attempts.items():
        job = state.jobs[id_]
        if job.spec.array_limit:
            running.setdefault(job.array, []).append(ends[attempt].left_s)
    return {array: ArrayRoom(limit, tuple(running.get(array, ()))) for array, limit in limited}


def _under_caps(
    state: ClusterState,
    queues: tuple[Queue, ...],
    ends: dict[AttemptId, Remaining],
    room_ends: dict[JobId, Remaining],
) -> tuple[tuple[CapRoom, ...], tuple[Queue, ...]]:
    """The caps of those that wait for GPUs, and the queues with theirs."""
    found: dict[Cap, int] = {}
    capped = []
    for queue in queues:
        caps = state.caps.of(queue.shape.user) if queue.gpus else ()
        numbers = tuple(found.setdefault(cap, len(found)) for cap in caps)
        capped.append(replace(queue, caps=numbers) if numbers else queue)
    held = [
        (state.jobs[id_].owner.name, ends[attempt].left_s, state.jobs[id_].spec.resources.gpus)
        for attempt, id_ in state.attempts.items()
        if attempt in ends
    ] + [
        (state.jobs[id_].owner.name, end.left_s, len(state.rooms[id_].placement.gpus))
        for id_, end in room_ends.items()
    ]
    rooms = (
        CapRoom(cap.name, cap.max_gpus, tuple((end_s, gpus) for user, end_s, gpus in held if user in cap.users))
        for cap in found
    )
    return tuple(rooms), tuple(capped)


def _running(state: ClusterState, weights: Weights) -> tuple[Running, ...]:
    """The impact with which jobs hold GPUs: as at their start, weight 1 and no age."""
    types = {gpu.uuid: gpu.type for node in state.nodes.values() for gpu in node.gpus}
    found = []
    for job in state.active():
        held = job.attempt.gpus if job.attempt else ()
        if held:
            run_s = predict(state, job, weights).on(state.job_speed(job))
            value = impact(1.0, len(held), run_s, weights)
            found.append(Running(job.id, types.get(held[0], ""), value))
    return tuple(found)
