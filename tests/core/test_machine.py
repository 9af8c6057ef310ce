"""The whole core under faults: random requests, lost and repeated messages, crashes, reboots, jumps of the clock.

Hypothesis drives gpuq.core.decide.step by the rules of machine_rules, through machine_daemon; machine_world knows what
really happened on the nodes, and machine_ledger what was promised. At the end of each run all faults stop, everything
is delivered, and every job must come to an end. GPUQ_HYPOTHESIS=long runs 2,000 random sequences of 50 steps; without
it there are 100 (300 where CI is set), always the same.

One thing to know: the second half plants known mistakes in the core and expects the same machine to find each of them
without the help of check_invariants.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import invariant, run_state_machine_as_test
from msgspec.structs import replace

import gpuq.core.apply as apply_module
from gpuq.core import decide, decide_attempts, decide_jobs, decide_nodes, invariants
from gpuq.core.caps import AccountCap, Caps
from gpuq.core.events import AttemptEnded, StartAttempt, StopOrdered
from gpuq.core.model import Attempt, Job, Reach, Stamp
from gpuq.core.requests import AttemptReport, NodeReached, NodeReady, Submit
from gpuq.core.state import ClusterState
from gpuq.core.states import JobState, Reason
from gpuq.errors import GpuqError
from tests.core.machine_rules import QueueMachine

# --- profiles -------------------------------------------------------------------------------------------

LONG = os.environ.get("GPUQ_HYPOTHESIS") == "long"
PROFILE = settings(
    max_examples=2000 if LONG else 300 if os.environ.get("CI") else 100,
    stateful_step_count=50,
    derandomize=not LONG,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture
def few_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended jobs leave the state early, so that forgetting takes part in the game."""
    monkeypatch.setattr(decide, "KEEP_ENDED", 3)


@pytest.mark.usefixtures("few_ended")
def test_promises_hold_under_faults() -> None:
    """No sequence of requests, faults and crashes breaks a guarantee, and every job comes to an end."""
    run_state_machine_as_test(QueueMachine, settings=PROFILE)


class CappedMachine(QueueMachine):
    """The same, where a user's jobs may hold two of the four GPUs at once, and those of anna and tom together three."""

    def __init__(self) -> None:
        super().__init__()
        self.daemon.state.caps = Caps((AccountCap("vision", ("anna", "tom"), 3),), max_gpus_per_user=2)

    @invariant()
    def caps_are_kept(self) -> None:
        """By the records of all jobs that hold GPUs."""
        held = Counter[str]()
        for job in self.daemon.state.active():
            held[job.owner.name] += job.spec.resources.gpus
        assert max(held.values(), default=0) <= 2, held
        assert held["anna"] + held["tom"] <= 3, held


