"""The frozen question a planner answers. Imports estimate, impact, model, state. core.survey asks it.

    Slot      a GPU that may take work: free now or at a predicted time
    Machine   the node it is in, with what is promised of its CPUs and memory
    Site      where a job of some queue could run: GPUs of one type on one machine, or whole machines of one type
    Queue     waiting jobs of one Shape, oldest first, with their prediction and their sites

One thing to know: times are seconds from the moment of the snapshot, and GPUs that nobody can promise (foreign use,
unknown state, a stray attempt, a node that does not answer) are not in it at all.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import field

from gpuq.core.estimate import Prediction
from gpuq.core.impact import FREE, Costs, Weights, impact, weight
from gpuq.core.model import Gpu, JobId, NodeName, Record, Stamp
from gpuq.core.state import Shape


class Slot(NamedTuple):
    """One GPU that is free, or will be by prediction."""

    machine: int  # position in Problem.machines
    gpu: Gpu
    free_at_s: float  # 0: free now
    informed: bool  # the end that frees it is a prediction, not a guess


class Promise(NamedTuple):
    """CPUs and memory that a running job has until its predicted end."""

    end_s: float
    cpus: int
    memory_mib: int


class Machine(NamedTuple):
    """One node that takes work."""

    node: NodeName
    cpus: int
    memory_mib: int
    promises: tuple[Promise, ...]
    attempts: int  # running there now


class Site(NamedTuple):
    """GPUs of one type on one machine, any of which can serve the request; none for a job without GPUs.

    A job larger than any machine has a site over several: it takes machines in whole, and of the last what it needs.
    """

    machine: int  # the first, when there are several
    type: str
    slots: tuple[int, ...]  # positions in Problem.slots
    speed: float  # of the slowest of them
    memory_mib: int  # per GPU
    spans: tuple[tuple[int, ...], ...] = ()  # the slots by machine, when there are several
    power_w: float = 0.0  # per GPU: what such jobs were seen to draw, else its limit; 0: not known


class Waiting(NamedTuple):
    """One waiting job."""

    job: JobId
    waited_s: float
    order: int


class Queue(Record, frozen=True, kw_only=True):
    """The first jobs of one Shape, as many as the window or the free GPUs call for."""

    shape: Shape
    heads: tuple[Waiting, ...]
    count: int  # jobs in the queue, those beyond heads included
    sites: tuple[Site, ...]  # fastest first
    prediction: Prediction
    standing: float  # priority among the owner's jobs (mean 1) x account balance x deadline rise
    best_run_s: float  # on its fastest site
    age_s: float
    release_s: float  # begin time, back-off: may not start before
    caps: tuple[int, ...] = ()  # positions in Problem.caps

    @property
    def gpus(self) -> int:
        """GPUs per job."""
        return self.shape.resources.gpus

    def weight(self, position: int) -> float:
        """Weight of the job at this position."""
        return weight(self.standing, self.heads[position].waited_s, self.age_s)

    def impact(self, position: int, run_s: float, weights: Weights, costs: Costs = FREE) -> float:
        """Impact of the job at this position when it runs for run_s."""
        return impact(self.weight(position), self.gpus, run_s, weights, costs)


class ArrayRoom(NamedTuple):
    """How many tasks of an array may run at once, and when those that run now end."""

    limit: int
    ends_s: tuple[float, ...]


class CapRoom(NamedTuple):
    """How many GPUs some users' jobs may hold at once, and what is held."""

    name: str  # for people
    max_gpus: int
    held: tuple[tuple[float, int], ...]  # (predicted end, GPUs)


class Running(NamedTuple):
    """A job that holds GPUs, for prices."""

    job: JobId
    type: str
    impact: float


class Problem(Record, frozen=True, kw_only=True):
    """Everything a planner may look at."""

    stamp: Stamp
    weights: Weights
    window: int
    machines: tuple[Machine, ...] = ()
    slots: tuple[Slot, ...] = ()
    queues: tuple[Queue, ...] = ()
    arrays: dict[JobId, ArrayRoom] = field(default_factory=dict)  # only arrays with a limit
    caps: tuple[CapRoom, ...] = ()  # only those that a waiting job is under
    running: tuple[Running, ...] = ()
    waiting: int = 0  # eligible jobs in the state, whether they are in `queues` or not

    @property
    def free_slots(self) -> int:
        """Number of GPUs free now."""
        return sum(1 for slot in self.slots if slot.free_at_s == 0.0)
