"""What survives what: agents, forkers and shims killed at any moment, and the verdicts read from the spool."""

from __future__ import annotations

import json
import os
import shutil
import signal
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuq.agent import spool, verdict
from gpuq.agent.verdict import Phase
from tests.agent.driver import AgentDriver, alive, eventually

pytestmark = pytest.mark.e2e

StartAgent = Callable[..., AgentDriver]


def children(pid: int, word: str) -> list[int]:
    """Pids of a process's children whose command line has the word."""
    pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(item) for item in pids if word in Path(f"/proc/{item}/cmdline").read_text().split("\0")]


def held(tmp_path: Path, code: int) -> str:
    """A job that prints its pid and ends with a code once `<tmp_path>/go` exists."""
    return f"echo $$; until [ -e {tmp_path / 'go'} ]; do sleep 0.05; done; exit {code}"


def test_job_survives_the_agent(start_agent: StartAgent, tmp_path: Path) -> None:
    """`kill -9` of the agent does not touch the job; the next agent reports it running, then its exit code."""
    first = start_agent()
    run = first.start(held(tmp_path, 11))
    pids = run.pids(1)
    first.kill()
    second = start_agent()
    assert second.phase_at_start(run.attempt, "running")["shim_pid"] == second.shim_pid(run.attempt)
    assert alive(pids[0])
    (tmp_path / "go").touch()
    assert second.phase(run.attempt, "ended")["exit_code"] == 11


def test_job_survives_the_end_of_input(start_agent: StartAgent) -> None:
    """The agent and its forker end with their input; a job that ends meanwhile is reported by the next agent."""
    first = start_agent()
    run = first.start("echo $$; sleep 0.3; exit 12")
    run.pids(1)
    forkers = children(first.process.pid, "forker")
    assert len(forkers) == 1
    first.close()
    assert first.process.returncode == 0
    eventually(lambda: not alive(forkers[0]), "the forker to end")
    record = eventually(lambda: spool.read_json(str(first.directory(run.attempt)), spool.EXIT), "the exit record")
    assert record["exit_code"] == 12
    assert start_agent().phase_at_start(run.attempt, "ended")["exit_code"] == 12


def test_free_shims_end_with_the_forker(start_agent: StartAgent) -> None:
    """No shim stays behind when the agent has gone and no job runs."""
    agent = start_agent()
    run = agent.start("true")
    run.ended()
    shim = agent.shim_pid(run.attempt)
    agent.close()
    eventually(lambda: not alive(shim), "the free shim to end")


def test_forker_is_started_again(agent: AgentDriver, tmp_path: Path) -> None:
    """After `kill -9` of the forker running jobs go on and new ones start."""
    run = agent.start(held(tmp_path, 3))
    run.pids(1)
    os.kill(children(agent.process.pid, "forker")[0], signal.SIGKILL)
    assert agent.start("exit 4").ended()["exit_code"] == 4
    (tmp_path / "go").touch()
    assert run.ended()["exit_code"] == 3


def test_killed_shim_is_lost_and_nothing_is_left(leveled: AgentDriver) -> None:
    """`kill -9` of a shim ends its job, session leavers included; only then it is reported as lost."""
    run = leveled.start("setsid sleep 311 & echo $!; trap '' TERM; (sleep 312 & echo $!); echo $$; wait; sleep 100")
    pids = run.pids(3)
    os.kill(leveled.shim_pid(run.attempt), signal.SIGKILL)
    frame = leveled.phase(run.attempt, "lost")
    assert not [pid for pid in pids if alive(pid)]
    assert frame["rebooted"] is False
    assert "killed" in frame["error"]
    leveled.send(type="release", attempt=run.attempt)
    leveled.phase(run.attempt, "absent")
    assert not leveled.directory(run.attempt).exists()


def test_shim_killed_while_no_agent_is_there(start_agent: StartAgent) -> None:
    """The next agent finds the dead shim's leftovers by their marker and kills them."""
    first = start_agent(environment={"GPUQ_CONTAINMENT": "C"})
    run = first.start("setsid sleep 313 & echo $!; sleep 100")
    pids = run.pids(1)
    first.kill()
    os.kill(first.shim_pid(run.attempt), signal.SIGKILL)
    assert alive(pids[0])
    start_agent().phase_at_start(run.attempt, "lost")
    assert not alive(pids[0])


def test_leftovers_without_marker_are_in_the_cgroup(start_agent: StartAgent) -> None:
    """At level A a process that dropped its environment is found too."""
    agent = start_agent(environment={"GPUQ_CONTAINMENT": "A"})
    if agent.wait_for(lambda f: f["type"] in ("ready", "refused"), "an answer")["type"] == "refused":
        pytest.skip("this machine has no writable cgroup v2")
    run = agent.start("env -i setsid sleep 314 & sleep 0.3; pgrep -n -f 'sleep 314'; sleep 100")
    pid = run.pids(1)[0]
    os.kill(agent.shim_pid(run.attempt), signal.SIGKILL)
    agent.phase(run.attempt, "lost")
    assert not alive(pid)


