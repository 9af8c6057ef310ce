"""Which GPUs a model counts together. Imports problem.

One thing to know: with more than a few machines those of one type are one lane. Whether the free GPUs of a lane are on
one machine is then left to the list planner, which plans what the solver orders.
"""

from __future__ import annotations

from typing import Final

from gpuq.core.model import GpuUuid, NodeName
from gpuq.core.problem import Problem, Queue, Site

MOST_LANES: Final = 3  # machines of a type are taken together when there are more


class Lanes:
    """The GPUs that the model counts together."""

    def __init__(self, problem: Problem, queues: list[Queue]) -> None:
        self._problem = problem
        sites = {id(queue.sites): queue.sites for queue in queues}.values()
        flat = [site for group in sites for site in group]
        machines = {(site.machine, site.type) for site in flat}
        self._by_type = len(machines) > MOST_LANES or any(site.spans for site in flat)
        self._number: dict[tuple[int, str], int] = {}
        members: list[set[int]] = []
        speeds: list[list[float]] = []
        for site in flat:
            lane = self._number.setdefault(self._key(site), len(members))
            if lane == len(members):
                members.append(set())
                speeds.append([])
            members[lane].update(site.slots)
            speeds[lane].append(site.speed)
        self.slots = [tuple(sorted(found)) for found in members]
        mean = [sum(found) / len(found) for found in speeds]
        total = sum(len(slots) * speed for slots, speed in zip(self.slots, mean, strict=True))
        self._shares = [speed / total for speed in mean]
        self._uuids: dict[int, frozenset[GpuUuid]] = {}

    def _key(self, site: Site) -> tuple[int, str]:
        return (-1 if self._by_type else site.machine, site.type)

    def lane(self, site: Site) -> int:
        """The lane of a site."""
        return self._number[self._key(site)]

    def of(self, queue: Queue) -> list[int]:
        """The lanes a queue can use, fastest first."""
        return list(dict.fromkeys(self.lane(site) for site in queue.sites))

    def sites_of(self, queue: Queue, option: int) -> frozenset[int]:
        """The sites of a queue that belong to its option of this number."""
        lane = self.of(queue)[option]
        return frozenset(at for at, site in enumerate(queue.sites) if self.lane(site) == lane)

    def share_of_speed(self, lane: int) -> float:
        """How much of the speed of all lanes one GPU of this lane has."""
        return self._shares[lane]

    def holds(self, site: Site, node: NodeName, gpus: tuple[GpuUuid, ...]) -> bool:
        """Whether these GPUs are of the site."""
        if not site.spans and self._problem.machines[site.machine].node != node:
            return False
        known = self._uuids.get(id(site))
        if known is None:
            known = self._uuids[id(site)] = frozenset(self._problem.slots[slot].gpu.uuid for slot in site.slots)
        return known.issuperset(gpus)
