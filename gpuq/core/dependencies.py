"""When the dependencies of a pending job hold, may still hold, or never can. Imports model and states.

One thing to know: a dependency on a job that has left the state is settled at submission (only its final state
matters then), and a parent cannot leave the state while a pending job depends on it. It may leave once the job was
placed: then the dependency did hold, and holds for a further attempt.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING

from gpuq.core.model import Dependencies, Dependency, DependencyKind, Job, JobId
from gpuq.core.states import JobState

if TYPE_CHECKING:
    from gpuq.core.state import ClusterState


class Verdict(Enum):
    """What is known of a dependency."""

    MET = "met"
    WAITING = "waiting"
    NEVER = "never"


def singleton_key(job: Job) -> JobId:
    """The pseudo parent of all jobs with a singleton dependency on this job's owner and name."""
    return JobId(f"singleton:{job.owner.name}:{job.spec.name}")


def parents(job: Job) -> set[JobId]:
    """The ids a job's dependencies name: jobs, arrays, or the pseudo parent of a singleton."""
    found = set()
    for term in job.spec.dependencies.terms:
        if term.kind is DependencyKind.SINGLETON:
            found.add(singleton_key(job))
        elif term.kind is DependencyKind.AFTER_CORR and job.task is not None:
            found.add(JobId(f"{term.job}_{job.task}"))
        else:
            found.add(term.job)
    return found


def verdict(state: ClusterState, job: Job) -> Verdict:
    """Whether all (or any, as asked) of the job's dependencies hold."""
    terms = job.spec.dependencies.terms
    if not terms:
        return Verdict.MET
    found = [_term(state, job, term) for term in terms]
    wanted, hopeless = (any, all) if job.spec.dependencies.any_of else (all, any)
    if wanted(each is Verdict.MET for each in found):
        return Verdict.MET
    if hopeless(each is Verdict.NEVER for each in found):
        return Verdict.NEVER
    return Verdict.WAITING


def settle(kind: DependencyKind, parent: JobState) -> Verdict:
    """The verdict of one term about a parent in the given state (started or not aside)."""
    if kind in (DependencyKind.AFTER_OK, DependencyKind.AFTER_CORR):
        if parent is JobState.COMPLETED:
            return Verdict.MET
        return Verdict.NEVER if parent.is_final else Verdict.WAITING
    if kind is DependencyKind.AFTER_NOT_OK:
        if parent is JobState.COMPLETED:
            return Verdict.NEVER
        return Verdict.MET if parent.is_final else Verdict.WAITING
    if kind is DependencyKind.AFTER:
        return Verdict.WAITING if parent in (JobState.PENDING, JobState.CONFIGURING) else Verdict.MET
    return Verdict.MET if parent.is_final else Verdict.WAITING


def _term(state: ClusterState, job: Job, term: Dependency) -> Verdict:
    if term.kind is DependencyKind.SINGLETON:
        return _singleton(state, job)
    target = term.job
    if term.kind is DependencyKind.AFTER_CORR and job.task is not None:
        target = JobId(f"{term.job}_{job.task}")
    members = state.members(target)
    if not members:
        return Verdict.NEVER if job.attempt is None else Verdict.MET
    return _all_of(term.kind, (state.jobs[id_].state for id_ in members))


def _all_of(kind: DependencyKind, states: Iterable[JobState]) -> Verdict:
    """An array counts as a whole: afterok wants every task completed, afternotok at least one that was not."""
    found = {settle(kind, each) for each in states}
    if kind is DependencyKind.AFTER_NOT_OK and Verdict.WAITING not in found:
        return Verdict.MET if Verdict.MET in found else Verdict.NEVER
    if Verdict.NEVER in found and kind is not DependencyKind.AFTER_NOT_OK:
        return Verdict.NEVER
    return Verdict.WAITING if Verdict.WAITING in found else Verdict.MET


def _singleton(state: ClusterState, job: Job) -> Verdict:
    """Slurm's rule: one job at a time of this owner and name, in the order of submission."""
    same = (
        other
        for other in state.jobs.values()
        if other.id != job.id
        and other.owner.name == job.owner.name
        and other.spec.name == job.spec.name
        and not other.state.is_final
        and (other.state.holds_gpus or other.order < job.order)
    )
    return Verdict.MET if next(same, None) is None else Verdict.WAITING


def without_settled(dependencies: Dependencies, ended: dict[JobId, JobState]) -> tuple[Dependencies, Verdict]:
    """Drop terms about jobs that only the archive knows, by their final state.

    Returns the terms that are left and NEVER when the dropped ones make the whole impossible.
    """
    left: list[Dependency] = []
    found: list[Verdict] = []
    for term in dependencies.terms:
        state = ended.get(term.job)
        if state is None:
            left.append(term)
        else:
            found.append(settle(term.kind, state))
    any_of = dependencies.any_of
    if any_of and Verdict.MET in found:
        left = []
    impossible = (
        Verdict.NEVER in found if not any_of else bool(found) and not left and Verdict.MET not in found
    )
    rest = Dependencies(terms=tuple(left), any_of=any_of, keep_on_failed=dependencies.keep_on_failed)
    return rest, Verdict.NEVER if impossible else Verdict.WAITING
