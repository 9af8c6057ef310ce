"""A death, or an error of the disk, at every failpoint there is, in each of four scripts; no promise may break.

One thing to know: a point fires once over all processes and leaves a file of its name, so each run also proves that the
point it is about was reached; `test_every_point_is_in_the_plan` proves that no point is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from gpuq.agent import failpoints as of_agent
from gpuq.journal import failpoints as of_daemon
from tests.chaos.laboratory import Laboratory
from tests.chaos.scenarios import SCENARIOS
from tests.e2e.harness import eventually

pytestmark = pytest.mark.chaos

POINTS = (*of_daemon.ALL, *of_agent.ALL)
SNAPSHOTS = ("journal.before_snapshot", "journal.after_snapshot")
COMMITS = (
    "journal.before_commit", "journal.after_commit", "journal.before_highwater", "journal.after_highwater",
    "daemon.after_decide", "daemon.before_answer",
)  # fmt: skip
# Which commits a script dies in: those of a submit, a placement, a start, a stop, an end, in turn.
HITS = {"finish": (2, 6), "cancel": (3, 6), "timeout": (4, 7), "requeue": (5, 7), "preempt": (6, 7)}
NOT_REACHED = {
    "finish": ("daemon.before_stop", "shim.before_term", "shim.before_kill"),
    "cancel": (),
    "timeout": ("daemon.before_stop",),
    "requeue": ("shim.before_kill",),
    "preempt": tuple(point for point in POINTS if point not in COMMITS and not point.endswith(".before_stop")),
}
ONCE = ("forker.before_fork", "forker.after_fork", "shim.before_term", "shim.before_kill", "daemon.before_stop")
# Where a death or an error can cost a job its exit status, or its start: then the end must be an honest one.
COSTLY_DEATHS = tuple(
    point for point in of_agent.ALL
    if point.startswith("shim.") and point not in ("shim.before_claim", "shim.after_exit_record")
)  # fmt: skip
COSTLY_ERRORS = (
    "agent.before_mkdir", "agent.after_mkdir", "agent.after_spec", "agent.before_fork_request", *COSTLY_DEATHS,
)  # fmt: skip
ERRORS = (
    ("journal.before_commit", "enospc", 2), ("journal.before_commit", "eio", 2), ("journal.before_commit", "eio", 3),
    ("journal.before_commit", "enospc", 5), ("journal.before_commit", "eio", 6), ("journal.after_commit", "eio", 4),
    ("journal.before_highwater", "enospc", 3), ("journal.before_highwater", "eio", 5),
    ("journal.after_highwater", "eio", 2),
    *((point, "enospc", 1) for point in of_agent.ALL if point not in ("shim.before_term", "shim.before_kill")),
    *((point, "eio", 1) for point in ("shim.before_term", "shim.before_kill", "agent.after_release")),
)  # fmt: skip


class Run(NamedTuple):
    """One run: the point, what happens there, at which hit (0: the first), in which script."""

    point: str
    action: str
    hit: int
    scenario: str

    @property
    def fault(self) -> str:
        """As GPUQ_FAILPOINTS has it."""
        return f"{self.point}={self.action}" + (f"@{self.hit}" if self.hit else "")

    @property
    def is_costly(self) -> bool:
        """Whether the jobs' ends are no longer foretold."""
        return self.point in (COSTLY_DEATHS if self.action in ("kill", "exit") else COSTLY_ERRORS)


def deaths() -> Iterator[Run]:
    """A kill at every point in every script that reaches it; commits are met at several places."""
    for scenario in SCENARIOS:
        for point in POINTS:
            if point in NOT_REACHED[scenario] or point in SNAPSHOTS:
                continue
            if point in COMMITS:
                yield from (Run(point, "kill", hit, scenario) for hit in HITS[scenario])
            else:
                yield Run(point, "kill", 2 if scenario == "requeue" and point not in ONCE else 0, scenario)


def errors() -> Iterator[Run]:
    """A full disk or an input/output error where one can happen."""
    for point, action, hit in ERRORS:
        yield Run(point, action, hit, "cancel" if point in ("shim.before_term", "shim.before_kill") else "finish")


