"""Placing fractions of GPUs on a large cluster: how much of it can be allocated (FGD: Weng et al., ATC 2023, fig. 9a).

Pods are drawn until their requests reach 130% of the GPUs and placed one after another; none departs. Rules:

    random    any node with room, any of its GPUs with room
    best_fit  the node with least left over (CPUs and GPUs, each against the largest node), its fullest GPU with room
    fgd       the place by which the expected fragmentation grows least

Fragmentation of node n for pods of class m: all of its free GPUs if m finds no room there, else those parts of GPUs
that are smaller than what m needs of one. Expected: weighted by how common m is in the workload.

One thing to know: a node's fragmentation depends on nothing but itself, so only nodes that changed since a class of
pods was last placed are looked at again. GPUs are counted in thousandths.
"""

from __future__ import annotations

import csv
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

WHOLE = 1000  # thousandths of a GPU
TARGET = 1.3  # requests over GPUs
MOST_CLASSES = 60
Array = np.ndarray[Any, np.dtype[Any]]


class Pod(NamedTuple):
    """What one pod asks for; need: thousandths of each of its GPUs."""

    cpu_milli: int
    mem_mib: int
    gpus: int
    need: int


class Nodes:
    """What is free on each node."""

    def __init__(self, cpu_milli: list[int], mem_mib: list[int], gpus: list[int]) -> None:
        self.cpu = np.array(cpu_milli)
        self.mem = np.array(mem_mib)
        self.free = np.array([[WHOLE if at < count else 0 for at in range(max(gpus))] for count in gpus])
        self.total = int(self.free.sum())
        self.most_cpu, self.most_gpus = int(self.cpu.max()), int(self.free.sum(1).max())

    def room(self, pod: Pod) -> Array:
        """Which nodes take the pod."""
        enough = (self.cpu >= pod.cpu_milli) & (self.mem >= pod.mem_mib)
        return enough & ((self.free >= pod.need).sum(1) >= pod.gpus) if pod.gpus else enough

    def take(self, pod: Pod, node: int, gpus: list[int]) -> None:
        """Place it on these GPUs of a node."""
        self.cpu[node] -= pod.cpu_milli
        self.mem[node] -= pod.mem_mib
        for gpu in gpus:
            self.free[node, gpu] -= pod.need


class Rule(Protocol):
    """Where pods go; made with the nodes, the pods of the workload and a seed."""

    def place(self, pod: Pod) -> tuple[int, list[int]] | None:
        """The node and its GPUs, or None."""

    def settle(self, node: int) -> None:
        """The pod has been placed there."""


class Random:
    """Any place."""

    def __init__(self, nodes: Nodes, pods: list[Pod], seed: int) -> None:
        self._nodes = nodes
        self._random = random.Random(seed)

    def place(self, pod: Pod) -> tuple[int, list[int]] | None:
        """The node and its GPUs, or None."""
        able = np.flatnonzero(self._nodes.room(pod))
        if not len(able):
            return None
        node = int(self._random.choice(able))
        return node, self._random.sample(list(np.flatnonzero(self._nodes.free[node] >= pod.need)), pod.gpus)

    def settle(self, node: int) -> None:
        """Nothing is kept."""


class BestFit:
    """The fullest place."""

    def __init__(self, nodes: Nodes, pods: list[Pod], seed: int) -> None:
        self._nodes = nodes

    def place(self, pod: Pod) -> tuple[int, list[int]] | None:
        """The node and its GPUs, or None."""
        nodes = self._nodes
        able = np.flatnonzero(nodes.room(pod))
        if not len(able):
            return None
        left = nodes.cpu[able] / nodes.most_cpu + nodes.free[able].sum(1) / nodes.most_gpus
        node = int(able[left.argmin()])
        return node, fullest(nodes.free[node], pod)

    def settle(self, node: int) -> None:
        """Nothing is kept."""


def fullest(free: Array, pod: Pod) -> list[int]:
    """The GPUs of a node with least room that suffices."""
    able = [gpu for gpu in range(len(free)) if free[gpu] >= pod.need]
    return sorted(able, key=lambda gpu: int(free[gpu]))[: pod.gpus]


