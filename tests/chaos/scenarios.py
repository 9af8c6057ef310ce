"""What people do, as scripts: each runs against a Laboratory that may die under it at any moment.

May import: laboratory. One thing to know: there is one GPU, so in each script the second job can only start when
nothing of the first one is left, and its lock on the GPU testifies to that.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.chaos.laboratory import Laboratory

LIMIT_S = 0.3


def finish(laboratory: Laboratory) -> None:
    """One job fails with its own code, the next one succeeds."""
    laboratory.submit(run_s=0.05, code=3)
    laboratory.submit()


def cancel(laboratory: Laboratory) -> None:
    """A job that ignores SIGTERM, and its child in a session of its own, are cancelled while another one waits."""
    first = laboratory.submit(run_s=60, mode="family")
    laboratory.submit()
    laboratory.has_begun(first)
    laboratory.cancel(first)


def timeout(laboratory: Laboratory) -> None:
    """A job that ignores SIGTERM meets its time limit while another one waits."""
    laboratory.submit(run_s=60, mode="stubborn", time_limit_s=LIMIT_S).disturbed = True
    laboratory.submit()


def requeue(laboratory: Laboratory) -> None:
    """A running job is told to run again; its second start is a short one."""
    first = laboratory.submit(run_s=0.05, mode="twice")
    laboratory.has_begun(first)
    laboratory.requeue(first)


def preempt(laboratory: Laboratory) -> None:
    """A job in free time gives way to another one; its second start is a short one."""
    first = laboratory.submit(run_s=0.05, mode="twice", preemptible=True)
    first.disturbed = True
    laboratory.has_begun(first)
    laboratory.submit()


SCENARIOS: dict[str, Callable[[Laboratory], None]] = {
    "finish": finish, "cancel": cancel, "timeout": timeout, "requeue": requeue,
    "preempt": preempt,
}  # fmt: skip
