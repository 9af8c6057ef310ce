"""What the socket's handlers work with: the loop, the fleet, the planner, and a few facts. Imports those."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuq.core.model import JobId, User
from gpuq.core.state import ClusterState
from gpuq.core.states import JobState
from gpuq.daemon import launch

Json = dict[str, Any]

if TYPE_CHECKING:
    from gpuq.daemon.fleet import Fleet
    from gpuq.daemon.loop import Loop
    from gpuq.daemon.planner import DaemonPlanner
    from gpuq.journal.store import Journal


class Call(NamedTuple):
    """One request as handlers see it."""

    by: User
    path: dict[str, str]
    query: dict[str, str]
    body: Json


@dataclass
class Desk:
    """The parts a handler may read, and the loop it asks."""

    loop: Loop
    journal: Journal
    fleet: Fleet
    planner: DaemonPlanner
    places: launch.Places
    home: Path
    socket: Path
    log_path: Path
    started_at: float
    warnings: tuple[str, ...] = ()
    config_file: str | None = None
    stated: frozenset[str] = frozenset()  # what it says: "section.field"
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def state(self) -> ClusterState:
        """The state as it is now; never changed from here."""
        return self.loop.state

    @property
    def trouble(self) -> str | None:
        """Why no new work is taken, in a sentence; None when all is well."""
        if self.loop.degraded is None and self.journal.low_space:
            return f"The disk that holds {self.home} is nearly full: no new work is taken. Running jobs go on."
        return self.loop.degraded

    @property
    def steady_s(self) -> float:
        """This moment on the steady clock."""
        return self.loop.clock.now().steady_s

    def archived_states(self, ids: list[JobId]) -> dict[JobId, JobState]:
        """Final states of jobs that are only in the archive."""
        return self.journal.archived_states(ids)