class LeastFragmentation:
    """FGD: the place by which expected fragmentation grows least."""

    def __init__(self, nodes: Nodes, pods: list[Pod], seed: int) -> None:
        self._nodes = nodes
        common = Counter(pod for pod in pods if pod.gpus).most_common(MOST_CLASSES)
        total = sum(count for _, count in common)
        self._popularity = np.array([count / total for _, count in common])
        self._cpu = np.array([pod.cpu_milli for pod, _ in common])
        self._mem = np.array([pod.mem_mib for pod, _ in common])
        self._gpus = np.array([pod.gpus for pod, _ in common])
        self._needs, self._need_of = np.unique([pod.need for pod, _ in common], return_inverse=True)
        self._changed_at = np.zeros(len(nodes.cpu), dtype=int)
        self._step = 0
        self._known: dict[Pod, tuple[int, Array, Array]] = {}  # class -> step, growth and GPU per node
        self._now = self.fragmentation(nodes.cpu, nodes.mem, nodes.free)

    def fragmentation(self, cpu: Array, mem: Array, free: Array) -> Array:
        """Expected fragmentation of nodes with that much free [thousandths of a GPU]; free: nodes x GPUs."""
        below = free[:, :, None] < self._needs
        small = (free[:, :, None] * below).sum(1)[:, self._need_of]
        enough = (~below).sum(1)[:, self._need_of] >= self._gpus
        able = enough & (cpu[:, None] >= self._cpu) & (mem[:, None] >= self._mem)
        lost: Array = np.where(able, small, free.sum(1)[:, None]) @ self._popularity
        return lost

    def place(self, pod: Pod) -> tuple[int, list[int]] | None:
        """The node and its GPUs, or None."""
        growth, gpu = self._growth(pod)
        node = int(growth.argmin())
        if growth[node] == np.inf:
            return None
        free = self._nodes.free[node]
        gpus = [int(gpu[node])] if pod.gpus == 1 else fullest(free, pod)
        return node, gpus

    def settle(self, node: int) -> None:
        """Its fragmentation is another now."""
        self._step += 1
        self._changed_at[node] = self._step
        nodes, at = self._nodes, slice(node, node + 1)
        self._now[node] = self.fragmentation(nodes.cpu[at], nodes.mem[at], nodes.free[at])[0]

    def _growth(self, pod: Pod) -> tuple[Array, Array]:
        """By how much each node's fragmentation would grow (inf: no room), and on which GPU a single one goes."""
        count = len(self._now)
        step, growth, gpu = self._known.get(pod, (-1, np.full(count, np.inf), np.zeros(count, dtype=int)))
        stale = np.flatnonzero(self._changed_at > step)
        growth[stale] = np.inf
        able = stale[self._nodes.room(pod)[stale]]
        cpu, mem = self._nodes.cpu[able] - pod.cpu_milli, self._nodes.mem[able] - pod.mem_mib
        for option in range(self._nodes.free.shape[1]) if pod.gpus == 1 else (0,):
            before = self._nodes.free[able]
            after, valid = _taken(before, pod, option)
            if not valid.any():
                continue
            found = np.full(len(able), np.inf)
            found[valid] = self.fragmentation(cpu[valid], mem[valid], after[valid]) - self._now[able][valid]
            better = found < growth[able] - 1e-9
            growth[able[better]], gpu[able[better]] = found[better], option
        self._known[pod] = (self._step, growth, gpu)
        return growth, gpu


def _taken(before: Array, pod: Pod, option: int) -> tuple[Array, Array]:
    """What would be free afterwards, and where that can be and no earlier option is the same."""
    after = before.copy()
    if pod.gpus == 1:
        after[:, option] -= pod.need
        same = (before[:, :option] == before[:, option : option + 1]).any(1)
        return after, (before[:, option] >= pod.need) & ~same
    able = before >= pod.need
    after -= pod.need * (able & (able.cumsum(1) <= pod.gpus))
    return after, np.full(len(before), True)


RULES: dict[str, Callable[[Nodes, list[Pod], int], Rule]] = {
    "Random": Random, "BestFit": BestFit, "FGD": LeastFragmentation,
}  # fmt: skip


def read(folder: Path) -> tuple[Nodes, list[Pod]]:
    """The nodes that have GPUs, and the pods."""
    with (folder / "openb/openb_nodes.csv").open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if int(row["gpus"])]
    nodes = Nodes(
        [int(float(row["cpus"]) * 1000) for row in rows], [int(float(row["mem_mb"])) for row in rows],
        [int(row["gpus"]) for row in rows],
    )  # fmt: skip
    with (folder / "openb/openb_pods.csv").open(newline="") as lines:
        pods = [pod_of(row) for row in csv.DictReader(lines)]
    return nodes, pods


def pod_of(row: dict[str, str]) -> Pod:
    """A pod of a row."""
    gpus = int(row["gpus"])
    need = round(float(row["gpu_fraction"] or 1.0) * WHOLE) if gpus == 1 else WHOLE if gpus else 0
    return Pod(round(float(row["cpus"]) * 1000), int(float(row["mem_mb"])), gpus, need)


def allocated_percent(nodes: Nodes, pods: list[Pod], rule: str, seed: int) -> float:
    """Allocated GPUs in percent once all pods of a draw have been tried."""
    draw = random.Random(seed)
    arriving = draw.sample(pods, len(pods))
    asked = sum(pod.gpus * pod.need for pod in arriving)
    while asked < TARGET * nodes.total:
        arriving.append(draw.choice(pods))
        asked += arriving[-1].gpus * arriving[-1].need
    chosen = RULES[rule](nodes, pods, seed)
    for pod in arriving:
        found = chosen.place(pod)
        if found is not None:
            nodes.take(pod, *found)
            chosen.settle(found[0])
    return 100.0 * (1.0 - float(nodes.free.sum()) / nodes.total)