def test_stopped_shim_is_stalled_and_can_be_cancelled(leveled: AgentDriver) -> None:
    """A stopped shim is listed as stalled; a stop still ends its job, with an honest record."""
    run = leveled.start("echo $$; sleep 100")
    pids = run.pids(1)
    os.kill(leveled.shim_pid(run.attempt), signal.SIGSTOP)
    leveled.wait_for(lambda f: f["type"] == "heartbeat" and run.attempt in f["stalled"], "a stalled attempt")
    run.stop(grace_s=0.5)
    frame = leveled.phase(run.attempt, "ended", "lost")
    assert not alive(pids[0])
    assert frame["phase"] == "ended"
    assert (frame["signal"], frame["reason"]) == (signal.SIGTERM, "cancel")


def test_frozen_shim_cannot_keep_its_job_alive(agent: AgentDriver) -> None:
    """A shim that cannot be woken up does not save its job from a stop: the agent kills it after the grace."""
    group = Path(f"/sys/fs/cgroup/freezer/gpuq-test-{uuid.uuid4().hex[:8]}")
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no writable cgroup v1 freezer")
    run = agent.start("echo $$; sleep 100")
    pid, shim = run.pids(1)[0], agent.shim_pid(run.attempt)
    (group / "cgroup.procs").write_text(str(shim))
    (group / "freezer.state").write_text("FROZEN")
    run.stop(grace_s=0.1)
    try:
        eventually(lambda: not alive(pid), "the job to be killed")
    finally:
        (group / "freezer.state").write_text("THAWED")
    agent.phase(run.attempt, "lost", "ended")
    if alive(shim):
        (group.parent / "cgroup.procs").write_text(str(shim))
    eventually(lambda: not (group / "cgroup.procs").read_text(), "the group to empty")
    group.rmdir()


def test_start_is_idempotent(agent: AgentDriver, tmp_path: Path) -> None:
    """Repeated start requests, before and after the claim and by another agent, run the program once."""
    evidence = tmp_path / "evidence"
    run = agent.start(f"echo start >> {evidence}; sleep 0.5")
    for _ in range(20):
        agent.send(type="start", attempt=run.attempt, spec=run.spec)
    run.ended()
    agent.send(type="start", attempt=run.attempt, spec=run.spec)
    agent.forget()
    agent.send(type="scan")
    agent.phase(run.attempt, "ended")
    assert evidence.read_text() == "start\n"


def test_fence_before_start(start_agent: StartAgent, tmp_path: Path) -> None:
    """A fenced attempt never starts, also after the agent was started again; release forgets it."""
    first = start_agent()
    attempt = str(uuid.uuid4())
    first.send(type="fence", attempt=attempt)
    first.phase(attempt, "fenced")
    first.kill()
    second = start_agent()
    second.phase_at_start(attempt, "fenced")
    second.forget()
    second.start(["/usr/bin/touch", str(tmp_path / "ran")], attempt=attempt)
    second.phase(attempt, "fenced")
    second.start("true").ended()
    assert not (tmp_path / "ran").exists()
    second.send(type="release", attempt=attempt)
    second.phase(attempt, "absent")


def test_fence_after_start_reports_the_truth(agent: AgentDriver, tmp_path: Path) -> None:
    """A fence that comes too late changes nothing and is answered with the running attempt."""
    run = agent.start(held(tmp_path, 2))
    run.pids(1)
    agent.forget()
    agent.send(type="fence", attempt=run.attempt)
    agent.phase(run.attempt, "running")
    (tmp_path / "go").touch()
    assert run.ended()["exit_code"] == 2


def test_fence_after_the_directory_is_gone(agent: AgentDriver, tmp_path: Path) -> None:
    """A fence of an attempt whose directory was deleted says "fenced" only when the job's processes are dead."""
    run = agent.start(held(tmp_path, 0))
    pids = run.pids(1)
    shutil.rmtree(agent.spool / run.attempt)
    agent.send(type="fence", attempt=run.attempt)
    agent.phase(run.attempt, "fenced")
    assert not alive(pids[0])


def test_fence_and_start_race(start_agent: StartAgent, tmp_path: Path) -> None:
    """Whatever the order, an attempt that was reported as fenced has not run and will not."""
    agent = start_agent(environment={"GPUQ_FAILPOINTS": "shim.before_claim=delay:20"})
    agent.ready()
    runs = []
    for number in range(30):
        mark = tmp_path / f"ran{number}"
        runs.append((agent.start(["/usr/bin/touch", str(mark)]), mark))
        if number % 3:
            agent.phase(runs[-1][0].attempt, *(("starting",) if number % 3 == 1 else ("running", "ended")))
        agent.send(type="fence", attempt=runs[-1][0].attempt)
    outcomes = set()
    for run, mark in runs:
        phase = agent.phase(run.attempt, "fenced", "ended")["phase"]
        outcomes.add(phase)
        assert mark.exists() == (phase == "ended")
    assert outcomes == {"fenced", "ended"}


