"""The conversation with a node: hello, actions, reports, silence, and what a broken link does not do to jobs."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from gpuq.core import decide
from gpuq.core.events import ReachChanged
from gpuq.core.model import Reach
from gpuq.core.requests import NodeReached
from gpuq.daemon import connection as connection_module
from gpuq.daemon import launch
from gpuq.daemon import loop as loop_module
from gpuq.daemon.connection import SUSPECT_AFTER_S, UNREACHABLE_AFTER_S, Connection
from gpuq.errors import NodeError
from gpuq.journal.problems import JournalFull
from tests.daemon.stage import LOCAL, Stage, played, submit_body
from tests.fakes import FakeAgent, FakeStore, sample, turns, until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon looks at silence, and connects again, in milliseconds."""
    monkeypatch.setattr(connection_module, "WATCH_EVERY_S", 0.005)
    monkeypatch.setattr(connection_module, "FIRST_BACK_OFF_S", 0.005)
    monkeypatch.setattr(connection_module, "LAST_BACK_OFF_S", 0.005)


@pytest.fixture
def awake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time that the fake clock jumps over counts as observed."""
    monkeypatch.setattr(connection_module, "PAUSE_S", 1e9)


def connection_of(stage: Stage) -> Connection:
    return stage.fleet.connections[LOCAL]


async def is_ready(stage: Stage) -> None:
    """Wait until the node's agent has said hello and been taken in."""
    connection = connection_of(stage)
    await until(lambda: LOCAL in stage.loop.state.nodes and connection.last_error is None, "the node is ready")


def reach_of(stage: Stage) -> Reach:
    return stage.loop.state.nodes[LOCAL].reach


async def reaches(stage: Stage, how: Reach) -> None:
    await until(lambda: reach_of(stage) is how, f"the node is {how.value}")


def untouched(stage: Stage, id_: str) -> tuple[object, ...]:
    """What a fault of the link must not change of a running job."""
    job = stage.job(id_)
    assert job.attempt is not None
    return (job.state, job.attempt.id, job.restarts, dict(stage.loop.state.owners))


# --- hello ----------------------------------------------------------------------------------------------


@played
async def test_hello_says_what_the_settings_say(tmp_path: Path) -> None:
    """The first frame is `hello` with the protocol's fields, and comes once for each life of the agent."""
    async with Stage(tmp_path) as stage:
        await is_ready(stage)
        (hello,) = stage.agent.sent("hello")
        assert stage.agent.link.sent[0] == hello
        assert (hello["protocol"], hello["node"], hello["spool"]) == (1, "local", str(tmp_path / "spool"))
        wanted = {"simulate", "sample_every_s", "heartbeat_every_s", "foreign_memory_mib", "pynvml_path"}
        assert wanted <= set(hello)


@pytest.mark.parametrize(
    ("greeting", "words"),
    [
        ({"type": "refused", "error": "the spool is not ours"}, "the spool is not ours"),
        ({"type": "refused"}, "refused to start"),
        ({"type": "samples"}, "refused to start"),
        ({"protocol": 2}, "speaks protocol 2"),
        ({"protocol": None}, "speaks protocol None"),
    ],
)
@played
async def test_an_agent_that_cannot_be_used(tmp_path: Path, greeting: dict[str, Any], words: str) -> None:
    """An agent that refuses, or speaks another protocol, is named as the reason and tried again."""
    agent = FakeAgent()
    agent.greeting = greeting
    async with Stage(tmp_path, agent=agent) as stage:
        await until(lambda: agent.tries >= 3, "it is tried again")
        assert words in str(connection_of(stage).last_error)
        (node,) = (await stage.get("/v1/nodes"))["nodes"]
        assert words in node["link_error"]
        assert all(link.is_closed for link in agent.links[:-1])
        agent.greeting = {}
        await is_ready(stage)


