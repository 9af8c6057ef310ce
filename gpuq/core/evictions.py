"""Which running jobs to stop for a waiting one, if any. Imports contract, accounts, greedy, plan, survey.

A waiting job may displace running ones when all of this holds:

    contract   each of them is preemptible, and its --min-runtime is over (core.contract)
    licence    its claim is larger than the claim of each of them, by a factor
    worth      the plan with them stopped saves at least ten times the run time that their restarts lose, all weighted

    claim      priority ratio x balance / (GPUs x time still needed)                     [1 / GPU s]

Age and deadline are not in the claim: they rank a job ahead, but give no right to stop another. The claim of a running
job counts 1.3 times, and half as much more for each time it was stopped before; free time counts an eighth. The balance
of the waiting job is that after the move. Where a run time is a guess only priority and balance count, by a factor of
two.

One thing to know: what is found is simulated first. The plan made with the jobs stopped and waiting again must start
the job on GPUs of theirs as soon as they are gone, and be worth it for all jobs together.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Final, NamedTuple

from gpuq.core.accounts import Standing, balance_after, claim_divisors, standings
from gpuq.core.contract import is_free_time, may_be_stopped
from gpuq.core.estimate import Remaining, predict, remaining
from gpuq.core.greedy import Directed, plan_directed
from gpuq.core.impact import Weights, impact, priority_ratio
from gpuq.core.model import AttemptId, Job, JobId, Placement, Record, Stamp
from gpuq.core.plan import Plan, Start
from gpuq.core.problem import Problem, Queue, Site
from gpuq.core.state import ClusterState
from gpuq.core.survey import snapshot

KEEPING: Final = 1.3  # factor on the claim of a job that runs
GUESSED: Final = 2.0  # the same where no run time is known
OFTENER: Final = 0.5  # added to that factor, as a share, for each time it was stopped before
FREE_TIME: Final = 0.125  # factor on claim and weight of free time
WORTH: Final = 10.0  # times the cost of the restarts
MOST_TRIED: Final = 8  # waiting jobs, and sets of jobs to stop, that are looked at


class Eviction(Record, frozen=True, kw_only=True):
    """Stop these attempts so that the job can start there."""

    placement: Placement
    attempts: tuple[AttemptId, ...]
    gain_s: float  # weighted seconds of waiting that all jobs together are spared


class Claim(NamedTuple):
    """What a job may insist on."""

    licence: float  # priority ratio x balance
    gpu_s: float  # GPUs x time still needed
    informed: bool


class _Candidate(NamedTuple):
    """A set of jobs to stop that makes room on one site."""

    queue: int
    site: int
    stopped: tuple[Job, ...]


def find_eviction(state: ClusterState, problem: Problem, plan: Plan) -> Eviction | None:
    """The best eviction of this moment; None: nobody is to be stopped. plan: the full plan of problem."""
    stamp, weights = problem.stamp, problem.weights
    if problem.waiting == len(plan.starts):
        return None
    yielding = [job for job in state.active() if job.spec.resources.gpus and may_be_stopped(job, stamp)]
    if not yielding:
        return None
    claims = _Claims(state, stamp, weights)
    best: Eviction | None = None
    for candidate in _candidates(state, problem, plan, yielding, claims):
        found = _worth(state, problem, plan, candidate, claims)
        if found is not None and (best is None or found.gain_s > best.gain_s):
            best = found
    return best


def room_starts(state: ClusterState, stamp: Stamp, weights: Weights) -> dict[JobId, Start]:
    """When and where the jobs will start for which room is being made: no plan looks at them any more."""
    found = {}
    for id_, room in state.rooms.items():
        job, placement = state.jobs[id_], room.placement
        gpu_type = state.type_of(placement.node, placement.gpus[0]) if placement.gpus else ""
        prediction = predict(state, job, weights)
        run_s = prediction.on(state.speed_for(job, placement.node, placement.gpus))
        start_s = max(stamp.steady_s, room.until_steady_s)
        found[id_] = Start(
            job=id_, node=placement.node, gpus=placement.gpus, type=gpu_type, start_s=start_s, end_s=start_s + run_s,
            impact=impact(1.0, len(placement.gpus), run_s, weights), informed=prediction.informed,
        )  # fmt: skip
    return found


# --- who may stop whom ----------------------------------------------------------------------------------


class _Claims:
    """The claims of this moment."""

    def __init__(self, state: ClusterState, stamp: Stamp, weights: Weights) -> None:
        self._state, self._stamp, self._weights = state, stamp, weights
        self._divisors = claim_divisors(state, stamp, weights)
        self._standings: dict[str, Standing] = standings(state, stamp, weights)
        self._left: dict[JobId, Remaining] = {}

    def left(self, job: Job) -> Remaining:
        """What a running job still needs."""
        if job.id not in self._left:
            self._left[job.id] = remaining(self._state, job, self._stamp, self._weights)
        return self._left[job.id]

    def of_running(self, job: Job) -> Claim:
        """What a running job may insist on, reluctance to stop it aside."""
        ratio = priority_ratio(job.spec.priority, job.spec.nice, self._weights)
        licence = ratio / self._divisors[job.owner.name] * (FREE_TIME if is_free_time(job) else 1.0)
        left = self.left(job)
        return Claim(licence, job.spec.resources.gpus * left.left_s, left.informed)

    def of_waiting(self, job: Job, queue: Queue, site: Site) -> Claim:
        """What a waiting job may insist on, its account charged as if it ran."""
        user, run_s = job.owner.name, queue.prediction.on(site.speed)
        standing = self._standings[user]
        charged_s = job.spec.min_runtime_s if job.spec.preemptible else run_s
        after = balance_after(self._state, standing, queue.gpus, charged_s, self._weights)
        ratio = priority_ratio(job.spec.priority, job.spec.nice, self._weights)
        licence = ratio / self._divisors[user] * min(1.0, after / standing.balance)
        licence *= FREE_TIME if is_free_time(job) else 1.0
        return Claim(licence, queue.gpus * run_s, queue.prediction.informed)

    def may_stop(self, mine: Claim, job: Job) -> bool:
        """Whether a claim is larger than that of a running job, by the factor."""
        other = self.of_running(job)
        reluctance = 1.0 + OFTENER * job.evictions
        if not (mine.informed and other.informed):
            return mine.licence > GUESSED * reluctance * other.licence
        return mine.licence / mine.gpu_s > KEEPING * reluctance * other.licence / other.gpu_s


# --- what could be stopped ------------------------------------------------------------------------------


def _candidates(
    state: ClusterState, problem: Problem, plan: Plan, yielding: list[Job], claims: _Claims
) -> Iterator[_Candidate]:
    """The most promising sets of jobs to stop: by impact of the waiting job, and what its wait costs."""
    found: list[tuple[float, int, _Candidate]] = []
    for number in _by_impact(problem, plan)[:MOST_TRIED]:
        queue = problem.queues[number]
        wait_s = _wait_s(plan, queue)
        for position, site in enumerate(queue.sites):
            stopped = _cheapest(state, problem, queue, site, yielding, claims)
            if stopped is not None:
                lost_s = sum(job.spec.resources.gpus * claims.left(job).left_s for job in stopped)
                promise = queue.weight(0) * wait_s / (1.0 + lost_s)
                found.append((-promise, len(found), _Candidate(number, position, stopped)))
    return (candidate for _, _, candidate in sorted(found)[:MOST_TRIED])


def _by_impact(problem: Problem, plan: Plan) -> list[int]:
    """Queues whose first job could start now if there were GPUs, the largest impact first."""
    now = {start.job for start in plan.starts}
    numbers = [
        number
        for number, queue in enumerate(problem.queues)
        if queue.gpus and queue.sites and not queue.release_s and queue.heads and queue.heads[0].job not in now
    ]
    queues = problem.queues
    return sorted(numbers, key=lambda each: -queues[each].impact(0, queues[each].best_run_s, problem.weights))


def _wait_s(plan: Plan, queue: Queue) -> float:
    start = plan.estimates.get(queue.heads[0].job)
    return inf if start is None else start.start_s - plan.stamp.steady_s


def _cheapest(
    state: ClusterState, problem: Problem, queue: Queue, site: Site, yielding: list[Job], claims: _Claims
) -> tuple[Job, ...] | None:
    """The fewest claims that make room on the site; None when the job has no right to enough GPUs there, or no need."""
    uuids = {problem.slots[slot].gpu.uuid for slot in site.slots}
    free = sum(1 for slot in site.slots if problem.slots[slot].free_at_s == 0.0)
    missing = queue.gpus - free
    mine = claims.of_waiting(state.jobs[queue.heads[0].job], queue, site)
    gains = {
        job.id: len(uuids.intersection(job.attempt.gpus))
        for job in yielding
        if job.attempt is not None and not uuids.isdisjoint(job.attempt.gpus)
    }
    ranked = sorted(
        (job for job in yielding if job.id in gains and claims.may_stop(mine, job)),
        key=lambda job: (claims.of_running(job).licence / claims.of_running(job).gpu_s, -job.order),
    )
    stopped: list[Job] = []
    for job in ranked:
        if missing <= 0:
            break
        stopped.append(job)
        missing -= gains[job.id]
    if missing > 0 or not stopped:
        return None
    return tuple(_needed(stopped, gains, -missing))


def _needed(stopped: list[Job], gains: dict[JobId, int], spare: int) -> list[Job]:
    """The jobs without those that turned out not to be needed, the dearest first left alone."""
    kept = list(stopped)
    for job in reversed(stopped):
        if gains[job.id] <= spare:
            kept.remove(job)
            spare -= gains[job.id]
    return kept


# --- whether it is worth it -----------------------------------------------------------------------------


def _worth(
    state: ClusterState, problem: Problem, plan: Plan, candidate: _Candidate, claims: _Claims
) -> Eviction | None:
    """The eviction, if the plan with these jobs stopped is so much better."""
    stopping = {job.attempt.id: job.spec.grace_s for job in candidate.stopped if job.attempt is not None}
    after = snapshot(state, problem.stamp, problem.weights, problem.window, stopping)
    new = plan_directed(after, _in_turn(after, candidate))
    mine = problem.queues[candidate.queue].heads[0].job
    start = new.estimates.get(mine)
    if start is None or not _starts_there(state, candidate, start, problem.stamp, stopping):
        return None
    saved_s = _saved_s(state, problem, plan, new)
    lost_s = cost_s = 0.0
    for queue, job in zip(after.queues[-len(candidate.stopped) :], candidate.stopped, strict=True):
        weight = queue.weight(0) * (FREE_TIME if is_free_time(job) else 1.0)
        again = new.estimates.get(job.id)
        if again is None:
            return None
        lost_s += weight * (again.end_s - problem.stamp.steady_s - claims.left(job).left_s)
        cost_s += weight * (problem.weights.restart_s + problem.weights.restart * claims.left(job).left_s)
    gain_s = saved_s - lost_s
    if gain_s < WORTH * cost_s or gain_s <= 0.0:
        return None
    placement = Placement(job=mine, node=start.node, gpus=start.gpus)
    return Eviction(placement=placement, attempts=tuple(stopping), gain_s=gain_s)


def _in_turn(after: Problem, candidate: _Candidate) -> list[Directed]:
    """First the job, then those that were stopped for it, as soon as they can: they are ahead of all the others."""
    stopped = range(len(after.queues) - len(candidate.stopped), len(after.queues))
    return [
        Directed(candidate.queue, frozenset({candidate.site})),
        *(Directed(number, frozenset(range(len(after.queues[number].sites)))) for number in stopped),
    ]


def _starts_there(
    state: ClusterState, candidate: _Candidate, start: Start, stamp: Stamp, stopping: dict[AttemptId, float]
) -> bool:
    """Whether the job starts as soon as the others are gone, on GPUs of all of them or free ones."""
    latest_s = max(stopping.values())
    owners = {state.owners[uuid] for uuid in start.gpus if uuid in state.owners}
    return start.start_s - stamp.steady_s <= latest_s + 1e-6 and owners == set(stopping)


def _saved_s(state: ClusterState, problem: Problem, before: Plan, after: Plan) -> float:
    """Weighted seconds by which the jobs that wait end sooner, those that only one of the plans looks at aside."""
    saved_s = 0.0
    for queue in problem.queues:
        for position, head in enumerate(queue.heads):
            old, new = before.estimates.get(head.job), after.estimates.get(head.job)
            if old is not None and new is not None:
                factor = FREE_TIME if is_free_time(state.jobs[head.job]) else 1.0
                saved_s += factor * queue.weight(position) * (old.end_s - new.end_s)
    return saved_s
