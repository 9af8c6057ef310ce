"""Why a job waits, and why each node and GPU cannot take it now. Imports fit, match, plan, state, units.

The command line, `top` and the log read the same answer. One thing to know: the order of the questions is the order
in which a person can do something about the answer: the job itself, then the cluster, then the queue.
"""

from __future__ import annotations

from gpuq.core import fit, match
from gpuq.core.match import Obstacle, When
from gpuq.core.model import GpuUuid, Job, JobId, Node, NodeName, Record, Resources, Stamp
from gpuq.core.plan import Plan, Start
from gpuq.core.state import ClusterState
from gpuq.core.states import JobState, Reason
from gpuq.units import format_rough_duration

AHEAD_NAMED = 3  # jobs named in a sentence


class NodeVerdict(Record, frozen=True, kw_only=True):
    """Whether one GPU (or, with gpu None, the node as a whole) can take the job."""

    node: NodeName
    gpu: int | None
    type: str
    ok: bool
    when: str  # "now", "later", "never"
    reason: Reason = Reason.NONE
    message: str = ""


class Blocker(Record, frozen=True, kw_only=True):
    """A running job on GPUs that the waiting one could use."""

    job: JobId
    node: NodeName
    gpus: int


# --- nodes ----------------------------------------------------------------------------------------------


def why_nodes(state: ClusterState, job: Job, stamp: Stamp) -> list[NodeVerdict]:
    """One verdict per GPU; one per node that as a whole is closed to the job, or has too few GPUs for it."""
    verdicts: list[NodeVerdict] = []
    for node in state.nodes.values():
        obstacle = fit.node_obstacle(state, node, job.spec.resources)
        if obstacle is not None:
            verdicts.append(_verdict(node, None, "", obstacle))
        else:
            verdicts.extend(_gpu_verdicts(state, job, node))
    return verdicts


def _gpu_verdicts(state: ClusterState, job: Job, node: Node) -> list[NodeVerdict]:
    asked = job.spec.resources
    if asked.gpus == 0:
        return [_verdict(node, None, "", None)]
    found = {gpu.uuid: fit.gpu_obstacle(state, gpu, asked) for gpu in node.gpus}
    free = [gpu for gpu in node.gpus if found[gpu.uuid] is None]
    most = max(map(len, match.by_type(free, asked)), default=0)
    verdicts = []
    # One GPU needs no word about the node as a whole: its own GPUs say it all.
    if most < asked.gpus and (asked.gpus > 1 or not node.gpus):
        verdicts.append(_verdict(node, None, "", fit.shortage(state, node, asked, most)))
    verdicts.extend(_verdict(node, gpu.index, gpu.type, found[gpu.uuid]) for gpu in node.gpus)
    return verdicts


def _verdict(node: Node, gpu: int | None, gpu_type: str, obstacle: Obstacle | None) -> NodeVerdict:
    if obstacle is None:
        return NodeVerdict(node=node.name, gpu=gpu, type=gpu_type, ok=True, when="now")
    return NodeVerdict(
        node=node.name, gpu=gpu, type=gpu_type, ok=False,
        when=obstacle.when.value, reason=obstacle.reason, message=obstacle.message,
    )  # fmt: skip


# --- the queue ------------------------------------------------------------------------------------------


def ahead_of(state: ClusterState, job: Job, plan: Plan) -> list[Start]:
    """Waiting jobs that the plan gives GPUs which this job could use, sooner than it; soonest first."""
    return _ahead(_soonest_first(state, plan), plan.estimates.get(job.id), _usable(state, job.spec.resources))


def _soonest_first(state: ClusterState, plan: Plan) -> list[Start]:
    """The estimates of jobs that still wait."""
    still = [
        start
        for id_, start in plan.estimates.items()
        if id_ in state.jobs and state.jobs[id_].state is JobState.PENDING
    ]
    return sorted(still, key=lambda start: (start.start_s, -start.impact, state.jobs[start.job].order))


def _ahead(ordered: list[Start], mine: Start | None, usable: set[GpuUuid]) -> list[Start]:
    found = []
    for start in ordered:
        if mine is not None and start.start_s >= mine.start_s:
            break
        if not usable.isdisjoint(start.gpus):
            found.append(start)
    return found


def blockers(state: ClusterState, job: Job) -> list[Blocker]:
    """Running jobs on GPUs this job could use, those with the most GPUs first."""
    usable = _usable(state, job.spec.resources)
    found = []
    for other in state.active():
        assert other.attempt is not None
        held = len(usable.intersection(other.attempt.gpus))
        if held:
            found.append(Blocker(job=other.id, node=other.attempt.node, gpus=held))
    return sorted(found, key=lambda each: (-each.gpus, state.jobs[each.job].order))


def _usable(state: ClusterState, asked: Resources) -> set[GpuUuid]:
    return {
        gpu.uuid
        for node in state.nodes.values()
        if match.node_mismatch(node, asked) is None
        for gpu in node.gpus
        if match.gpu_mismatch(gpu, asked) is None
    }


# --- the reason -----------------------------------------------------------------------------------------


