"""When dependencies hold, may still hold, or never can, and what follows for the jobs that wait."""

from __future__ import annotations

import pytest

from gpuq.core.dependencies import Verdict, parents, settle, verdict, without_settled
from gpuq.core.events import JobDropped
from gpuq.core.model import Dependencies, Dependency, DependencyKind, Hold, JobId
from gpuq.core.requests import Cancel, DrainNode, Prune, ReleaseJobs, Requeue, Submit, Update
from gpuq.core.state import ClusterState
from gpuq.core.states import JobState, Reason
from gpuq.errors import NotFound, Refused, UsageError
from tests.builders import cluster, finish, job, node, place, spec, submit
from tests.core.machine_step import ANNA, ROOT, ask

S, K, V = JobState, DependencyKind, Verdict


def after(kind: DependencyKind, *jobs: str, any_of: bool = False, keep: bool = False) -> Dependencies:
    """Dependencies of one kind on several jobs."""
    terms = tuple(Dependency(kind=kind, job=JobId(id_)) for id_ in jobs)
    return Dependencies(terms=terms, any_of=any_of, keep_on_failed=keep)


def queue() -> ClusterState:
    """A node with four GPUs and no jobs."""
    return cluster(node("mill", "A100:4"))


def is_waiting(state: ClusterState, id_: JobId) -> bool:
    """Whether the planner sees the job."""
    return any(id_ in each for each in state.waiting.values())


@pytest.mark.parametrize(
    ("kind", "parent", "expected"),
    [
        (K.AFTER_OK, S.PENDING, V.WAITING),
        (K.AFTER_OK, S.RUNNING, V.WAITING),
        (K.AFTER_OK, S.COMPLETED, V.MET),
        (K.AFTER_OK, S.FAILED, V.NEVER),
        (K.AFTER_OK, S.CANCELLED, V.NEVER),
        (K.AFTER_CORR, S.COMPLETED, V.MET),
        (K.AFTER_CORR, S.TIMEOUT, V.NEVER),
        (K.AFTER_NOT_OK, S.RUNNING, V.WAITING),
        (K.AFTER_NOT_OK, S.COMPLETED, V.NEVER),
        (K.AFTER_NOT_OK, S.NODE_FAIL, V.MET),
        (K.AFTER_ANY, S.COMPLETING, V.WAITING),
        (K.AFTER_ANY, S.COMPLETED, V.MET),
        (K.AFTER_ANY, S.OUT_OF_MEMORY, V.MET),
        (K.AFTER, S.PENDING, V.WAITING),
        (K.AFTER, S.CONFIGURING, V.WAITING),
        (K.AFTER, S.RUNNING, V.MET),
        (K.AFTER, S.CANCELLED, V.MET),
    ],
)
def test_one_term_by_the_state_of_its_parent(kind: DependencyKind, parent: JobState, expected: Verdict) -> None:
    """Each kind follows Slurm's rule."""
    assert settle(kind, parent) is expected


def test_all_terms_must_hold_unless_any_is_enough() -> None:
    """One completed and one waiting parent: all waits, any is met; one failed parent: all never, any waits."""
    state = queue()
    done, waits, failed = submit(state), submit(state), submit(state)
    place(state, done, "mill")
    finish(state, done)
    place(state, failed, "mill")
    finish(state, failed, code=1)
    both = submit(state, dependencies=after(K.AFTER_OK, done, waits))
    either = submit(state, dependencies=after(K.AFTER_OK, done, waits, any_of=True))
    hopeless = submit(state, dependencies=after(K.AFTER_OK, failed, waits))
    hopeful = submit(state, dependencies=after(K.AFTER_OK, failed, waits, any_of=True))
    found = [verdict(state, job(state, id_)) for id_ in (both, either, hopeless, hopeful)]
    assert found == [V.WAITING, V.MET, V.NEVER, V.WAITING]


def test_an_array_counts_as_a_whole() -> None:
    """afterok wants every task completed; afternotok is met by one that was not, once all have ended."""
    state = queue()
    array = submit(state, tasks=2)
    good = submit(state, dependencies=after(K.AFTER_OK, array))
    bad = submit(state, dependencies=after(K.AFTER_NOT_OK, array))
    place(state, f"{array}_0", "mill")
    finish(state, f"{array}_0")
    assert [verdict(state, job(state, id_)) for id_ in (good, bad)] == [V.WAITING, V.WAITING]
    place(state, f"{array}_1", "mill")
    finish(state, f"{array}_1", code=3)
    assert [verdict(state, job(state, id_)) for id_ in (good, bad)] == [V.NEVER, V.MET]


