"""Do the chaos tests find faults? Each mutant is one fault planted on purpose; its scenario must show a broken promise.

Every scenario is played twice: with the right code no promise may break, with the mutant at least one must. What caught
which mutant stands in docs/guarantees.md, section "Planted faults".

One thing to know: a mutant that nothing catches is a hole in the tests, so this file is the test of the tests.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.driver import AgentDriver, locked
from tests.chaos.laboratory import EVIDENCE_JOB, Laboratory
from tests.e2e.harness import FINAL, eventually, is_alive

pytestmark = pytest.mark.chaos

Make = Callable[..., Laboratory]
STUCK_AFTER_S = 8.0  # with a mutant, a job that has not ended by then never does
SILENCE = {
    "gpuq.daemon.connection.SUSPECT_AFTER_S": 1.0,
    "gpuq.daemon.connection.UNREACHABLE_AFTER_S": 2.0,
    "gpuq.daemon.connection.WATCH_EVERY_S": 0.2,
}


def ack_before_commit(make: Make, mutant: str) -> list[str]:
    """The daemon dies right after it acknowledged a job."""
    lab = make(mutant=mutant, constants={"gpuq.daemon.loop.MUTANT_DELAY_S": 5.0}).start()
    lab.submit()
    lab.kill_daemon()
    return lab.settle() + lab.violations()


def no_idempotency_key(make: Make, mutant: str) -> list[str]:
    """The answer to a submit gets lost, and the client sends it again."""
    lab = make(mutant=mutant).start()
    lab.submit(replies_lost=1)
    return lab.settle() + lab.violations()


def claim_without_exclusive(make: Make, mutant: str) -> list[str]:
    """A shim is stopped before it claims; the next agent has another one claim; then the first goes on."""
    lab = make("shim.before_claim=delay:300", mutant=mutant).start()
    promise = lab.submit(run_s=-1)
    eventually((lab.directory / "faults" / "shim.before_claim").exists, "a shim is about to claim")
    agent = lab.queue.agent()
    late = [pid for forker in _children(agent) for pid in _children(forker)]
    for pid in late:
        os.kill(pid, signal.SIGSTOP)
    os.kill(agent, signal.SIGKILL)
    lab.has_begun(promise)
    for pid in late:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: lab.starts(promise) > 1 or not any(map(is_alive, late)), "the late shim claims, or gives up")
    lab.let_go(promise)
    return lab.settle() + lab.violations()


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def lock_inherited(make: Make, mutant: str) -> list[str]:
    """The shim of a job with a child in a session of its own is killed."""
    lab = make(mutant=mutant, **({"final_within_s": STUCK_AFTER_S} if mutant else {})).start()
    promise = lab.submit(run_s=-1, mode="family")
    lab.has_begun(promise)
    lab.kill_shim(promise)
    return lab.settle() + lab.violations()


def free_gpu_before_kill(make: Make, mutant: str) -> list[str]:
    """A job's first process ends, a child that ignores SIGTERM goes on, and another job waits for the GPU."""
    lab = make(mutant=mutant).start()
    lab.submit(run_s=0.1, mode="family", grace_s=1.0)
    lab.submit()
    return lab.settle() + lab.violations()


def unreachable_is_dead(make: Make, mutant: str) -> list[str]:
    """An agent is silent for so long that its node is called unreachable, while a job runs there."""
    lab = make(mutant=mutant, constants=SILENCE, settings='[gpus]\nsample_every = "0.2s"\n').start()
    promise = lab.submit(run_s=-1)
    lab.is_running(promise)
    agent = lab.queue.agent()
    os.kill(agent, signal.SIGSTOP)
    eventually(lambda: lab.queue.node().get("reach") == "unreachable" or not is_alive(agent), "the node is unreachable")
    if is_alive(agent):
        os.kill(agent, signal.SIGCONT)
    lab.queue.node_ready()
    lab.let_go(promise)
    return lab.settle() + lab.violations()


def kill_by_bare_pid(make: Make, mutant: str) -> list[str]:
    """A shim is killed while nobody looks, and the kernel gives its number to a stranger."""
    lab = make(mutant=mutant).start()
    promise = lab.submit(run_s=-1)
    attempt = lab.is_running(promise)
    shim = int(lab.queue.claim(attempt)["shim_pid"])
    lab.kill_daemon(revive=False)
    os.kill(shim, signal.SIGKILL)
    promise.disturbed = True
    with subprocess.Popen(["sleep", "60"]) as stranger:
        path = lab.queue.home / "spool" / attempt / "claim"
        path.write_text(json.dumps({**json.loads(path.read_text()), "shim_pid": stranger.pid}))
        lab.start()
        found = lab.settle() + lab.violations()
        found += ["a stranger was killed"] if stranger.poll() is not None else []
        stranger.kill()
    return found