def waiting_reason(
    state: ClusterState, job: Job, plan: Plan | None, stamp: Stamp
) -> tuple[Reason, str]:
    """Why a pending job is not running: Slurm's word for it (or one alike) and one sentence that names the obstacle."""
    return Reasons(state, plan, stamp).of(job)


class Reasons:
    """The reasons of many jobs at one moment: what equal requests have in common is found once."""

    def __init__(self, state: ClusterState, plan: Plan | None, stamp: Stamp) -> None:
        self._state = state
        self._plan = plan
        self._stamp = stamp
        self._ordered = _soonest_first(state, plan) if plan is not None else []
        self._obstacles: dict[Resources, Obstacle | None] = {}
        self._usable: dict[Resources, set[GpuUuid]] = {}
        self._outside: dict[Resources, tuple[Reason, str]] = {}  # of jobs that the plan says nothing about

    def of(self, job: Job) -> tuple[Reason, str]:
        """The reason of one pending job, as waiting_reason gives it."""
        obstacle = fit.job_obstacle(self._state, job, self._stamp)
        if obstacle is not None:
            return obstacle.reason, obstacle.message
        if job.id in self._state.rooms:
            return Reason.MAKING_ROOM, self._room_text(job)
        if not self._state.nodes:
            return Reason.REQ_NODE_NOT_AVAIL, "no node is known yet"
        if self._plan is not None and job.id in self._plan.estimates:
            return self._of_request(job)
        known = self._outside.get(job.spec.resources)
        if known is None:
            known = self._outside[job.spec.resources] = self._of_request(job)
        return known

    def _room_text(self, job: Job) -> str:
        """Who makes room for it, and by when."""
        state, room = self._state, self._state.rooms[job.id]
        left = [state.attempts[each] for each in room.attempts if each in state.attempts]
        if not left:
            return "it starts in a moment, where others were stopped for it"
        verb = "is being stopped" if len(left) == 1 else "are being stopped"
        wait = format_rough_duration(max(0.0, room.until_steady_s - self._stamp.steady_s))
        return f"{', '.join(left)} {verb} to make room for it on {room.placement.node}: {wait} at most"

    def _of_request(self, job: Job) -> tuple[Reason, str]:
        asked = job.spec.resources
        if asked not in self._obstacles:
            self._obstacles[asked] = self._everywhere(job)
        obstacle = self._obstacles[asked]
        if obstacle is None:
            return self._although_it_fits(job)
        if obstacle.reason is Reason.RESOURCES and asked.gpus:
            ahead = self._ahead(job)
            if ahead:
                return Reason.PRIORITY, _ahead_text(ahead)
        return obstacle.reason, obstacle.message

    def _everywhere(self, job: Job) -> Obstacle | None:
        """The obstacle that will pass first, when every node has one."""
        found = [fit.place_now(self._state, job, node, self._stamp) for node in self._state.nodes.values()]
        obstacles = [each for each in found if isinstance(each, Obstacle)]
        return _main_obstacle(obstacles) if len(obstacles) == len(found) else None

    def _ahead(self, job: Job) -> list[Start]:
        if self._plan is None:
            return []
        asked = job.spec.resources
        if asked not in self._usable:
            self._usable[asked] = _usable(self._state, asked)
        return _ahead(self._ordered, self._plan.estimates.get(job.id), self._usable[asked])

    def _although_it_fits(self, job: Job) -> tuple[Reason, str]:
        plan = self._plan
        mine = plan.estimates.get(job.id) if plan is not None else None
        if plan is None or (mine is not None and mine.start_s <= plan.stamp.steady_s):
            return Reason.NONE, "it starts in a moment"
        if mine is not None and mine.passed_over is not None and mine.passed_over_end_s is not None:
            wait = format_rough_duration(mine.start_s - plan.stamp.steady_s)
            later = format_rough_duration(mine.passed_over_end_s - mine.end_s)
            message = f"a faster GPU frees soon: {mine.type} in {wait}; {mine.passed_over} now would end {later} later"
            return Reason.FASTER_GPU_SOON, message
        ahead = self._ahead(job)
        if ahead:
            return Reason.PRIORITY, _ahead_text(ahead)
        return Reason.NONE, "it waits for the next plan"


def _main_obstacle(obstacles: list[Obstacle]) -> Obstacle:
    """What will pass first: running jobs end, then what people or agents can lift; what never passes comes last."""
    order = (
        Reason.RESOURCES,
        Reason.GPU_FOREIGN_USE,
        Reason.GPU_UNKNOWN,
        Reason.REQ_NODE_NOT_AVAIL,
        Reason.GPU_MEMORY,
        Reason.BAD_CONSTRAINTS,
    )
    return min(obstacles, key=lambda each: (each.when is When.NEVER, order.index(each.reason)))


def _ahead_text(ahead: list[Start]) -> str:
    if len(ahead) == 1:
        return f"{ahead[0].job} is ahead of it"
    named = ", ".join(start.job for start in ahead[:AHEAD_NAMED])
    rest = len(ahead) - AHEAD_NAMED
    return f"{named}{f' and {rest} more' if rest > 0 else ''} are ahead of it"