def test_aftercorr_pairs_tasks_of_the_same_index() -> None:
    """Each task looks at its counterpart only; one without a counterpart can never run."""
    state = queue()
    first = submit(state, tasks=2)
    second = submit(state, tasks=3, dependencies=after(K.AFTER_CORR, first))
    place(state, f"{first}_1", "mill")
    finish(state, f"{first}_1")
    found = [verdict(state, job(state, f"{second}_{task}")) for task in range(3)]
    assert found == [V.WAITING, V.MET, V.NEVER]
    assert parents(job(state, f"{second}_1")) == {f"{first}_1"}


def test_a_singleton_runs_alone_and_in_order() -> None:
    """Jobs of one owner and name run one at a time, oldest first; other names and owners do not matter."""
    state = queue()
    alone = Dependencies(terms=(Dependency(kind=K.SINGLETON),))
    first, second = submit(state, dependencies=alone), submit(state, dependencies=alone)
    other = submit(state, owner="tom", dependencies=alone)
    assert [is_waiting(state, id_) for id_ in (first, second, other)] == [True, False, True]
    place(state, first, "mill")
    assert not is_waiting(state, second)
    finish(state, first, code=1)
    assert is_waiting(state, second)


def test_a_failed_parent_takes_all_levels_below_it_down() -> None:
    """Children, and theirs, end as CANCELLED with the reason; one that asked to be kept is held."""
    state = queue()
    top = submit(state)
    middle = submit(state, dependencies=after(K.AFTER_OK, top))
    bottom = submit(state, dependencies=after(K.AFTER_OK, middle))
    kept = submit(state, dependencies=after(K.AFTER_OK, top, keep=True))
    ask(state, Cancel(jobs=(top,), by=ANNA))
    for id_ in (middle, bottom):
        assert (job(state, id_).state, job(state, id_).reason) == (S.CANCELLED, Reason.DEPENDENCY_NEVER_SATISFIED)
    assert (job(state, kept).state, job(state, kept).held) == (S.PENDING, Hold.DEPENDENCY)


def test_parents_that_end_together_drop_a_child_once() -> None:
    """Cancelling a whole array, or parent and child at once, leaves one end per job."""
    state = queue()
    array = submit(state, tasks=3)
    child = submit(state, dependencies=after(K.AFTER_OK, array))
    grandchild = submit(state, dependencies=after(K.AFTER_OK, child))
    done = ask(state, Cancel(jobs=(array, child), by=ANNA))
    ended = [event.job for event in done.events if isinstance(event, JobDropped)]
    assert sorted(ended) == sorted([*state.tasks[array], child, grandchild])


def test_a_submit_with_a_hopeless_parent_ends_at_once() -> None:
    """A dependency on a failed job, known here or only to the archive, or both, ends the new job exactly once."""
    state = queue()
    failed = submit(state)
    ask(state, Cancel(jobs=(failed,), by=ANNA))
    wanted = spec(dependencies=after(K.AFTER_OK, failed, "900"))
    done = ask(state, Submit(spec=wanted, by=ANNA, ended_elsewhere=((JobId("900"), S.FAILED),)))
    assert done.kinds() == ["JobsSubmitted", "JobDropped"]


def test_a_requeued_parent_is_waited_for_again() -> None:
    """Once the parent is to run again, its child is no longer offered to the planner."""
    state = queue()
    parent = submit(state)
    child = submit(state, dependencies=after(K.AFTER_OK, parent))
    place(state, parent, "mill")
    finish(state, parent)
    assert is_waiting(state, child)
    ask(state, Requeue(jobs=(parent,), by=ANNA))
    assert not is_waiting(state, child)


def test_parent_and_child_may_be_requeued_together() -> None:
    """In whatever order they are named, the child waits for its parent and is not dropped."""
    state = queue()
    parent = submit(state)
    child = submit(state, dependencies=after(K.AFTER_OK, parent))
    ask(state, Cancel(jobs=(parent,), by=ANNA))
    assert job(state, child).state is S.CANCELLED
    ask(state, Requeue(jobs=(child, parent), by=ANNA))
    assert job(state, child).state is S.PENDING
    assert not is_waiting(state, child)