@played
async def test_an_agent_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that does not get ready in time is given up, with a reason that people can read."""
    monkeypatch.setattr(connection_module, "READY_WITHIN_S", 0.02)
    agent = FakeAgent()
    agent.is_mute = True
    async with Stage(tmp_path, agent=agent) as stage:
        await until(lambda: agent.tries >= 2, "it is tried again")
        assert "was not ready within" in str(connection_of(stage).last_error)


@pytest.mark.parametrize("fault", [NodeError("The agent could not be started: no such file."), OSError("no memory")])
@played
async def test_a_link_that_cannot_be_opened(tmp_path: Path, fault: Exception) -> None:
    """A node that cannot be reached is shown with the reason, and is used as soon as it can be."""
    agent = FakeAgent()
    agent.unreachable = fault
    async with Stage(tmp_path, agent=agent) as stage:
        await until(lambda: agent.tries >= 3, "it is tried again")
        (node,) = (await stage.get("/v1/nodes"))["nodes"]
        assert node["state"] == "unknown*"
        assert node["link_error"]
        id_ = await stage.submit()
        agent.unreachable = None
        await stage.reaches(id_, "RUNNING")
        assert connection_of(stage).last_error is None


@played
async def test_a_stop_at_any_moment(tmp_path: Path) -> None:
    """However far the conversation has got, a stop ends it: no cancellation is lost."""
    agent = FakeAgent()
    for count in range(25):
        async with Stage(tmp_path, agent=agent):
            await turns(count)
    assert all(link.is_closed for link in agent.links)


@played
async def test_the_pause_between_tries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, awake: None) -> None:
    """The pause doubles with each failure up to its limit, and is short again after a link that held for a while."""
    monkeypatch.setattr(connection_module, "LAST_BACK_OFF_S", 0.02)
    agent = FakeAgent()
    agent.unreachable = NodeError("The line is cut.")
    async with Stage(tmp_path, agent=agent) as stage:
        pauses: list[float] = []
        while len(pauses) < 4:
            tries = agent.tries
            await until(lambda: agent.tries > tries, "it is tried again")  # noqa: B023
            pauses.append(connection_of(stage).back_off_s)
        assert max(pauses) == 0.02
        agent.unreachable = None
        await is_ready(stage)
        stage.clock.advance(1.0)
        agent.link.break_off()
        await until(lambda: len(agent.links) >= 2, "another agent is started")
        assert connection_of(stage).back_off_s == 0.01


# --- actions and reports --------------------------------------------------------------------------------


@played
async def test_a_job_from_start_to_release(tmp_path: Path) -> None:
    """A job is started with its own environment, seen running, ended by its exit record, and then released."""
    async with Stage(tmp_path) as stage:
        body = submit_body({"gpus": 1}, environment=b"TOKEN=x")
        id_ = (await stage.post("/v1/jobs", body))["id"]
        await stage.reaches(id_, "RUNNING")
        (start,) = stage.agent.sent("start")
        assert start["attempt"] == stage.attempt(id_)
        environment = base64.b64decode(start["spec"]["environment"]).split(b"\0")
        assert b"TOKEN=x" in environment
        assert b"GPUQ_JOB_ID=1" in environment
        assert (tmp_path / "checkpoints" / id_).is_dir()
        await stage.end_job(id_, 3)
        assert (stage.job(id_).state.value, stage.job(id_).exit.code) == ("FAILED", 3)  # type: ignore[union-attr]
        await until(lambda: stage.agent.sent("release"), "the end is acknowledged")
        assert stage.agent.sent("release")[0]["attempt"] == start["attempt"]


@played
async def test_no_frame_before_its_commit(tmp_path: Path) -> None:
    """When the placement cannot be written, no start is sent."""
    async with Stage(tmp_path) as stage:
        await is_ready(stage)
        store: FakeStore = stage.store
        id_ = await stage.submit({"gpus": 1}, begin_at=stage.clock.wall_s + 60)
        sent: list[int] = []
        store.on_append = lambda: sent.append(len(stage.agent.sent("start")))
        stage.clock.advance(120)
        stage.planner.time_passed()
        await stage.reaches(id_, "RUNNING")
        assert sent[0] == 0


@played
async def test_stop_signal_and_limit(tmp_path: Path) -> None:
    """Cancel, signal and a new time limit become the frames of the protocol."""
    async with Stage(tmp_path) as stage:
        id_ = await stage.run_job()
        attempt = stage.attempt(id_)
        await stage.post("/v1/signal", {"ids": [id_], "signal": 10})
        await stage.post("/v1/update", {"ids": [id_], "changes": {"time_limit_s": 60.0}})
        await stage.post("/v1/cancel", {"ids": [id_], "grace_s": 2})
        await stage.reaches(id_, "CANCELLED")
        frames = [frame for frame in stage.agent.link.sent if frame["type"] in ("signal", "limit", "stop")]
        assert frames == [
            {"type": "signal", "attempt": attempt, "signal": 10},
            {"type": "limit", "attempt": attempt, "time_limit_s": 60.0},
            {"type": "stop", "attempt": attempt, "reason": "cancel", "grace_s": 2},
        ]


@played
async def test_an_action_that_cannot_be_put_together_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that fails on this side is tried again later; other actions go out meanwhile."""
    monkeypatch.setattr(connection_module, "RESEND_S", 0.05)
    async with Stage(tmp_path) as stage:
        real, faults = launch.start_spec, [OSError("disk full"), KeyError("a fault")]

        def start_spec(job: Any, *rest: Any) -> Any:
            if job.id == "1" and faults:
                raise faults.pop()
            return real(job, *rest)

        monkeypatch.setattr(launch, "start_spec", start_spec)
        first, second = await stage.submit(), await stage.submit()
        await stage.reaches(second, "RUNNING")
        await stage.reaches(first, "RUNNING")
        assert faults == []


