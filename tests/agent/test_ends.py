"""Ending jobs: cancel, time limits, leftovers, and jobs that resist, at every containment level."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.agent.driver import AgentDriver, alive, eventually

pytestmark = pytest.mark.e2e

SLACK_S = 4.0  # for a machine with more runnable processes than cores
IGNORES_TERM = "trap '' TERM; echo $$; while :; do sleep 0.2; done"


def gone(pids: list[int]) -> bool:
    """Whether none of the pids lives."""
    return not any(alive(pid) for pid in pids)


def test_cancel_ends_the_whole_tree(leveled: AgentDriver) -> None:
    """Cancel reaches background children, a session of its own and a double fork; the record has the reason."""
    run = leveled.start(
        "sleep 301 & echo $!; setsid sleep 302 & echo $!; (setsid sh -c 'sleep 303 & echo $!'); echo $$; wait"
    )
    pids = run.pids(4)
    run.stop(grace_s=5)
    record = run.ended()
    assert (record["signal"], record["reason"]) == (signal.SIGTERM, "cancel")
    assert gone(pids)


def test_term_ignored_is_killed_after_the_grace(leveled: AgentDriver) -> None:
    """A job that ignores TERM lives through the grace and not longer than two seconds more."""
    run = leveled.start(IGNORES_TERM)
    pids = run.pids(1)
    begin = time.monotonic()
    run.stop(grace_s=0.6)
    assert leveled.phase(run.attempt, "ending")["stopping"] == "cancel"
    record = run.ended()
    assert 0.6 <= time.monotonic() - begin < 2.6 + SLACK_S
    assert (record["status"], record["signal"], record["reason"]) == ("signaled", signal.SIGKILL, "cancel")
    assert gone(pids)


def test_stopped_job_can_be_cancelled(leveled: AgentDriver) -> None:
    """A stopped job gets TERM and CONT, and ends at once."""
    run = leveled.start("echo $$; kill -STOP $$; sleep 100")
    pid = run.pids(1)[0]
    eventually(lambda: Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] == "T", "the job to stop")
    run.stop(grace_s=10)
    assert run.ended(deadline_s=5)["reason"] == "cancel"


def test_fork_bomb_ends(leveled: AgentDriver) -> None:
    """A bounded fork bomb that ignores TERM is gone within grace and two seconds."""
    bomb = (
        "import os,signal,time\nsignal.signal(15, signal.SIG_IGN)\nprint(os.getpid(), flush=True)\n"
        "for _ in range(7):\n  os.fork()\n"
        "end = time.time() + 60\n"
        "while time.time() < end:\n"
        "  pid = os.fork()\n"
        "  if pid: time.sleep(0.2); os._exit(0)\n"
    )
    run = leveled.start(["/usr/bin/env", "python3", "-S", "-E", "-c", bomb])
    run.pids(1)
    run.stop(grace_s=0.2)
    run.ended(deadline_s=0.2 + 2 + SLACK_S)
    assert not marked(run.attempt)


def marked(attempt: str) -> list[str]:
    """Pids whose environment names the attempt."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"GPUQ_ATTEMPT_ID={attempt}".encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def test_leftovers_end_after_the_first_process(leveled: AgentDriver) -> None:
    """When the first process ends by itself the rest gets TERM, then KILL; status and code are the first's."""
    run = leveled.start("(trap '' TERM; echo $BASHPID; while :; do sleep 0.2; done) & sleep 0.3; exit 4", grace_s=0.4)
    ending = leveled.phase(run.attempt, "ending")
    assert (ending["exit_code"], ending["stopping"]) == (4, None)
    record = run.ended()
    assert (record["exit_code"], record["reason"]) == (4, None)
    assert record["run_s"] >= 0.7
    assert gone(run.pids(1))


def test_cgroups_are_removed(leveled: AgentDriver) -> None:
    """No directory of an attempt stays in any cgroup hierarchy."""
    run = leveled.start("true")
    run.ended()
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{run.attempt}"))