def _names(runs: Iterator[Run]) -> list[pytest.param]:  # type: ignore[valid-type]
    return [pytest.param(run, id=f"{run.scenario}-{run.fault}") for run in runs]


def check(laboratory: Laboratory, run: Run) -> None:
    """Play the script to its end; the fault must have happened, and every promise must have been kept."""
    SCENARIOS[run.scenario](laboratory)
    for promise in laboratory.promises:
        promise.disturbed |= run.is_costly
    violations = laboratory.settle() + laboratory.unreleased() + laboratory.violations()
    assert violations == [], "\n".join(violations)
    assert (laboratory.directory / "faults" / run.point).exists(), f"{run.point} was not reached"


@pytest.mark.parametrize("run", _names(deaths()))
def test_death(laboratory: Callable[..., Laboratory], run: Run) -> None:
    """Whoever reaches the point is killed: nothing acknowledged is lost, nothing runs twice, no end is made up."""
    check(laboratory(run.fault).start(), run)


@pytest.mark.parametrize("run", _names(errors()))
def test_error(laboratory: Callable[..., Laboratory], run: Run) -> None:
    """A failing disk gives a refusal or a job that honestly failed; then all goes on."""
    check(laboratory(run.fault).start(), run)


@pytest.mark.parametrize("action", ["kill", "exit", "enospc", "eio"])
@pytest.mark.parametrize("point", SNAPSHOTS)
def test_snapshot(laboratory: Callable[..., Laboratory], point: str, action: str) -> None:
    """A snapshot between two commits fails or is the last thing a daemon does: no commit and no action is lost."""
    run = Run(point, action, 0, "finish")
    check(laboratory(run.fault, constants={"gpuq.daemon.loop.SNAPSHOT_EVERY": 3}).start(), run)


@pytest.mark.parametrize("point", SNAPSHOTS)
def test_death_while_stopping(laboratory: Callable[..., Laboratory], point: str) -> None:
    """A daemon that is killed while it writes its last snapshot knows everything when it starts again."""
    lab = laboratory(f"{point}=kill").start()
    SCENARIOS["finish"](lab)
    assert lab.settle() == []
    lab.restart()
    assert lab.violations() == []
    assert (lab.directory / "faults" / point).exists()


def test_a_report_that_was_not_taken_is_asked_for_again(laboratory: Callable[..., Laboratory]) -> None:
    """When the start of a job cannot be written down, the job is seen to run as soon as writing works again."""
    lab = laboratory("journal.before_commit=eio@4", constants={"gpuq.daemon.connection.RESEND_S": 0.3}).start()
    promise = lab.submit(run_s=-1)
    lab.is_running(promise)
    assert (lab.directory / "faults" / "journal.before_commit").exists()
    lab.let_go(promise)
    assert lab.settle() + lab.violations() == []


def test_an_agent_that_ends_spares_the_groups_of_a_job_that_starts(laboratory: Callable[..., Laboratory]) -> None:
    """The node's control groups are not removed under a shim that is about to put its job into them."""
    lab = laboratory("shim.before_claim=delay:700").start()
    groups = Path(str(lab.queue.node_ready()["containment_detail"]).rpartition(" at ")[2])
    if not groups.is_absolute():
        pytest.skip("this machine has no control groups that jobs can be put into")
    lab.submit(code=5)
    eventually((lab.directory / "faults" / "shim.before_claim").exists, "a shim is about to claim")
    lab.kill_daemon(revive=False)
    assert groups.is_dir()
    lab.start()
    assert lab.settle() + lab.violations() == []


def test_every_point_is_in_the_plan() -> None:
    """Each failpoint that exists is met by a death in at least one run, and the script that reaches it is named."""
    planned = {run.point for run in deaths()} | set(SNAPSHOTS)
    assert planned == set(POINTS)
    assert {point for points in NOT_REACHED.values() for point in points} <= set(POINTS)
    assert {point for point, _, _ in ERRORS} <= set(POINTS)
