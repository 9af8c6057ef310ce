"""What may happen to a queue and its nodes, as the rules of a Hypothesis state machine.

Each rule is one thing that people, programs, links, nodes or the daemon's host may do at any moment. One thing to know:
positions choose among what there is at that moment, counted so that small numbers mean the newest.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from gpuq.core.model import (
    AttemptId,
    BlobId,
    Dependencies,
    Dependency,
    DependencyKind,
    JobId,
    JobSpec,
    Placement,
    Reach,
    Resources,
    User,
)
from gpuq.core.requests import (
    Cancel,
    DeclareDead,
    DrainNode,
    Evict,
    HoldJobs,
    Place,
    Prune,
    ReleaseJobs,
    Requeue,
    ResumeNode,
    Signal,
    Submit,
    Tick,
    Update,
)
from gpuq.errors import UserError
from tests.core.machine_daemon import Daemon
from tests.core.machine_ledger import Promise
from tests.core.machine_world import Life, SimulatedNode

ANNA, TOM, ROOT = User(name="anna", uid=1001), User(name="tom", uid=1002), User(name="root", uid=0, is_admin=True)

POSITION = st.integers(0, 11)  # picks one of however many there are
FEW = st.integers(1, 4)
MESSAGE_FAULTS = st.sampled_from(("lose action", "lose report", "swap", "repeat", "repeat"))
NODE_FAULTS = st.sampled_from(("reboot", "link", "link", "new spool", "spool gone", "freeze"))
ONE_IN_FOUR = st.sampled_from((False, False, False, True))
NODES = st.sampled_from(("mill", "attic"))
PEOPLE = st.sampled_from((ANNA, ANNA, ROOT, TOM))


class Wish(NamedTuple):
    """What one submit asks for; always something that one of the nodes can give."""

    tasks: int
    gpus: int
    cpus: int
    retries: int
    requeue: bool
    limit: int
    name: str
    parents: list[tuple[DependencyKind, int]]  # which of the known jobs, from the newest
    any_of: bool
    keep: bool
    contract: tuple[bool, float]  # preemptible, min_runtime_s
    priority: int

    def spec(self, known: list[str]) -> JobSpec:
        """The wish in words of the core; `known` are the ids that a dependency can name."""
        terms = [
            Dependency(kind=kind, job=JobId("" if kind is DependencyKind.SINGLETON else known[-1 - at % len(known)]))
            for kind, at in self.parents
            if known or kind is DependencyKind.SINGLETON
            if self.tasks or kind is not DependencyKind.AFTER_CORR
        ]
        return JobSpec(
            name=self.name,
            argv=("true",),
            cwd="/",
            environment=BlobId("environment"),
            resources=Resources(gpus=self.gpus, cpus=self.cpus),
            retries=self.retries,
            requeue=self.requeue,
            preemptible=self.contract[0],
            min_runtime_s=self.contract[1],
            priority=self.priority,
            array_limit=self.limit if self.tasks else 0,
            dependencies=Dependencies(terms=tuple(terms), any_of=self.any_of, keep_on_failed=self.keep),
        )


PARENTS = st.tuples(st.sampled_from(DependencyKind), POSITION)
WISHES = st.builds(
    Wish,
    tasks=st.sampled_from((0, 0, 0, 2, 3)),
    gpus=st.sampled_from((1, 1, 0, 2)),
    cpus=st.sampled_from((0, 0, 3)),
    retries=st.sampled_from((0, 0, 1, 2)),
    requeue=st.booleans(),
    limit=st.sampled_from((0, 1, 2)),
    name=st.sampled_from(("train", "eval")),
    parents=st.one_of(st.just([]), st.lists(PARENTS, max_size=2)),
    any_of=st.booleans(),
    keep=ONE_IN_FOUR,
    contract=st.sampled_from(((False, 0.0), (True, 0.0), (True, 50.0))),
    priority=st.sampled_from((0, 0, 40)),
)


def has_jobs(machine: QueueMachine) -> bool:
    """Whether there is a job to choose."""
    return bool(machine.ledger.jobs)


def has_lives(machine: QueueMachine) -> bool:
    """Whether any attempt lives."""
    return bool(machine.world.living())


class QueueMachine(RuleBasedStateMachine):
    """One run: a daemon with two nodes, and everything that may happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self.daemon = Daemon()
        self.ledger = self.daemon.ledger
        self.world = self.daemon.world
        self.submits = 0
        self.unanswered: list[Submit] = []
        self.stale: list[Place] = []
        self.stale_evictions: list[Evict] = []

    @initialize(wishes=st.lists(WISHES, min_size=1, max_size=4), rounds=st.integers(1, 2))
    def first_jobs(self, wishes: list[Wish], rounds: int) -> None:
        """A queue at work, so that the first fault meets something."""
        for wish in wishes:
            self.submit_one(wish, held=False, fate="a")
        self.quiet(rounds)

    def quiet(self, rounds: int) -> None:
        """Start what fits; then messages, then claims. With one round the report of a claim is still under way."""
        self.daemon.plan()
        for _ in range(rounds):
            self.daemon.flow()

    # --- picking -----------------------------------------------------------------------------------------

    def some_job(self, position: int) -> Promise:
        jobs = list(self.ledger.jobs.values())
        return jobs[-1 - position % len(jobs)]

    def some_life(self, position: int) -> tuple[SimulatedNode, Life]:
        living = self.world.living()
        life = living[position % len(living)]
        return self.world.nodes[life.node], life

    def unclaimed(self) -> list[tuple[SimulatedNode, AttemptId]]:
        return [(node, attempt) for node in self.world.nodes.values() for attempt in node.unclaimed()]

    def asked(self, request: Any) -> bool:
        """Ask; False when it was refused."""
        try:
            self.daemon.ask(request)
        except UserError:
            return False
        return True

    # --- people ------------------------------------------------------------------------------------------

    @rule(wish=WISHES, held=ONE_IN_FOUR, fate=st.sampled_from("aaalb"), rounds=st.integers(0, 2))
    def submit(self, wish: Wish, held: bool, fate: str, rounds: int) -> None:
        self.submit_one(wish, held, fate)
        if rounds:
            self.quiet(rounds)

    def submit_one(self, wish: Wish, held: bool, fate: str) -> None:
        """a: acknowledged. b: the daemon dies before the commit. l: the reply is lost."""
        spec = wish.spec(sorted({each.array for each in self.ledger.jobs.values()}, key=int))
        self.submits += 1
        request = Submit(spec=spec, by=ANNA, key=f"key-{self.submits}", tasks=tuple(range(wish.tasks)), held=held)
        if fate != "b":
            self.daemon.ask(request)
        if fate != "a":
            self.unanswered.append(request)

    @precondition(lambda self: self.unanswered)
    @rule()
    def submit_again(self) -> None:
        """The client that got no reply repeats its submit; its parents may be gone by now."""
        self.asked(self.unanswered.pop())

    @precondition(has_jobs)
    @rule(position=POSITION, by=PEOPLE, whole=st.booleans(), verb=st.sampled_from(("cancel", "cancel", "requeue")))
    def end_or_repeat(self, position: int, by: User, whole: bool, verb: str) -> None:
        job = self.some_job(position)
        id_ = JobId(job.array) if whole else job.id
        affected = [each for each in self.ledger.jobs.values() if id_ in (each.id, each.array)]
        before = [(each, each.granted, each.cancelled) for each in affected]
        for each in affected:
            if verb == "requeue":
                each.granted = True
            elif each.final is None:
                each.cancelled, each.granted = True, False
        cancel, requeue = Cancel(jobs=(id_,), by=by), Requeue(jobs=(id_,), by=by, hold=position % 3 == 0)
        taken = self.asked(cancel if verb == "cancel" else requeue)
        assert not (taken and by == TOM), f"{verb} of another user's job was not refused"
        if not taken:
            for each, granted, cancelled in before:
                each.granted, each.cancelled = granted, cancelled

    @precondition(has_jobs)
    @rule(position=POSITION, by=PEOPLE, verb=st.sampled_from("hrsuuup"), value=FEW)
    def other_verbs(self, position: int, by: User, verb: str, value: int) -> None:
        job = self.some_job(position)
        jobs = (job.id,)
        changes: list[dict[str, object]] = [
            {"time_limit_s": 60.0 * value}, {"name": f"name-{value % 2}"}, {"dependencies": {}},
            {"dependencies": {"terms": [{"kind": "afterok", "job": self.some_job(value).id}]}},
        ]  # fmt: skip
        requests = {
            "h": HoldJobs(jobs=jobs, by=by),
            "r": ReleaseJobs(jobs=jobs, by=by),
            "s": Signal(jobs=jobs, by=by, signal=10),
            "u": Update(jobs=jobs, by=by, changes=changes[value - 1]),
            "p": Prune(jobs=jobs, by=by),
        }
        taken = self.asked(requests[verb])
        assert not (taken and by == TOM), "another user's job was changed"

    @rule(name=NODES, verb=st.sampled_from(("drain", "resume", "resume", "dead", "dead")), cut=st.booleans())
    def administrate(self, name: str, verb: str, cut: bool) -> None:
        node = self.world.nodes[name]  # type: ignore[index]
        if verb == "dead" and cut:  # the cable is pulled first
            node.break_link()
            self.daemon.reached(node.name, Reach.UNREACHABLE)
        if verb == "drain" and self.asked(DrainNode(node=node.name, reason="new fan", by=ROOT)):
            self.ledger.drained.add(node.name)
        elif verb == "resume":
            self.ledger.drained.discard(node.name)
            self.daemon.ask(ResumeNode(node=node.name, by=ROOT))
        elif verb == "dead":
            lost = {each for each in self.ledger.claims if self.world.lives[each].node == node.name}
            if self.daemon.state.nodes[node.name].reach is Reach.UP:
                with pytest.raises(UserError):
                    self.daemon.ask(DeclareDead(node=node.name, by=ROOT))
                return
            self.ledger.declared |= lost
            self.daemon.ask(DeclareDead(node=node.name, by=ROOT))
            assert not lost & set(self.ledger.claims), "attempts on a dead node were not given up"

    # --- planning and messages ---------------------------------------------------------------------------

    @rule(limit=FEW)
    def plan(self, limit: int) -> None:
        self.daemon.plan(limit)

    @precondition(has_jobs)
    @rule(late=st.booleans())
    def plan_off_the_loop(self, late: bool) -> None:
        """A plan is made of one state and carried out in a later one."""
        if late:
            self.stale = self.daemon.proposals()
        elif self.stale:
            self.daemon.ask(self.stale.pop(0))

    @precondition(has_lives)
    @rule(late=st.booleans())
    def make_room(self, late: bool) -> None:
        """Running jobs are stopped for a waiting one, by what the planner says now or said before."""
        found = self.daemon.eviction()
        if late and found is not None:
            self.stale_evictions.append(found)
        elif not late:
            for request in (found, *self.stale_evictions):
                if request is not None:
                    self.daemon.ask(request)
            self.stale_evictions.clear()

    @precondition(has_lives)
    @rule(position=POSITION, other=POSITION)
    def make_any_room(self, position: int, other: int) -> None:
        """A wrong planner asks for what nobody has a right to; the contract holds all the same."""
        node, life = self.some_life(position)
        waiting = [job for job in self.ledger.jobs.values() if not job.active and job.final is None]
        if waiting:
            job = waiting[other % len(waiting)]
            gpus = life.gpus[: job.spec.resources.gpus]
            placement = Placement(job=job.id, node=node.name, gpus=gpus)
            self.daemon.ask(Evict(placement=placement, attempts=(life.attempt,), gain_s=1.0))

    @rule(name=NODES, actions=st.integers(0, 4), reports=st.integers(0, 4))
    def deliver(self, name: str, actions: int, reports: int) -> None:
        self.daemon.deliver(self.world.nodes[name], actions, reports)  # type: ignore[index]

    @rule(rounds=st.integers(1, 2))
    def flow(self, rounds: int) -> None:
        """A quiet moment."""
        self.quiet(rounds)

    @precondition(lambda self: any(node.sent or node.actions for node in self.world.nodes.values()))
    @rule(name=NODES, fault=MESSAGE_FAULTS, position=POSITION)
    def disturb_messages(self, name: str, fault: str, position: int) -> None:
        node = self.world.nodes[name]  # type: ignore[index]
        if fault == "lose action" and node.actions:
            node.actions.popleft()
        elif fault == "lose report" and node.reports:
            node.reports.popleft()
        elif fault == "swap" and len(node.reports) > 1:
            node.reports.rotate(1 + position)
        elif fault == "repeat" and node.sent and node.connected:
            node.reports.append(node.sent[-1 - position % len(node.sent)])

    # --- nodes -------------------------------------------------------------------------------------------

    @precondition(lambda self: self.unclaimed())
    @rule(position=POSITION, unable=ONE_IN_FOUR, then=st.sampled_from(("nothing", "nothing", "link", "new spool")))
    def claim(self, position: int, unable: bool, then: str) -> None:
        """A shim begins; a fault right after it may keep the report from ever being sent."""
        unclaimed = self.unclaimed()
        node, attempt = unclaimed[position % len(unclaimed)]
        node.claim(attempt, not unable)
        if then == "link":
            node.break_link()
        elif then == "new spool":
            node.lose_spool(under_agent=False)

    @precondition(has_lives)
    @rule(position=POSITION, how=st.sampled_from(("0", "0", "3", "kill", "memory", "time", "main", "main 3", "stop")))
    def programs_end(self, position: int, how: str) -> None:
        node, life = self.some_life(position)
        if life.unkillable:
            return
        entry = node.entries.get(life.attempt)
        if how in ("0", "3"):
            node.finish(life, "exited", code=int(how))
        elif how == "kill":
            node.finish(life, "signaled", signal=11)
        elif how == "memory":
            node.finish(life, "out_of_memory", signal=9)
        elif how == "time":
            node.finish(life, "timeout", signal=15)
        elif how == "stop" and entry is not None and entry.stop is not None:
            node.finish(life, "stopped", signal=15)
        elif how.startswith("main"):
            node.lose_main(life, int(how[5:] or 0))

    @precondition(has_lives)
    @rule(position=POSITION, fault=st.sampled_from(("shim", "slow shim", "stuck", "stuck", "free")))
    def harm_attempt(self, position: int, fault: str) -> None:
        node, life = self.some_life(position)
        if fault == "stuck":
            life.unkillable = True
        elif fault == "free":
            life.unkillable = False
            node.notice(life.attempt)
        else:
            node.kill_shim(life, at_once=fault == "shim")

    @rule(name=NODES, fault=NODE_FAULTS, back=st.booleans())
    def harm_node(self, name: str, fault: str, back: bool) -> None:
        node = self.world.nodes[name]  # type: ignore[index]
        if fault == "reboot":
            node.reboot()
        elif fault == "link":
            node.break_link()
        elif fault == "freeze":
            node.frozen = node.connected
        else:
            node.lose_spool(under_agent=fault == "spool gone")
        if back:
            self.daemon.hello(node)

    @rule(name=NODES, how=st.sampled_from(("suspect", "unreachable", "thaw", "hello", "hello")))
    def links(self, name: str, how: str) -> None:
        node = self.world.nodes[name]  # type: ignore[index]
        silent = node.frozen or not node.connected
        if how == "hello":
            self.daemon.hello(node)
        elif how == "thaw" and node.connected:
            node.frozen = False
            self.daemon.reached(node.name, Reach.UP)
        elif how in ("suspect", "unreachable") and silent:
            self.daemon.reached(node.name, Reach(how))

    # --- the daemon and time -----------------------------------------------------------------------------

    @rule(during=st.sampled_from(("nothing", "plan", "plan")))
    def crash(self, during: str) -> None:
        if during == "plan":
            self.daemon.plan()
        self.daemon.crash()

    @rule(passed_s=st.sampled_from((1.0, 70.0)), jump_s=st.sampled_from((0.0, 0.0, 3600.0, -3600.0, 3.2e7)))
    def time_passes(self, passed_s: float, jump_s: float) -> None:
        self.daemon.steady_s += passed_s
        self.daemon.wall_ahead_s += jump_s
        self.daemon.ask(Tick())

    # --- the end -----------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """All faults stop: everything is delivered, every job ends, and nothing is left on any node."""
        if sys.exc_info()[0] is None:
            self.settle()

    def settle(self) -> None:
        daemon = self.daemon
        daemon.crash()
        for life in self.world.living():
            life.unkillable = False
        for node in self.world.nodes.values():
            daemon.hello(node)
            self.ledger.drained.discard(node.name)
            daemon.ask(ResumeNode(node=node.name, by=ROOT))
        daemon.flow_out()
        assert not any(job.active and job.cancelled for job in self.ledger.jobs.values()), "a cancelled job goes on"
        for _ in range(2 + 4 * len(self.ledger.jobs)):
            for job in list(self.ledger.jobs.values()):
                if job.held and job.final is None and not self.asked(ReleaseJobs(jobs=(job.id,), by=ROOT)):
                    job.cancelled = True  # its dependency can never hold and it was kept for a person to decide
                    daemon.ask(Cancel(jobs=(job.id,), by=ROOT))
            daemon.steady_s += 100.0
            daemon.ask(Tick())
            daemon.plan()
            daemon.flow_out()
            if not daemon.finish_all() and not self.unfinished():
                break
        daemon.flow_out()
        assert not self.unfinished(), f"these never end: {self.unfinished()}"
        self.check_nothing_left()

    def unfinished(self) -> list[Promise]:
        return [job for job in self.ledger.jobs.values() if job.final is None]

    def check_nothing_left(self) -> None:
        left = self.daemon.state
        assert (left.attempts, left.owners, left.strays, left.given_up) == ({}, {}, {}, {})
        assert not self.world.living()
        for node in self.world.nodes.values():
            assert not node.entries, f"the spool of {node.name} still holds {node.entries}"