def test_job_is_in_its_cgroup_and_the_shim_is_not(leveled: AgentDriver) -> None:
    """At levels A and B the job's own cgroup names its attempt, the shim's does not."""
    run = leveled.start("cat /proc/$$/cgroup; echo done; sleep 60")
    eventually(lambda: "done" in run.output(), "the job's cgroups")
    level = leveled.ready()["containment"]["level"]
    assert (run.attempt in run.output()) == (level != "C")
    assert run.attempt not in Path(f"/proc/{leveled.shim_pid(run.attempt)}/cgroup").read_text()
    run.stop(grace_s=0)
    run.ended()


def test_memory_limit(start_agent: object) -> None:
    """Over its memory limit a job ends as out of memory, where the node can limit memory."""
    assert callable(start_agent)
    driver: AgentDriver = start_agent(environment={"GPUQ_CONTAINMENT": "B"})
    frame = driver.wait_for(lambda frame: frame["type"] in ("ready", "refused"), "an answer")
    if frame["type"] == "refused" or not frame["containment"]["memory_limit"]:
        pytest.skip("this machine has no writable memory controller of cgroup v1")
    hog = "x = []\nwhile True: x.append(bytearray(1 << 20))"
    run = driver.start(["/usr/bin/env", "python3", "-c", hog], memory_limit_mib=64)
    record = run.ended()
    assert (record["signal"], record["reason"]) == (signal.SIGKILL, "out_of_memory")


def test_time_limit_terminates_then_kills(leveled: AgentDriver) -> None:
    """At the limit TERM, after the grace KILL, both by the shim alone; the reason is timeout."""
    run = leveled.start(IGNORES_TERM, time_limit_s=0.5, grace_s=0.4)
    record = run.ended()
    assert (record["signal"], record["reason"]) == (signal.SIGKILL, "timeout")
    assert 0.9 <= record["run_s"] < 2.9 + SLACK_S


def test_time_limit_without_agent(start_agent: object) -> None:
    """The limit is kept while no agent is there, and the next one reports it."""
    assert callable(start_agent)
    first: AgentDriver = start_agent()
    run = first.start("echo $$; sleep 100", time_limit_s=1.0)
    pids = run.pids(1)
    first.kill()
    eventually(lambda: gone(pids), "the job to end at its limit")
    second: AgentDriver = start_agent()
    assert second.phase_at_start(run.attempt, "ended")["reason"] == "timeout"


def test_limit_can_change(agent: AgentDriver) -> None:
    """A new limit counts from the start of the job: longer keeps it alive, shorter ends it."""
    run = agent.start("echo $$; sleep 100", time_limit_s=0.8)
    pids = run.pids(1)
    agent.send(type="limit", attempt=run.attempt, time_limit_s=None)
    begin = time.monotonic()
    eventually(lambda: time.monotonic() - begin > 1.2, "time to pass")
    assert alive(pids[0])
    agent.send(type="limit", attempt=run.attempt, time_limit_s=0.1)
    assert run.ended()["reason"] == "timeout"


def test_limit_before_the_claim_counts(start_agent: object) -> None:
    """A limit that arrives between the request and the claim is not lost."""
    assert callable(start_agent)
    driver: AgentDriver = start_agent(environment={"GPUQ_FAILPOINTS": "shim.before_claim=delay:500"})
    driver.ready()
    run = driver.start("sleep 100")
    driver.send(type="limit", attempt=run.attempt, time_limit_s=0.2)
    assert run.ended()["reason"] == "timeout"


@pytest.mark.parametrize("everyone", [True, False])
def test_warning_signal(agent: AgentDriver, everyone: bool) -> None:
    """The warning comes before the limit, to every process or to the first only."""
    text = (
        "trap 'echo first' USR1; (trap 'echo second; exit' USR1; while :; do sleep 0.05; done) & "
        "for i in $(seq 300); do sleep 0.05; done"
    )
    run = agent.start(text, time_limit_s=1.5, warn_signal=int(signal.SIGUSR1), warn_before_s=0.9, warn_all=everyone)
    record = run.ended()
    assert record["reason"] == "timeout"
    words = run.output().split()
    assert "first" in words
    assert ("second" in words) == everyone


def test_signal_reaches_every_process(agent: AgentDriver) -> None:
    """`signal` is delivered to the first process and to its children."""
    text = (
        "trap 'echo got' USR2; (trap 'echo got; exit' USR2; echo $BASHPID; while :; do sleep 0.05; done) & wait; wait"
    )
    run = agent.start(text)
    run.pids(1)
    agent.send(type="signal", attempt=run.attempt, signal=int(signal.SIGUSR2))
    eventually(lambda: run.output().count("got") == 2, "two signals")


