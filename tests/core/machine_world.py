"""Nodes as they really are, for the state machine test: spools, shims, processes. Uses core records only as messages.

Owns the truth that the core cannot see. It follows docs/agent-protocol.md and shares no code with gpuq.core: how often
each attempt's program was executed, whether anything of it lives, and how it ended.

One thing to know: an agent lives exactly as long as its link, but shims and programs do not notice either end.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from gpuq.core.events import AnyAction, FenceAttempt, ReleaseAttempt, StartAttempt, StopAttempt
from gpuq.core.model import AttemptId, Containment, Exit, Gpu, GpuUuid, JobId, Node, NodeName, Reach
from gpuq.core.requests import AttemptReport, NodeReady

STUBBORN_PID = 4711


@dataclass
class Life:
    """What really happened to one attempt."""

    attempt: AttemptId
    job: JobId
    node: NodeName
    gpus: tuple[GpuUuid, ...]
    starts: int = 0
    alive: bool = False
    unkillable: bool = False
    cause: str = ""  # exited, signaled, out_of_memory, timeout, stopped, refused, shim, reboot, swept
    code: int | None = None
    signal: int | None = None

    @property
    def failed_by_itself(self) -> bool:
        """Whether its end counts against the retries of its job."""
        return self.cause in ("signaled", "out_of_memory", "refused") or (self.cause == "exited" and self.code != 0)


@dataclass
class Entry:
    """One directory of the spool."""

    asked_in_boot: int  # a shim asked for in an earlier boot never comes
    claimed_in_boot: int | None = None
    shim_lives: bool = False
    main_gone: bool = False
    fenced: bool = False
    stop: str | None = None
    record: AttemptReport | None = None  # exit.json


@dataclass
class World:
    """All nodes and all attempts that any of them has heard of."""

    nodes: dict[NodeName, SimulatedNode] = field(default_factory=dict)
    lives: dict[AttemptId, Life] = field(default_factory=dict)
    over: set[AttemptId] = field(default_factory=set)  # the daemon has taken their ends for proved

    def living(self) -> list[Life]:
        """Attempts of which something lives."""
        return [life for life in self.lives.values() if life.alive]


class SimulatedNode:
    """One machine: its spool and, while `connected`, its agent."""

    def __init__(self, world: World, name: str, gpu_types: tuple[str, ...], cpus: int) -> None:
        self.world = world
        self.name = NodeName(name)
        self.cpus = cpus
        self.gpus = tuple(
            Gpu(uuid=GpuUuid(f"GPU-{name}-{index}"), index=index, type=kind, name=kind, memory_mib=16_384)
            for index, kind in enumerate(gpu_types)
        )
        self.boot = 1
        self.spool = 1
        self.spool_gone = False  # its directory was removed under the living agent
        self.entries: dict[AttemptId, Entry] = {}
        self.connected = False
        self.frozen = False  # nothing travels in either direction, and nobody has noticed a broken link
        self.actions: deque[AnyAction] = deque()
        self.reports: deque[AttemptReport] = deque()
        self.sent: list[AttemptReport] = []

    # --- the link and the agent --------------------------------------------------------------------------

    def break_link(self) -> None:
        """The agent ends; what was under way in either direction is lost."""
        self.connected = self.frozen = False
        self.actions.clear()
        self.reports.clear()

    def hello(self) -> NodeReady:
        """A new agent introduces itself with everything in the spool."""
        self.break_link()
        if self.spool_gone:
            self.spool, self.spool_gone = self.spool + 1, False
            self.entries.clear()
        self.connected = True
        node = Node(
            name=self.name, hostname=self.name, reach=Reach.UP, boot_id=f"boot-{self.boot}",
            spool_id=f"spool-{self.spool}", cpus=self.cpus, memory_mib=65_536,
            containment=Containment.PROCESS_TREE, gpus=self.gpus, driver="simulated",
        )  # fmt: skip
        return NodeReady(node=node, attempts=tuple(self.look(attempt) for attempt in sorted(self.entries)))

    def notice(self, attempt: AttemptId) -> None:
        """The agent, if there is one, reports an attempt."""
        if self.connected:
            self.reports.append(self.look(attempt))

    def look(self, attempt: AttemptId) -> AttemptReport:
        """What the agent finds in the spool; it kills what a dead shim left behind."""
        entry, life = self.entries.get(attempt), self.world.lives.get(attempt)
        job, gpus = (life.job, life.gpus) if life and entry else (None, ())
        phase, rebooted = "absent", False
        pids: tuple[int, ...] = ()
        if entry is None:
            pass
        elif entry.record is not None:
            return entry.record
        elif entry.fenced:
            phase = "fenced"
        elif entry.claimed_in_boot is None:
            phase = "starting"
        elif entry.shim_lives:
            phase = "ending" if entry.main_gone else "running"
        elif self._swept(life):
            phase, rebooted = "lost", entry.claimed_in_boot != self.boot
        else:
            phase, pids = "ending", (STUBBORN_PID,)
        return AttemptReport(
            node=self.name, attempt=attempt, phase=phase, job=job, gpus=gpus, unkillable=pids, rebooted=rebooted
        )

    def _swept(self, life: Life | None) -> bool:
        if life is not None and life.alive:
            if life.unkillable:
                return False
            self._die(life, "swept")
        return True

    # --- what the daemon asks for ------------------------------------------------------------------------

    def obey(self, action: AnyAction) -> None:
        """Carry out one action; every one may come twice."""
        attempt = action.attempt
        entry = self.entries.get(attempt)
        if isinstance(action, StartAttempt):
            if entry is None and not self.spool_gone:
                self.entries[attempt] = Entry(asked_in_boot=self.boot)
            elif entry is not None:
                entry.asked_in_boot = self.boot
        elif isinstance(action, StopAttempt):
            if entry is not None and entry.stop is None:
                entry.stop = action.reason
        elif isinstance(action, FenceAttempt):
            if not self._fence(attempt):
                return
        elif isinstance(action, ReleaseAttempt):
            if self.look(attempt).phase not in ("starting", "running", "ending"):
                self.entries.pop(attempt, None)
        else:
            return
        self.notice(attempt)

    def _fence(self, attempt: AttemptId) -> bool:
        """False when there is no directory and something that cannot be killed: then only that is reported."""
        entry, life = self.entries.get(attempt), self.world.lives.get(attempt)
        if entry is not None:
            entry.fenced |= entry.claimed_in_boot is None and entry.record is None
        elif self._swept(life):
            self.entries[attempt] = Entry(asked_in_boot=0, fenced=True)
        else:
            stuck = AttemptReport(node=self.name, attempt=attempt, phase="ending", unkillable=(STUBBORN_PID,))
            self.reports.append(stuck)
            return False
        return True

    # --- what happens by itself --------------------------------------------------------------------------

    def unclaimed(self) -> list[AttemptId]:
        """Attempts whose shim is about to claim them."""
        return [
            attempt
            for attempt, entry in self.entries.items()
            if entry.claimed_in_boot is None
            and entry.record is None
            and not entry.fenced
            and entry.asked_in_boot == self.boot
        ]

    def claim(self, attempt: AttemptId, able: bool = True) -> None:
        """A shim claims the attempt and executes its program, unless it was told to stop or is not able to."""
        entry, life = self.entries[attempt], self.world.lives[attempt]
        entry.claimed_in_boot = self.boot
        if entry.stop is not None or not able:
            life.cause = "stopped" if entry.stop else "refused"
            entry.record = self._record(attempt, "not_started", entry.stop, Exit(error="it was not started"))
        else:
            assert attempt not in self.world.over, f"{attempt} starts although it was given out as over"
            for other in self.world.living():
                shared = set(other.gpus) & set(life.gpus)
                assert not shared, f"{attempt} starts on {shared}, where {other.attempt} lives"
            life.starts += 1
            assert life.starts == 1, f"{attempt} was executed {life.starts} times"
            life.alive = entry.shim_lives = True
        self.notice(attempt)

    def lose_main(self, life: Life, code: int) -> None:
        """The first process exits and leaves others behind."""
        entry = self.entries.get(life.attempt)
        if entry is not None and entry.shim_lives and not entry.main_gone:
            entry.main_gone, life.code = True, code
            self.notice(life.attempt)

    def finish(self, life: Life, cause: str, code: int | None = None, signal: int | None = None) -> None:
        """All processes end; the shim, if there is one with a spool to write to, records how."""
        entry = self.entries.get(life.attempt)
        if entry is not None and entry.main_gone:
            cause, code, signal = "exited", life.code, None
        if entry is not None and not entry.shim_lives:
            cause, code, signal = "shim", None, None  # nobody saw it
        reason = {"timeout": "timeout", "out_of_memory": "out_of_memory"}.get(cause)
        if cause == "stopped" and entry is not None:
            reason = entry.stop
        self._die(life, cause, code, signal)
        if entry is not None and entry.shim_lives:
            entry.shim_lives = False
            status = "signaled" if signal is not None else "exited"
            entry.record = self._record(life.attempt, status, reason, Exit(code=code, signal=signal, run_s=10.0))
        self.notice(life.attempt)

    def _record(self, attempt: AttemptId, status: str, reason: str | None, exit_: Exit) -> AttemptReport:
        return AttemptReport(
            node=self.name, attempt=attempt, phase="ended", status=status, reason=reason, exit=exit_
        )

    def _die(self, life: Life, cause: str, code: int | None = None, signal: int | None = None) -> None:
        life.alive = life.unkillable = False
        life.cause, life.code, life.signal = cause, code, signal

    # --- faults ------------------------------------------------------------------------------------------

    def kill_shim(self, life: Life, at_once: bool) -> None:
        """The shim dies; its processes with it, or only when the agent sweeps."""
        entry = self.entries.get(life.attempt)
        if entry is None or not entry.shim_lives:
            return
        entry.shim_lives = False
        if at_once and not life.unkillable:
            self._die(life, "shim")
        self.notice(life.attempt)

    def reboot(self) -> None:
        """Everything on the machine dies; the spool is still there."""
        self.break_link()
        self.boot += 1
        for life in self.world.living():
            if life.node == self.name:
                self._die(life, "reboot")
        for entry in self.entries.values():
            entry.shim_lives = False

    def lose_spool(self, under_agent: bool) -> None:
        """The spool directory is emptied; programs go on. The agent notices, or starts again with a new spool."""
        known = sorted(self.entries)
        self.entries.clear()
        if under_agent and self.connected:
            self.spool_gone = True
            for attempt in known:
                self.notice(attempt)
        else:
            self.break_link()
            self.spool += 1