def test_release_leaves_what_lives(agent: AgentDriver, tmp_path: Path) -> None:
    """Release of a running attempt does nothing; of an ended one it removes the directory."""
    run = agent.start(held(tmp_path, 0))
    run.pids(1)
    agent.send(type="release", attempt=run.attempt)
    eventually(lambda: agent.read() or "not released" in agent.stderr(), "the refusal to release")
    (tmp_path / "go").touch()
    run.ended()
    assert agent.directory(run.attempt).is_dir()
    agent.send(type="release", attempt=run.attempt)
    agent.phase(run.attempt, "absent")
    assert not agent.directory(run.attempt).exists()


def test_removal_follows_no_link(agent: AgentDriver, tmp_path: Path) -> None:
    """A link planted in an attempt's directory is removed, not what it leads to."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    run = agent.start("true")
    run.ended()
    (agent.directory(run.attempt) / "link").symlink_to(precious)
    (agent.directory(run.attempt) / "folder").mkdir()
    agent.send(type="release", attempt=run.attempt)
    agent.phase(run.attempt, "absent")
    assert (precious / "file").read_text() == "kept"


def test_ended_is_repeated_until_released(agent: AgentDriver) -> None:
    """The end is reported again and again, so that a lost report costs nothing."""
    run = agent.start("true")
    run.ended()
    agent.forget()
    agent.phase(run.attempt, "ended", deadline_s=10)


def test_starting_attempt_of_a_dead_agent_is_started_on_request(start_agent: StartAgent, tmp_path: Path) -> None:
    """An agent killed before it asked for a shim leaves `starting`; a repeated request starts it once."""
    first = start_agent(environment={"GPUQ_FAILPOINTS": "agent.before_fork_request=kill"})
    run = first.start(f"echo start >> {tmp_path / 'evidence'}")
    first.process.wait(timeout=20)
    second = start_agent()
    second.phase_at_start(run.attempt, "starting")
    second.send(type="start", attempt=run.attempt, spec=run.spec)
    second.phase(run.attempt, "ended")
    assert (tmp_path / "evidence").read_text() == "start\n"


@pytest.mark.parametrize(("field", "rebooted"), [("boot_id", True), ("pid1_start_ticks", True), (None, False)], ids=str)
def test_verdict_after_reboot(tmp_path: Path, field: str | None, rebooted: bool) -> None:
    """A free lock is lost; it says rebooted if the boot or the first process differs from the claim's."""
    claim = {
        "shim_pid": os.getpid(),
        "start_ticks": 1,
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "pid1_start_ticks": int(Path("/proc/1/stat").read_text().rsplit(")", 1)[1].split()[19]),
        "started_at": 1.0,
    }
    if field is not None:
        claim[field] = "other" if field == "boot_id" else 1
    (tmp_path / "claim").write_text(json.dumps(claim))
    found = verdict.verdict(str(tmp_path))
    assert (found.phase, found.fields["rebooted"]) == (Phase.LOST, rebooted)


def test_verdicts_of_files(tmp_path: Path) -> None:
    """No directory is absent, a spec alone is starting, a record is ended; a damaged claim never looks unstarted."""
    directory = tmp_path / "attempt"
    assert verdict.verdict(str(directory)).phase is Phase.ABSENT
    directory.mkdir()
    assert verdict.verdict(str(directory)).phase is Phase.ABSENT
    (directory / "spec.json").write_text("{}")
    assert verdict.verdict(str(directory)).phase is Phase.STARTING
    (directory / "claim").write_text("")
    assert verdict.verdict(str(directory)).phase is Phase.LOST
    (directory / "exit.json").write_text('{"attempt": "x", "exit_code": 0}')
    found = verdict.verdict(str(directory))
    assert (found.phase, found.fields) == (Phase.ENDED, {"exit_code": 0})


def test_claim_is_held_by_one(tmp_path: Path) -> None:
    """The first claim wins and is locked; a second gets nothing and leaves no file behind."""
    directory = tmp_path / "attempt"
    directory.mkdir()
    first = spool.make_claim(str(directory), {"a": 1})
    assert first is not None
    assert spool.is_locked(str(directory))
    assert spool.make_claim(str(directory), {"a": 2}) is None
    assert [path.name for path in directory.iterdir()] == ["claim"]
    os.close(first)
    assert not spool.is_locked(str(directory))


def test_foreign_process_with_the_shims_pid_survives(start_agent: StartAgent) -> None:
    """A claim that names a pid which is another process now kills nothing of it."""
    agent = start_agent()
    agent.ready()
    attempt = str(uuid.uuid4())
    directory = agent.directory(attempt)
    directory.mkdir()
    stranger = os.getpid()
    (directory / "claim").write_text(json.dumps({"shim_pid": stranger, "start_ticks": 5, "started_at": 1.0}))
    agent.send(type="stop", attempt=attempt, reason="cancel", grace_s=0)
    agent.phase(attempt, "lost")
    assert alive(stranger)