@played
async def test_a_start_that_was_overtaken_is_not_sent(tmp_path: Path) -> None:
    """A job that is cancelled before its start went out is never started."""
    agent = FakeAgent()
    async with Stage(tmp_path, agent=agent) as stage:
        await is_ready(stage)
        link = agent.link
        blocked, go = asyncio.Event(), asyncio.Event()
        real = link.send

        async def send(frame: dict[str, Any]) -> None:
            blocked.set()
            await go.wait()
            await real(frame)

        link.send = send  # type: ignore[method-assign]
        one, two = await stage.submit(), await stage.submit()
        await blocked.wait()
        await stage.reaches(two, "CONFIGURING")
        await stage.post("/v1/cancel", {"ids": [two]})
        go.set()
        await stage.reaches(one, "RUNNING")
        await until(lambda: agent.sent("stop"), "the stop is sent")
        assert [frame["spec"]["job"] for frame in agent.sent("start")] == [one]


@played
async def test_actions_dropped_while_disconnected_are_derived_again(tmp_path: Path) -> None:
    """Starts, stops, limits and releases that were lost with a link follow from the state at the next hello."""
    agent = FakeAgent(gpus=4)
    async with Stage(tmp_path, agent=agent) as stage:
        running, ending = await stage.run_job(), await stage.run_job()
        agent.runs_jobs = False
        placed = await stage.submit()
        await stage.reaches(placed, "CONFIGURING")
        agent.unreachable = NodeError("The line is cut.")
        agent.link.break_off()
        await reaches(stage, Reach.SUSPECT)
        before = len(agent.links)
        await stage.post("/v1/cancel", {"ids": [ending]})
        await stage.post("/v1/update", {"ids": [running], "changes": {"time_limit_s": 90.0}})
        assert stage.job(placed).state.value == "CONFIGURING"
        agent.runs_jobs, agent.unreachable = True, None
        await stage.reaches(placed, "RUNNING")
        await stage.reaches(ending, "CANCELLED")
        later = [frame for link in agent.links[before:] for frame in link.sent]
        assert {"type": "limit", "attempt": stage.attempt(running), "time_limit_s": 90.0} in later
        assert [frame["attempt"] for frame in later if frame["type"] == "start"] == [stage.attempt(placed)]
        assert stage.job(running).state.value == "RUNNING"
        await until(lambda: agent.sent("release"), "the cancelled one is released")


