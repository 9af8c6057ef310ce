"""The simulated machines, and where a job fits. Imports errors.

A job of no more GPUs than a node has sits on one node, the fullest that takes it; a larger one takes whole nodes, and
for what is left over a part of one more.

One thing to know: a Board counts free GPUs per node and nothing else. Which of them a job gets does not matter to any
policy; the drawing gives them numbers afterwards.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gpuq.errors import UsageError

Placement = tuple[tuple[int, int], ...]  # (node, GPUs there)
MOST_NODES = 10_000


class Cluster(NamedTuple):
    """Nodes of GPUs of one type each."""

    types: tuple[str, ...]
    node_types: tuple[int, ...]  # per node, position in types
    node_gpus: tuple[int, ...]  # per node

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return sum(self.node_gpus)

    def gpus_of(self, type_: int) -> int:
        """GPUs of one type."""
        return sum(gpus for node, gpus in enumerate(self.node_gpus) if self.node_types[node] == type_)

    def has_room(self, gpus: int, type_: int) -> bool:
        """Whether a job of that many GPUs fits on a type when nothing runs."""
        return gpus <= self.gpus_of(type_) and Board(self).find(gpus, type_) is not None


def parse_cluster(text: str, nodes_of: int = 8) -> Cluster:
    """"A100:16,V100:8" in nodes of `nodes_of`; the last node of a type takes what is left over. Raises UsageError."""
    types: list[str] = []
    node_types: list[int] = []
    node_gpus: list[int] = []
    if nodes_of < 1:
        raise UsageError(f"Nodes of {nodes_of} GPUs cannot be.", "Give --nodes-of a number of at least 1.")
    for part in text.split(","):
        match = re.fullmatch(r"\s*([A-Za-z][\w.-]*)\s*:\s*(\d{1,6})\s*", part)
        if match is None or int(match[2]) == 0:
            raise UsageError(f"--gpus: '{part.strip()}' is not TYPE:COUNT.", "Write for example --gpus A100:16,V100:8.")
        if match[1] in types:
            raise UsageError(f"--gpus names {match[1]} twice.", "Give each type once, with all its GPUs.")
        types.append(match[1])
        left = int(match[2])
        while left:
            node_types.append(len(types) - 1)
            node_gpus.append(min(nodes_of, left))
            left -= node_gpus[-1]
    if len(node_gpus) > MOST_NODES:
        raise UsageError(f"{len(node_gpus):,} nodes are more than can be simulated.", f"Give at most {MOST_NODES:,}.")
    return Cluster(tuple(types), tuple(node_types), tuple(node_gpus))


class Board:
    """Free GPUs per node."""

    __slots__ = ("by_type", "cluster", "free", "left")

    def __init__(self, cluster: Cluster, free: list[int] | None = None) -> None:
        self.cluster = cluster
        self.free = list(cluster.node_gpus) if free is None else free
        self.by_type = [
            [node for node, type_ in enumerate(cluster.node_types) if type_ == wanted]
            for wanted in range(len(cluster.types))
        ]
        self.left = [sum(self.free[node] for node in nodes) for nodes in self.by_type]  # per type

    def copy(self) -> Board:
        """An independent board of the same contents."""
        other = Board.__new__(Board)
        other.cluster, other.by_type = self.cluster, self.by_type
        other.free, other.left = self.free.copy(), self.left.copy()
        return other

    def find(self, gpus: int, type_: int) -> Placement | None:
        """The best fit for that many GPUs of a type, or None."""
        if self.left[type_] < gpus:
            return None
        free, best, best_free = self.free, -1, 1 << 30
        for node in self.by_type[type_]:
            here = free[node]
            if gpus <= here < best_free:
                if here == gpus:
                    return ((node, gpus),)
                best, best_free = node, here
        if best >= 0:
            return ((best, gpus),)
        return self._find_whole_nodes(gpus, type_)

    def _find_whole_nodes(self, gpus: int, type_: int) -> Placement | None:
        sizes = self.cluster.node_gpus
        most = max(sizes[node] for node in self.by_type[type_])
        if gpus <= most:
            return None
        found: list[tuple[int, int]] = []
        for node in self.by_type[type_]:
            if self.free[node] == sizes[node] == most and gpus >= most:
                found.append((node, most))
                gpus -= most
        if gpus >= most:
            return None
        if gpus:
            taken = {node for node, _ in found}
            rest = [node for node in self.by_type[type_] if self.free[node] >= gpus and node not in taken]
            if not rest:
                return None
            found.append((min(rest, key=lambda node: self.free[node]), gpus))
        return tuple(found)

    def fits(self, placement: Placement) -> bool:
        """Whether these very GPUs are free."""
        return all(self.free[node] >= count for node, count in placement)

    def take(self, placement: Placement) -> None:
        """They are free no more."""
        for node, count in placement:
            self.free[node] -= count
            self.left[self.cluster.node_types[node]] -= count

    def give(self, placement: Placement) -> None:
        """They are free again."""
        for node, count in placement:
            self.free[node] += count
            self.left[self.cluster.node_types[node]] += count