def relaunch_when_spool_gone(make: Make, mutant: str) -> list[str]:
    """The daemon dies before it hears that a job has begun, and the spool is deleted before it is started again."""
    lab = make("daemon.before_report=kill", mutant=mutant).start(revive=False)
    promise = lab.submit(run_s=-1)
    promise.disturbed = True
    lab.await_death()
    eventually(lambda: lab.starts(promise) == 1, "the job begins")
    shutil.rmtree(lab.queue.home / "spool")
    lab.start()
    eventually(lambda: lab.starts(promise) > 1 or lab.state(promise) in FINAL, "it is given up, or begins again")
    lab.let_go(promise)
    return lab.settle() + lab.violations()


def skip_fence(make: Make, mutant: str) -> list[str]:
    """The spool is deleted under a job that goes on: it may be given up only when nothing of it lives."""
    lab = make(mutant=mutant).start()
    promise = lab.submit(run_s=-1, mode="family")
    lab.is_running(promise)
    promise.disturbed = True
    lab.kill_daemon(revive=False)
    shutil.rmtree(lab.queue.home / "spool")
    lab.start()
    return lab.settle() + lab.violations()


def double_start(make: Make, mutant: str) -> list[str]:
    """An agent is asked twice to start the same attempt, the second time while it runs."""
    lab = make()
    agent = AgentDriver(lab.directory / "spool", environment={"GPUQ_MUTANT": mutant})
    run = agent.start([sys.executable, "-S", "-E", str(EVIDENCE_JOB), str(lab.directory), "tag", "-1", "0", "plain"])
    run.running()
    eventually(lab.evidence, "the job begins")
    agent.forget()
    agent.send(type="start", attempt=run.attempt, spec=run.spec)
    begins_again = agent.phase(run.attempt, "starting", "running", "ended")["phase"] == "starting"
    eventually(lambda: len(lab.evidence()) > begins_again, "what was started begins")
    (lab.directory / "go-tag").touch()
    agent.phase(run.attempt, "ended", "lost")
    agent.close()
    eventually(lambda: not locked(agent.directory(run.attempt) / "claim"), "no shim is left")
    starts = Counter(line.attempt for line in lab.evidence() if line.what == "start")
    return [f"attempt {attempt} started {count} times" for attempt, count in starts.items() if count > 1]


def unknown_is_zero(make: Make, mutant: str) -> list[str]:
    """A shim is killed, so that nobody sees its job's exit code."""
    lab = make(mutant=mutant).start()
    promise = lab.submit(run_s=-1)
    lab.kill_shim(promise)
    return lab.settle() + lab.violations()


def release_before_commit(make: Make, mutant: str) -> list[str]:
    """The daemon is stopped when a job ends and is killed before it reads the report."""
    lab = make(mutant=mutant).start()
    promise = lab.submit(run_s=-1, code=4)
    attempt = lab.is_running(promise)
    os.kill(lab.queue.pid, signal.SIGSTOP)
    lab.let_go(promise)
    record = lab.queue.home / "spool" / attempt / "exit.json"
    eventually(lambda: record.exists() or not record.parent.exists(), "the exit record is written")
    if mutant:
        eventually(lambda: not record.parent.exists(), "the agent forgets the attempt")
    lab.kill_daemon()
    return lab.settle() + lab.violations()


SCENARIOS: dict[str, Callable[[Make, str], list[str]]] = {
    "ack-before-commit": ack_before_commit,
    "no-idempotency-key": no_idempotency_key,
    "claim-without-exclusive": claim_without_exclusive,
    "double-start": double_start,
    "lock-inherited": lock_inherited,
    "free-gpu-before-kill": free_gpu_before_kill,
    "unreachable-is-dead": unreachable_is_dead,
    "relaunch-when-spool-gone": relaunch_when_spool_gone,
    "skip-fence": skip_fence,
    "kill-by-bare-pid": kill_by_bare_pid,
    "unknown-is-zero": unknown_is_zero,
    "release-before-commit": release_before_commit,
}


@pytest.mark.parametrize("mutant", SCENARIOS)
def test_promises_hold_without(laboratory: Make, mutant: str) -> None:
    """The scenario that is to catch a mutant breaks no promise of the right code."""
    assert SCENARIOS[mutant](laboratory, "") == []


@pytest.mark.parametrize("mutant", SCENARIOS)
def test_mutant_is_caught(laboratory: Make, mutant: str) -> None:
    """With the fault planted, the same scenario finds a broken promise."""
    found = SCENARIOS[mutant](laboratory, mutant)
    print(f"{mutant}: {found}")
    assert found