@played
async def test_a_job_that_ended_while_nobody_looked(tmp_path: Path) -> None:
    """An end that the agent reports at hello is taken as if it had been reported at once."""
    agent = FakeAgent()
    async with Stage(tmp_path, agent=agent) as stage:
        id_ = await stage.run_job()
        agent.exit_record(stage.attempt(id_), exit_code=0)
        agent.link.break_off()
        await stage.reaches(id_, "COMPLETED")
        await until(lambda: agent.sent("release"), "it is released")


@played
async def test_a_report_that_cannot_be_written_is_taken_when_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end that the journal could not take is not acknowledged, so the agent repeats it and it counts then."""
    monkeypatch.setattr(loop_module, "RETRY_S", 0.005)
    async with Stage(tmp_path) as stage:
        id_ = await stage.run_job()
        stage.store.failing = JournalFull("The disk is full.")
        stage.agent.end(stage.attempt(id_))
        await until(lambda: stage.loop.degraded, "the daemon is degraded")
        assert stage.job(id_).state.value == "RUNNING"
        assert stage.agent.sent("release") == []
        stage.store.failing = None
        await until(lambda: stage.loop.degraded is None, "the daemon has recovered")
        stage.agent.end(stage.attempt(id_))
        await stage.reaches(id_, "COMPLETED")


@pytest.mark.parametrize(
    "frame",
    [{}, {"type": "novelty", "x": 1}, {"type": "samples"}, {"type": "samples", "gpus": [7, {"uuid": []}]},
     {"type": "inventory"}, {"type": "inventory", "gpus": "x", "driver": 7}, {"type": "attempt"},
     {"type": "attempt", "attempt": 7, "phase": []}, {"type": "heartbeat", "stalled": ["a1"]}],
    ids=str,
)  # fmt: skip
@played
async def test_odd_frames_do_not_end_the_conversation(tmp_path: Path, frame: dict[str, Any]) -> None:
    """Unknown types, unknown fields and odd values are passed over; the link stays and jobs run on."""
    async with Stage(tmp_path) as stage:
        id_ = await stage.run_job()
        stage.agent.link.say(frame)
        await stage.end_job(id_)
        assert len(stage.agent.links) == 1
        assert stage.loop.degraded is None


# --- who uses the GPUs ----------------------------------------------------------------------------------


@played
async def test_foreign_use_comes_and_goes(tmp_path: Path) -> None:
    """GPUs are unknown before their first sample, busy while a stranger computes, and given out after that."""
    agent = FakeAgent(gpus=1, vendor="nvidia")
    async with Stage(tmp_path, agent=agent, ignore=("Xorg",)) as stage:
        await is_ready(stage)
        id_ = await stage.submit()
        stranger = {"pid": 9, "user": "tom", "name": "python", "memory_mib": 9000, "kind": "compute", "attempt": None}
        assert (await stage.get("/v1/gpus"))["gpus"][0]["state"] == "unknown"
        agent.link.say({"type": "samples", "at": 1.0, "gpus": [sample(0, [stranger], foreign=True)]})
        await until(lambda: stage.loop.state.nodes[LOCAL].gpus[0].foreign, "the stranger is seen")
        (gpu,) = (await stage.get("/v1/gpus"))["gpus"]
        assert (gpu["state"], gpu["reason"]) == ("foreign", "foreign: tom python 9")
        why = (await stage.get(f"/v1/jobs/{id_}"))["job"]
        assert why["reason"] == "GpuForeignUse"
        assert "tom" in why["message"]
        ignored = {**stranger, "name": "Xorg"}
        agent.link.say({"type": "samples", "at": 2.0, "gpus": [sample(0, [ignored], foreign=True)]})
        await stage.reaches(id_, "RUNNING")


@played
async def test_samples_are_kept_but_not_written(tmp_path: Path) -> None:
    """A sample that changes no decision is shown, and never reaches the journal; sixty of them are kept."""
    async with Stage(tmp_path) as stage:
        await is_ready(stage)
        written = len(stage.store.commits)
        for number in range(70):
            stage.agent.link.say({"type": "samples", "at": 1.0, "gpus": [sample(0, utilization=number / 100)]})
        await until(lambda: (stage.fleet.latest_sample("GPU-0") or {}).get("utilization") == 0.69, "all are taken")  # type: ignore[arg-type]
        gpu = (await stage.get("/v1/gpus"))["gpus"][0]
        assert gpu["utilization"] == 0.69
        assert gpu["utilization_history"] == [number / 100 for number in range(10, 70)]
        assert len(stage.store.commits) == written
        assert stage.fleet.latest_sample("GPU-unknown") is None  # type: ignore[arg-type]
        assert stage.fleet.utilization_history("GPU-unknown") == []  # type: ignore[arg-type]


@played
async def test_a_gpu_that_falls_off_the_bus(tmp_path: Path) -> None:
    """A lost GPU is shown and not given out; the job on it goes on until the node says that it has ended."""
    agent = FakeAgent(gpus=1)
    async with Stage(tmp_path, agent=agent) as stage:
        id_ = await stage.run_job()
        lost = {**agent.gpus[0], "health": "lost", "reason": "Xid 79"}
        agent.link.say({"type": "inventory", "gpus": [lost], "driver": agent.ready()["driver"]})
        await until(lambda: stage.loop.state.nodes[LOCAL].gpus[0].health.value == "lost", "the loss is seen")
        assert stage.job(id_).state.value == "RUNNING"
        (gpu,) = (await stage.get("/v1/gpus"))["gpus"]
        assert (gpu["state"], gpu["reason"], gpu["job"]) == ("lost", "Xid 79", id_)


# --- silence --------------------------------------------------------------------------------------------


@played
async def test_silence_is_suspect_then_unreachable_and_never_dead(tmp_path: Path, awake: None) -> None:
    """A silent node takes no new work, its job is left alone, and the first word brings it back."""
    async with Stage(tmp_path) as stage:
        id_ = await stage.run_job()
        before = untouched(stage, id_)
        stage.clock.advance(SUSPECT_AFTER_S + 1)
        await reaches(stage, Reach.SUSPECT)
        waiting = await stage.submit()
        assert untouched(stage, id_) == before
        assert stage.job(waiting).state.value == "PENDING"
        stage.agent.link.say({"type": "heartbeat", "at": 1.0, "stalled": []})
        await reaches(stage, Reach.UP)
        await stage.reaches(waiting, "RUNNING")
        assert len(stage.agent.links) == 1, "the link was never given up"


@played
async def test_a_node_silent_for_long_is_connected_again(tmp_path: Path, awake: None) -> None:
    """After a minute of silence another agent is started; its hello shows the job as it is."""
    async with Stage(tmp_path) as stage:
        id_ = await stage.run_job()
        before = untouched(stage, id_)
        stage.clock.advance(UNREACHABLE_AFTER_S + 1)
        await until(lambda: len(stage.agent.links) == 2, "another agent is started")
        await reaches(stage, Reach.UP)
        assert stage.agent.links[0].is_closed
        assert untouched(stage, id_) == before
        changes = [event.reach for event in stage.store.all_events() if isinstance(event, ReachChanged)]
        assert changes[0] is Reach.UNREACHABLE


@played
async def test_a_node_that_cannot_be_reached_stays_unreachable(tmp_path: Path, awake: None) -> None:
    """While no agent can be started, the node goes from suspect to unreachable and stays so; its job stays RUNNING."""
    async with Stage(tmp_path) as stage:
        id_ = await stage.run_job()
        before = untouched(stage, id_)
        stage.agent.unreachable = NodeError("The line is cut.")
        stage.agent.link.break_off()
        await reaches(stage, Reach.SUSPECT)
        stage.clock.advance(SUSPECT_AFTER_S + 1)
        tries = stage.agent.tries
        await until(lambda: stage.agent.tries > tries + 2, "it is tried again")
        assert reach_of(stage) is Reach.SUSPECT
        stage.clock.advance(UNREACHABLE_AFTER_S)
        await reaches(stage, Reach.UNREACHABLE)
        tries = stage.agent.tries
        await until(lambda: stage.agent.tries > tries + 2, "it is tried again")
        assert reach_of(stage) is Reach.UNREACHABLE
        assert untouched(stage, id_) == before
        assert (await stage.get("/v1/nodes"))["nodes"][0]["state"] == "down*"
        stage.agent.unreachable = None
        await reaches(stage, Reach.UP)
        assert untouched(stage, id_) == before


@played
async def test_a_stopped_daemon_does_not_blame_its_nodes(tmp_path: Path) -> None:
    """When the daemon itself was stopped or asleep, the silence was its own: no node is marked."""
    async with Stage(tmp_path) as stage:
        await is_ready(stage)
        before = len(stage.store.commits)
        for _ in range(3):
            stage.clock.advance(3600.0)
            seen_s = stage.clock.steady_s
            await until(lambda: connection_of(stage).last_seen_steady_s == seen_s, "the gap is noticed")  # noqa: B023
        assert reach_of(stage) is Reach.UP
        assert len(stage.store.commits) == before
        assert len(stage.agent.links) == 1


@played
async def test_a_reboot_is_seen_at_hello(tmp_path: Path) -> None:
    """A node that comes back with another boot and spool gets its evidence judged by the core, not by silence."""
    agent = FakeAgent()
    async with Stage(tmp_path, agent=agent) as stage:
        id_ = await stage.run_job()
        agent.greeting = {"boot_id": "boot-2"}
        agent.attempts[stage.attempt(id_)] |= {"phase": "lost", "rebooted": True, "error": "rebooted"}
        agent.link.break_off()
        await stage.reaches(id_, "NODE_FAIL")
        assert "rebooted" in str(stage.job(id_).message)


@played
async def test_a_fault_in_the_core_does_not_end_the_conversation_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a request of the node's runs into, the daemon keeps talking with the node."""
    async with Stage(tmp_path) as stage:
        await is_ready(stage)
        real, faults = decide.step, [1, 2]

        def step(state: Any, request: Any, now: Any) -> Any:
            if isinstance(request, NodeReached) and faults:
                raise ZeroDivisionError(faults.pop())
            return real(state, request, now)

        monkeypatch.setattr(loop_module, "step", step)
        for count in (2, 3, 4):
            stage.agent.link.break_off()
            await until(lambda: len(stage.agent.links) == count, "another agent is started")  # noqa: B023
        assert faults == []
        await stage.run_job()


@played
async def test_first_contact_waits_for_unseen_nodes_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first submit waits for a node that has never been seen; one that fails, or takes long, holds nobody up."""
    agent = FakeAgent()
    agent.is_mute = True
    async with Stage(tmp_path, agent=agent) as stage:
        first = asyncio.create_task(stage.submit({"gpus": 2}))
        await until(lambda: agent.links and agent.link.sent, "hello is said")
        assert not first.done()
        agent.is_mute = False
        agent.link.say(agent.ready())
        await first
        agent.unreachable = NodeError("The line is cut.")
        agent.link.break_off()
        await stage.submit()
    monkeypatch.setattr("gpuq.daemon.fleet.READY_WITHIN_S", 0.02)
    mute = FakeAgent()
    mute.is_mute = True
    async with Stage(tmp_path, agent=mute) as stage:
        await stage.submit()