def test_a_requeued_child_of_a_failed_parent_ends_at_once() -> None:
    """It does not wait for ever for what cannot come."""
    state = queue()
    parent = submit(state)
    child = submit(state, dependencies=after(K.AFTER_OK, parent))
    ask(state, Cancel(jobs=(parent,), by=ANNA))
    ask(state, Requeue(jobs=(child,), by=ANNA))
    assert job(state, child).reason is Reason.DEPENDENCY_NEVER_SATISFIED


def test_what_has_held_once_holds_for_a_further_attempt() -> None:
    """A parent may be forgotten while its child runs, and the child may still be tried again."""
    state = queue()
    parent = submit(state)
    child = submit(state, dependencies=after(K.AFTER_OK, parent))
    place(state, parent, "mill")
    finish(state, parent)
    place(state, child, "mill")
    ask(state, Prune(jobs=(parent,), by=ANNA))
    finish(state, child, code=1)
    ask(state, Requeue(jobs=(child,), by=ANNA))
    assert is_waiting(state, child)


def test_a_kept_child_may_be_released_when_its_parent_may_succeed_again() -> None:
    """While the dependency is dead a release is refused; after the parent's requeue it is not."""
    state = queue()
    parent = submit(state)
    child = submit(state, dependencies=after(K.AFTER_OK, parent, keep=True))
    ask(state, Cancel(jobs=(parent,), by=ANNA))
    with pytest.raises(Refused) as caught:
        ask(state, ReleaseJobs(jobs=(child,), by=ANNA))
    assert child in (caught.value.hint or "")
    ask(state, Requeue(jobs=(parent,), by=ANNA))
    ask(state, ReleaseJobs(jobs=(child,), by=ANNA))
    assert job(state, child).held is None


def test_a_new_name_moves_a_job_between_singletons() -> None:
    """Renaming the one that comes first lets the second go."""
    state = queue()
    alone = Dependencies(terms=(Dependency(kind=K.SINGLETON),))
    first, second = submit(state), submit(state, dependencies=alone)
    assert not is_waiting(state, second)
    ask(state, Update(jobs=(first,), by=ANNA, changes={"name": "other"}))
    assert is_waiting(state, second)


def test_an_unknown_parent_is_refused() -> None:
    """A typing mistake in a dependency makes no job."""
    state = queue()
    with pytest.raises(NotFound) as caught:
        ask(state, Submit(spec=spec(dependencies=after(K.AFTER_OK, "77")), by=ANNA))
    assert "77" in caught.value.message
    assert not state.jobs


def test_aftercorr_needs_an_array() -> None:
    """A single job has no index to pair."""
    state = queue()
    parent = submit(state, tasks=2)
    with pytest.raises(UsageError):
        ask(state, Submit(spec=spec(dependencies=after(K.AFTER_CORR, parent)), by=ANNA))


@pytest.mark.parametrize(
    ("any_of", "ends", "terms_left", "expected"),
    [
        (False, {"1": S.COMPLETED}, 1, V.WAITING),
        (False, {"1": S.FAILED}, 1, V.NEVER),
        (False, {"1": S.COMPLETED, "2": S.COMPLETED}, 0, V.WAITING),
        (True, {"1": S.FAILED}, 1, V.WAITING),
        (True, {"1": S.COMPLETED}, 0, V.WAITING),
        (True, {"1": S.FAILED, "2": S.FAILED}, 0, V.NEVER),
    ],
)
def test_parents_in_the_archive_are_settled(
    any_of: bool, ends: dict[str, JobState], terms_left: int, expected: Verdict
) -> None:
    """Their terms go, and NEVER is said when what is gone makes the whole impossible."""
    ended = {JobId(id_): final for id_, final in ends.items()}
    rest, found = without_settled(after(K.AFTER_OK, "1", "2", any_of=any_of), ended)
    assert (len(rest.terms), found) == (terms_left, expected)


def test_no_unrelated_request_drops_a_waiting_child() -> None:
    """A drain touches no dependency."""
    state = queue()
    child = submit(state, dependencies=after(K.AFTER_OK, submit(state)))
    assert ask(state, DrainNode(node=state.nodes[next(iter(state.nodes))].name, reason="fan", by=ROOT)).kinds() == [
        "NodeDrained"
    ]
    assert job(state, child).state is S.PENDING