def test_repeated_stop_never_lengthens(agent: AgentDriver) -> None:
    """A second stop with a longer grace changes nothing; one with a shorter grace counts; the first reason stays."""
    run = agent.start(IGNORES_TERM)
    run.pids(1)
    begin = time.monotonic()
    run.stop(grace_s=1.0, reason="preempt")
    run.stop(grace_s=60, reason="cancel")
    assert run.ended()["reason"] == "preempt"
    assert time.monotonic() - begin < 3 + SLACK_S
    other = agent.start(IGNORES_TERM)
    other.pids(1)
    begin = time.monotonic()
    other.stop(grace_s=60)
    other.stop(grace_s=0.1)
    other.ended(deadline_s=5)


def test_stop_before_the_claim(start_agent: object, tmp_path: Path) -> None:
    """A stop that arrives before the claim ends the attempt as never started."""
    assert callable(start_agent)
    driver: AgentDriver = start_agent(environment={"GPUQ_FAILPOINTS": "shim.before_claim=delay:400"})
    driver.ready()
    run = driver.start(["/usr/bin/touch", str(tmp_path / "ran")])
    run.stop(grace_s=1)
    record = run.ended()
    assert (record["status"], record["reason"]) == ("not_started", "cancel")
    assert not (tmp_path / "ran").exists()


def test_exit_code_of_a_job_that_handles_term(agent: AgentDriver) -> None:
    """A job that ends itself on TERM keeps its own exit code beside the reason."""
    run = agent.start("trap 'exit 9' TERM; echo $$; while :; do sleep 0.05; done")
    run.pids(1)
    run.stop(grace_s=10, reason="requeue")
    record = run.ended()
    assert (record["status"], record["exit_code"], record["reason"]) == ("exited", 9, "requeue")


def test_log_cap_keeps_head_and_tail(agent: AgentDriver) -> None:
    """A log over its limit keeps its first and last lines, loses blocks in the middle, and is counted."""
    limit = 900 * 1024
    text = "echo HEAD; for i in 1 2 3 4; do head -c 2000000 /dev/zero | tr '\\0' x; sleep 0.6; done; echo TAIL"
    run = agent.start(text, log_limit_bytes=limit)
    record = run.ended()
    path = Path(run.spec["stdout"])
    data = path.read_bytes()
    assert record["log_bytes"] == len(data) == 8_000_010
    assert data.startswith(b"HEAD\n" + b"x" * 90_000)
    assert data.endswith(b"x" * 600_000 + b"TAIL\n")
    assert path.stat().st_blocks * 512 <= limit + 16384
    assert data.count(0) == record["log_dropped_bytes"] >= 7_000_000


def test_full_disk(tmp_path: Path, start_agent: object) -> None:
    """On a full spool a job can be cancelled, its exit record is written, and new work is refused with the reason."""
    assert callable(start_agent)
    place = tmp_path / "spool"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k,mode=0700", "gpuq-test", str(place)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a tmpfs is not allowed here")
    try:
        driver: AgentDriver = start_agent()
        run = driver.start(
            f"trap 'exit 13' TERM; head -c 1m /dev/zero > {place}/fill; echo $$; while :; do sleep 0.1; done"
        )
        run.pids(1)
        refused = driver.start("true").ended()
        assert refused["status"] == "not_started"
        assert "space" in refused["error"]
        run.stop(grace_s=5)
        record = run.ended()
        assert (record["exit_code"], record["reason"]) == (13, "cancel")
        (place / "fill").unlink()
        assert driver.start("exit 2").ended()["exit_code"] == 2
        driver.close()
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_terminated_shim_goes_on(agent: AgentDriver) -> None:
    """TERM, HUP and INT sent to a shim do not end it: the job's status is still seen."""
    run = agent.start("echo $$; read -t 0.5 < <(sleep 5); exit 6")
    run.pids(1)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        os.kill(agent.shim_pid(run.attempt), number)
    assert run.ended()["exit_code"] == 6
