"""The shell around the core, for the state machine test: a journal, crashes, links and a simple planner.

Drives gpuq.core.decide.step as the daemon's loop does, and shows every committed event to the ledger. One thing to
know: `crash` throws the state away and rebuilds it from the last snapshot and the events written since, each of them
read back from its bytes; the two must agree to the byte.
"""

from __future__ import annotations

from typing import Final

import msgspec
import pytest

from gpuq.core import decide, fit, greedy, invariants, snapshot, survey
from gpuq.core.apply import apply
from gpuq.core.events import AnyAction, AnyEvent, StartAttempt
from gpuq.core.evictions import find_eviction
from gpuq.core.model import AttemptId, JobId, NodeName, Placement, Reach, Stamp
from gpuq.core.requests import AnyRequest, Evict, NodeReached, Place
from gpuq.core.state import ClusterState
from gpuq.errors import UserError
from tests.core.machine_ledger import Ledger
from tests.core.machine_world import SimulatedNode, World

WALL_S: Final = 1_700_000_000.0
SNAPSHOT_EVERY: Final = 15

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyEvent)


class Daemon:
    """One queue with its nodes, its clock and its books."""

    def __init__(self) -> None:
        self.world = World()
        self.ledger = Ledger(self.world)
        self.state = ClusterState()
        self.steady_s = 0.0
        self.wall_ahead_s = WALL_S
        self.kept = snapshot.to_bytes(self.state)
        self.since: list[tuple[Stamp, bytes]] = []
        self.last_bytes = self.kept
        self.placements = 0
        for name, kinds, cpus in (("mill", ("A100", "A100", "V100"), 8), ("attic", ("A100",), 4)):
            node = SimulatedNode(self.world, name, kinds, cpus)
            self.world.nodes[node.name] = node
            self.hello(node)

    # --- asking ------------------------------------------------------------------------------------------

    def now(self) -> Stamp:
        """This moment on both clocks."""
        return Stamp(wall_s=self.steady_s + self.wall_ahead_s, steady_s=self.steady_s)

    def ask(self, request: AnyRequest) -> list[AnyEvent]:
        """Carry out a request and hand out its actions; a refusal is raised and must have changed nothing."""
        now = self.now()
        try:
            outcome = decide.step(self.state, request, now)
        except UserError:
            assert snapshot.to_bytes(self.state) == self.last_bytes, f"the refused {request} changed the state"
            raise
        for event in outcome.events:
            self.since.append((now, _encoder.encode(event)))
            self.ledger.observe(event, now.steady_s)
        invariants.check_invariants(self.state)
        self.ledger.check(self.state.jobs)
        if outcome.events:
            self.last_bytes = snapshot.to_bytes(self.state)
        for action in outcome.actions:
            self._post(action)
        if len(self.since) >= SNAPSHOT_EVERY:
            self.kept, self.since = self.last_bytes, []
        return outcome.events

    def _post(self, action: AnyAction) -> None:
        node = self.world.nodes[action.node]
        if not node.connected:
            return
        if isinstance(action, StartAttempt):
            attempt = self.state.jobs[action.job].attempt
            if attempt is None or attempt.id != action.attempt or attempt.stop is not None:
                return  # the state has moved on
        node.actions.append(action)

    # --- crashes -----------------------------------------------------------------------------------------

    def replayed(self) -> ClusterState:
        """The state as a restart would find it."""
        found = snapshot.from_bytes(self.kept)
        for stamp, data in self.since:
            apply(found, _decoder.decode(data), stamp)
        return found

    def crash(self) -> None:
        """Die and start again: links are gone, actions under way are lost, what was committed is not."""
        found = self.replayed()
        assert snapshot.to_bytes(found) == self.last_bytes, "the replayed state differs from the one that was lost"
        invariants.check_invariants(found)
        found.caps = self.state.caps  # of gpuq.toml, not of the journal
        self.state = found
        for node in self.world.nodes.values():
            node.break_link()

    # --- nodes -------------------------------------------------------------------------------------------

    def hello(self, node: SimulatedNode) -> None:
        """Connect a node."""
        self.ask(node.hello())

    def reached(self, name: NodeName, reach: Reach) -> None:
        """Tell the core how a link is."""
        self.ask(NodeReached(node=name, reach=reach))

    def deliver(self, node: SimulatedNode, actions: int = 1000, reports: int = 1000) -> bool:
        """Carry messages both ways, oldest first; False when there were none."""
        moved = False
        while actions and node.actions and not node.frozen:
            node.obey(node.actions.popleft())
            actions, moved = actions - 1, True
        while reports and node.reports and not node.frozen:
            report = node.reports.popleft()
            node.sent.append(report)
            self.ask(report)
            reports, moved = reports - 1, True
        return moved

    # --- planning ----------------------------------------------------------------------------------------

    def proposals(self, limit: int = 1000) -> list[Place]:
        """Placements that would fit now, each looked at by itself."""
        found: list[Place] = []
        waiting = [id_ for queue in self.state.waiting.values() for id_ in queue]
        for id_ in sorted(waiting, key=lambda id_: self.state.jobs[id_].order):
            place = self._proposal(id_)
            if place is not None and len(found) < limit:
                found.append(place)
        return [*self._into_rooms(), *found]

    def _into_rooms(self) -> list[Place]:
        """Jobs for which room was made, where it is empty by now."""
        found = []
        for room in self.state.rooms.values():
            if not any(uuid in self.state.owners for uuid in room.placement.gpus):
                self.placements += 1
                attempt = AttemptId(f"attempt-{self.placements}-of-{room.placement.job}")
                found.append(Place(placement=room.placement, attempt=attempt))
        return found

    def eviction(self) -> Evict | None:
        """What the planner would ask for to make room."""
        problem = survey.snapshot(self.state, self.now())
        found = find_eviction(self.state, problem, greedy.plan(problem))
        return found and Evict(placement=found.placement, attempts=found.attempts, gain_s=found.gain_s)

    def _proposal(self, id_: JobId) -> Place | None:
        for node in self.state.nodes.values():
            gpus = fit.place_now(self.state, self.state.jobs[id_], node, self.now())
            if isinstance(gpus, tuple):
                self.placements += 1
                attempt = AttemptId(f"attempt-{self.placements}-of-{id_}")
                return Place(placement=Placement(job=id_, node=node.name, gpus=gpus), attempt=attempt)
        return None

    def plan(self, limit: int = 1000) -> None:
        """Start what fits; placements that an earlier one made impossible are dropped by the core."""
        for place in self.proposals(limit):
            self.ask(place)

    # --- the end of all faults ---------------------------------------------------------------------------

    def flow(self) -> bool:
        """One round without faults: messages arrive, shims claim, stops are obeyed; False when nothing moved."""
        moved = False
        for node in self.world.nodes.values():
            moved |= self._exchange(node)
            for attempt in node.unclaimed():
                node.claim(attempt)
                moved = True
            for attempt, entry in list(node.entries.items()):
                if entry.stop is not None and entry.shim_lives:
                    node.finish(self.world.lives[attempt], "stopped", signal=15)
                    moved = True
        return moved

    def _exchange(self, node: SimulatedNode, rounds: int = 10) -> bool:
        """Messages and answers until there are no more, which must be soon while nothing else happens."""
        if not self.deliver(node):
            return False
        for _ in range(rounds):
            if not self.deliver(node):
                return True
        return pytest.fail(f"daemon and agent answer each other without end: {node.actions} {node.reports}")

    def finish_all(self) -> bool:
        """Every program ends well; False when none was left."""
        living = self.world.living()
        for life in living:
            self.world.nodes[life.node].finish(life, "exited", code=0)
        return bool(living)

    def flow_out(self, rounds: int = 40) -> None:
        """Let things happen until nothing does."""
        for _ in range(rounds):
            if not self.flow():
                return
        pytest.fail(f"nodes and daemon never come to rest: {self.world.lives}")
