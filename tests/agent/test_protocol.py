"""The conversation itself: greeting, refusals, bad frames, and the limits of the spool."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuq.agent import spool
from gpuq.agent.frames import FrameReader, FrameWriter
from tests.agent.driver import AgentDriver, eventually

pytestmark = pytest.mark.e2e

StartAgent = Callable[..., AgentDriver]
READY_FIELDS = {
    "type", "protocol", "agent_version", "hostname", "boot_id", "spool_id", "cpus", "memory_mib", "containment",
    "gpus", "driver", "attempts", "spool_filesystem", "warnings",
}  # fmt: skip


def test_ready_has_every_field(agent: AgentDriver) -> None:
    """`ready` carries what the protocol names, and the spool keeps its identity."""
    frame = agent.ready()
    assert set(frame) == READY_FIELDS
    assert set(frame["containment"]) == {"level", "detail", "memory_limit"}
    assert frame["spool_id"] == (agent.spool / "id").read_text()
    assert frame["cpus"] > 0
    assert frame["memory_mib"] > 100


def test_spool_identity_outlives_agents(start_agent: StartAgent) -> None:
    """A second agent on the same spool reports the same id."""
    first = start_agent()
    known = first.ready()["spool_id"]
    first.close()
    assert start_agent().ready()["spool_id"] == known


def test_ready_comes_first(start_agent: StartAgent) -> None:
    """News of an attempt that comes while the agent is still getting ready is told by `ready`, never before it."""
    first = start_agent()
    run = first.start("true")
    run.ended()
    first.close()
    second = start_agent()
    for _ in range(200):
        spool.ring(str(second.spool / spool.WAKE), run.attempt.encode() + b"\n")
        if second.frames:
            break
        second.read(0.02)
    second.ready()
    assert second.frames[0]["type"] == "ready"


def test_second_agent_is_refused(agent: AgentDriver, start_agent: StartAgent) -> None:
    """Two agents on one spool: the second waits a little, is refused and ends; the first goes on."""
    second = start_agent()
    error = second.wait_for(lambda frame: frame["type"] == "refused", "a refusal")["error"]
    assert str(agent.spool) in error
    assert second.process.wait(timeout=10) == 1
    assert agent.start("exit 5").ended()["exit_code"] == 5


def test_agent_waits_for_a_dying_predecessor(agent: AgentDriver, start_agent: StartAgent) -> None:
    """An agent that finds the lock taken gets it when the predecessor ends soon."""
    second = start_agent()
    second.read(0.5)
    agent.close()
    second.ready()


@pytest.mark.parametrize("case", ["mode", "file", "protocol", "level"])
def test_refusals(start_agent: StartAgent, tmp_path: Path, case: str) -> None:
    """An open or impossible spool, an unknown protocol and an impossible level are refused in a sentence."""
    environment: dict[str, str] = {}
    if case == "mode":
        (tmp_path / "spool").mkdir()
        (tmp_path / "spool").chmod(0o755)
    elif case == "file":
        (tmp_path / "spool").write_text("")
    elif case == "level":
        environment["GPUQ_CONTAINMENT"] = "Z"
    agent = start_agent(greet=False, environment=environment)
    agent.hello(protocol=99 if case == "protocol" else 1)
    error = agent.wait_for(lambda frame: frame["type"] == "refused", "a refusal")["error"]
    word = {"mode": "chmod", "file": "spool", "protocol": "protocol", "level": "GPUQ_CONTAINMENT"}[case]
    assert word in error
    assert agent.process.wait(timeout=10) == 1


def test_bad_frames_are_survived(agent: AgentDriver) -> None:
    """Garbage, an over-long line, unknown types and path tricks leave a log line and a working agent."""
    agent.send_bytes(b'garbage\n[1,2]\n{"no":"type"}\n\xff\xfe\n\n')
    agent.send_bytes(b"x" * (17 * 1024 * 1024) + b"\n")
    agent.send(type="from-the-future", attempt=str(uuid.uuid4()))
    agent.send(type="start", attempt="../../evil", spec=agent.spec(["/bin/true"]))
    agent.send(type="release", attempt="..")
    agent.send(type="start", attempt=str(uuid.uuid4()))
    agent.send(type="signal", attempt=str(uuid.uuid4()), signal="nine")
    assert agent.start("exit 6").ended()["exit_code"] == 6
    log = agent.stderr()
    assert "over the limit" in log
    assert "'../../evil'" in log
    assert log.count("ignored") >= 5
    assert not list(agent.spool.parent.glob("evil*"))


def test_bye_ends_the_agent(agent: AgentDriver) -> None:
    """`bye` ends the agent with code 0."""
    agent.send(type="bye")
    assert agent.process.wait(timeout=10) == 0


def test_unknown_attempts_are_absent(agent: AgentDriver) -> None:
    """A stop for an attempt that is not in the spool is answered with `absent` and leaves nothing."""
    attempt = str(uuid.uuid4())
    agent.send(type="stop", attempt=attempt, reason="cancel", grace_s=1)
    agent.phase(attempt, "absent")
    assert not agent.directory(attempt).exists()


def test_emptied_spool_starts_nothing(agent: AgentDriver, tmp_path: Path) -> None:
    """When the spool was replaced under the agent, it starts nothing there and says so."""
    agent.spool.rename(tmp_path / "elsewhere")
    agent.spool.mkdir(mode=0o700)
    run = agent.start(["/usr/bin/touch", str(tmp_path / "ran")])
    record = run.ended()
    assert record["status"] == "not_started"
    assert "spool" in record["error"]
    assert not (tmp_path / "ran").exists()


def test_many_jobs_reuse_shims(agent: AgentDriver) -> None:
    """A stream of short jobs all end with their own codes, with few shim processes and no descriptor growth."""
    shims = set()
    before = 0
    for number in range(60):
        run = agent.start(f"exit {number}")
        assert run.ended()["exit_code"] == number
        shims.add(agent.shim_pid(run.attempt))
        agent.send(type="release", attempt=run.attempt)
        agent.phase(run.attempt, "absent")
        if number == 20:
            before = len(os.listdir(f"/proc/{agent.process.pid}/fd"))
    assert len(shims) < 10
    assert len(os.listdir(f"/proc/{agent.process.pid}/fd")) <= before
    free = [Path(f"/proc/{pid}/fd") for pid in shims if Path(f"/proc/{pid}").exists()]
    eventually(lambda: all(len(os.listdir(path)) <= 6 for path in free), "the shims to close what they opened")


def test_idle_agent_sleeps(agent: AgentDriver) -> None:
    """With a running job the agent and its shim use next to no CPU time."""
    run = agent.start("echo $$; sleep 100")
    run.pids(1)
    pids = [agent.process.pid, agent.shim_pid(run.attempt)]
    before = [cpu_ticks(pid) for pid in pids]
    begin = time.monotonic()
    while time.monotonic() < begin + 2:
        agent.read(0.5)
    assert [cpu_ticks(pid) - old for pid, old in zip(pids, before, strict=True)] <= [10, 1]


def cpu_ticks(pid: int) -> int:
    """User and system time of a process in clock ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def test_frame_reader_cuts_lines() -> None:
    """Frames split over reads are joined; a line over the limit is dropped and the next one read."""
    source, target = os.pipe()
    os.set_blocking(source, False)
    reader = FrameReader(source, limit_bytes=64)
    os.write(target, b'{"type":"a"')
    assert reader.read() == []
    os.write(target, b'}\n{"type":"b"}\n' + b"z" * 40)
    assert reader.read() == [{"type": "a"}, {"type": "b"}]
    os.write(target, b"z" * 40)
    assert reader.read() == []
    os.write(target, b'\n{"type":"c"}\n')
    assert reader.read() == [{"type": "c"}]
    os.close(target)
    assert reader.read() == []
    assert reader.ended
    os.close(source)


def test_frame_writer_never_blocks() -> None:
    """A daemon that does not read costs stale frames only; all others arrive when it reads again."""
    source, target = os.pipe()
    os.set_blocking(target, False)
    os.set_blocking(source, False)
    writer = FrameWriter(target)
    for number in range(300):
        writer.send({"type": "samples", "fill": "x" * 10_000})
        writer.send({"type": "attempt", "number": number})
        writer.flush()
    assert writer.waiting
    reader, frames = FrameReader(source), []
    while writer.waiting:
        frames += reader.read()
        writer.flush()
    frames += reader.read()
    assert [frame["number"] for frame in frames if frame["type"] == "attempt"] == list(range(300))
    assert 0 < sum(frame["type"] == "samples" for frame in frames) < 300
    os.close(source)
    writer.send({"type": "attempt"})
    writer.flush()
    assert writer.broken
    os.close(target)