@pytest.mark.usefixtures("few_ended")
def test_caps_hold_under_faults() -> None:
    """Neither crashes, lost messages, evictions nor stale placements let an account or user exceed a cap."""
    run_state_machine_as_test(CappedMachine, settings=settings(PROFILE, max_examples=PROFILE.max_examples // 2))


# --- planted mistakes -----------------------------------------------------------------------------------

FOUND_WITHIN = settings(
    PROFILE, max_examples=300, derandomize=True, phases=(Phase.generate,), report_multiple_bugs=False, print_blob=False
)


def unreachable_is_dead(patch: pytest.MonkeyPatch) -> None:
    """A node that does not answer ends its attempts."""
    reached = decide_nodes.reached

    def mistaken(state: ClusterState, request: NodeReached, now: Stamp) -> Any:
        events, actions, notes = reached(state, request, now)
        if request.reach is Reach.UNREACHABLE:
            for job in state.active():
                if job.attempt is not None and job.attempt.node == request.node:
                    lost = AttemptReport(node=request.node, attempt=job.attempt.id, phase="lost")
                    events += decide_attempts.report(state, lost, now)[0]
        return events, actions, notes

    patch.setitem(decide._RULES, NodeReached, mistaken)


def gone_spool_starts_again(patch: pytest.MonkeyPatch) -> None:
    """A running attempt of which the spool knows nothing is started again, and a new spool is not noticed."""
    ready = decide_nodes.ready

    def mistaken_ready(state: ClusterState, request: NodeReady, now: Stamp) -> Any:
        known = state.nodes.get(request.node.name, request.node)
        return ready(state, replace(request, node=replace(request.node, spool_id=known.spool_id)), now)

    def mistaken(job: Job, attempt: Attempt, request: AttemptReport) -> Any:
        lost = request.phase == "absent" and job.state is JobState.RUNNING
        return [], [StartAttempt(node=attempt.node, attempt=attempt.id, job=job.id)] if lost else [], []

    patch.setitem(decide._RULES, NodeReady, mistaken_ready)
    patch.setattr(decide_attempts, "_not_begun", mistaken)


def new_spool_means_not_begun(patch: pytest.MonkeyPatch) -> None:
    """The fence of an attempt whose spool is gone counts as proof that it had not begun."""
    patch.setattr(decide_nodes, "_evidence_lost", lambda job: [])


def stop_frees_gpus(patch: pytest.MonkeyPatch) -> None:
    """The GPUs of an attempt are free as soon as it is told to stop."""
    ordered = apply_module._APPLY[StopOrdered]

    def mistaken(state: ClusterState, event: StopOrdered, stamp: Stamp) -> Any:
        actions = ordered(state, event, stamp)
        attempt = state.jobs[event.job].attempt
        assert attempt is not None
        state.free(attempt.id, attempt.gpus)
        return actions

    patch.setitem(apply_module._APPLY, StopOrdered, mistaken)


def dead_node_frees_gpus(patch: pytest.MonkeyPatch) -> None:
    """The GPUs of a node that was declared dead are free when it comes back."""
    patch.setattr(ClusterState, "add_stray", lambda state, attempt, stray: None)


def submit_forgets_keys(patch: pytest.MonkeyPatch) -> None:
    """A submit that is repeated after a lost reply makes a second job."""
    patch.setitem(
        decide._RULES, Submit, lambda state, request, now: decide_jobs.submit(state, forget_key(state, request), now)
    )


def forget_key(state: ClusterState, request: Submit) -> Submit:
    state.keys.pop(request.key, None)
    return request


def cancelled_job_retries(patch: pytest.MonkeyPatch) -> None:
    """A cancelled job that fails before the order reaches it is tried again."""
    ended = decide_attempts._ended

    def mistaken(job: Job, attempt: Attempt, request: AttemptReport, now: Stamp) -> Any:
        return ended(job, replace(attempt, stop=None), request, now)

    patch.setattr(decide_attempts, "_ended", mistaken)


def lost_means_failed(patch: pytest.MonkeyPatch) -> None:
    """An attempt whose end nobody saw counts as a failure of the job, and is tried again."""

    def mistaken(job: Job, request: AttemptReport) -> Any:
        return decide_attempts._End(JobState.FAILED, Reason.NON_ZERO_EXIT_CODE, failed=True)

    patch.setattr(decide_attempts, "_lost", mistaken)


def unknown_is_success(patch: pytest.MonkeyPatch) -> None:
    """An attempt whose end nobody saw is COMPLETED."""
    patch.setattr(
        decide_attempts, "_lost", lambda job, request: decide_attempts._End(JobState.COMPLETED, Reason.NONE)
    )


def ended_keeps_spool(patch: pytest.MonkeyPatch) -> None:
    """Nobody tells the node that an end is durable."""
    ended = apply_module._APPLY[AttemptEnded]
    patch.setitem(apply_module._APPLY, AttemptEnded, lambda *given: ended(*given) and [])


def orders_are_not_repeated(patch: pytest.MonkeyPatch) -> None:
    """Orders lost with a link are not given again when the node says hello."""
    patch.setattr(decide_attempts, "reminders", lambda state, request: [])


def every_report_is_reminded(patch: pytest.MonkeyPatch) -> None:
    """Every report is answered with the orders given before, and every order with a report."""
    report = decide_attempts.report

    def mistaken(state: ClusterState, request: AttemptReport, now: Stamp) -> Any:
        events, actions, notes = report(state, request, now)
        return events, [*actions, *decide_attempts.reminders(state, request)], notes

    patch.setitem(decide._RULES, AttemptReport, mistaken)


def requeue_leaves_children(patch: pytest.MonkeyPatch) -> None:
    """Jobs that wait for a job do not notice that it runs again."""
    patch.setattr(ClusterState, "requeue_children", lambda state, job: None)


MISTAKES: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    unreachable_is_dead, gone_spool_starts_again, new_spool_means_not_begun, stop_frees_gpus, dead_node_frees_gpus,
    submit_forgets_keys, cancelled_job_retries, lost_means_failed, unknown_is_success, ended_keeps_spool,
    orders_are_not_repeated, every_report_is_reminded, requeue_leaves_children,
)  # fmt: skip


@pytest.mark.usefixtures("few_ended")
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_machine_finds_mistake(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine notices each planted mistake by what it leads to, without the core's own check of its indexes."""
    mistake(monkeypatch)
    monkeypatch.setattr(invariants, "check_invariants", lambda checked: None)
    with pytest.raises((AssertionError, GpuqError, pytest.fail.Exception)):
        run_state_machine_as_test(QueueMachine, settings=FOUND_WITHIN)
