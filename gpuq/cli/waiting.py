"""Waiting for jobs, and the exit code that comes of it. Imports client and errors.

One thing to know: the daemon says when a job has ended and with which code; nothing here knows a list of states.
"""

from __future__ import annotations

import time
from typing import Any, Final

from gpuq.cli.client import Daemon
from gpuq.errors import DaemonUnreachable

TIME_OVER: Final = 124
POLL_S: Final = 25.0  # one long poll; the daemon takes at most 30
AWAY_FOR_S: Final = 300.0  # a daemon that restarts or is upgraded meanwhile does not end the wait


def wait_for(daemon: Daemon, ids: list[str], until: float | None = None, any_of: bool = False) -> list[dict[str, Any]]:
    """The jobs, once all of them (or with `any_of` one) have ended; empty when `until` (monotonic) came first."""
    answered_at: float | None = None
    while True:
        left_s = POLL_S if until is None else min(POLL_S, until - time.monotonic())
        if left_s < 0:
            return []
        query = {"ids": ",".join(ids), "timeout_s": f"{left_s:.3f}", "any": "1" if any_of else None}
        try:
            answer = daemon.get("/v1/wait", query, timeout_s=POLL_S + 30)
        except DaemonUnreachable:
            if answered_at is None or time.monotonic() - answered_at > AWAY_FOR_S:
                raise
            time.sleep(0.5)
            continue
        answered_at = time.monotonic()
        if answer["done"]:
            jobs: list[dict[str, Any]] = answer["jobs"]
            return jobs


def exit_code(jobs: list[dict[str, Any]]) -> int:
    """The largest exit code of `jobs`; 1 for one whose code nobody knows."""
    codes = [job.get("wait_exit_code") for job in jobs]
    return max((1 if code is None else int(code) for code in codes), default=0)
