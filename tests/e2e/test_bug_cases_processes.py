"""Faults of other queues in ending jobs, keeping GPUs exclusive, restarts and clocks; each test has its case's id."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.harness import Queue, eventually, holds_for, is_alive, living_among

pytestmark = pytest.mark.e2e

SHORT_WATCH = {
    "gpuq.daemon.connection.WATCH_EVERY_S": 0.2,
    "gpuq.daemon.connection.PAUSE_S": 0.5,
    "gpuq.daemon.connection.SUSPECT_AFTER_S": 1.5,
    "gpuq.daemon.connection.UNREACHABLE_AFTER_S": 120.0,
}

TREES = {
    "children": 'trap "" TERM; (sleep 987 & echo $!; wait) & sleep 987 & echo $!; wait',
    "setsid": "setsid bash -c 'echo $$; exec sleep 987' & sleep 987 & echo $!; wait",
    "double_fork": "(setsid bash -c 'echo $$; exec sleep 987' &); sleep 987 & echo $!; wait",
    "ignores_term": "bash -c 'trap \"\" TERM; echo $$; while :; do sleep 1; done' & echo $!; wait",
    "clean_environment": "setsid env -i /bin/bash -c 'echo $$; exec /bin/sleep 987' & echo $!; wait",
    "stopped": "bash -c 'echo $$; kill -STOP $$; sleep 987' & echo $!; wait",
}


@pytest.mark.parametrize("tree", TREES)
def test_a01_cancel_ends_the_whole_tree(queue: Queue, tree: str) -> None:
    """After a cancel no process of the job lives, and its GPU is given to nobody before that."""
    id_ = queue.submit(TREES[tree], gpus=2, grace_s=0.5)
    pids = [*queue.printed_pids(id_, 2), *queue.job_pids(id_)]
    assert all(is_alive(pid) for pid in pids)
    following = queue.submit(living_among(pids))
    queue.cancel(id_)
    job = queue.ended(id_, within_s=10)
    assert job["state"] == "CANCELLED"
    assert [pid for pid in pids if is_alive(pid)] == []
    queue.ended(following)
    assert queue.output(following) == "", "the next job on the GPU met processes of the cancelled one"


def test_a01_completing_until_the_last_process_is_gone(queue: Queue) -> None:
    """While one process ignores TERM the job is COMPLETING and keeps its GPU."""
    id_ = queue.submit("trap '' TERM; echo $$; while :; do sleep 0.1; done", gpus=2, grace_s=1.5)
    (pid,) = queue.printed_pids(id_, 1)
    waiting = queue.submit("true")
    queue.cancel(id_)
    queue.reaches(id_, "COMPLETING")
    assert is_alive(pid)
    assert {gpu["job"] for gpu in queue.gpus()} == {id_}
    assert queue.job(waiting)["state"] == "PENDING"
    assert queue.ended(id_)["state"] == "CANCELLED"
    assert not is_alive(pid)
    assert queue.ended(waiting)["state"] == "COMPLETED"


def test_a02_two_jobs_never_share_a_gpu(new_queue: Callable[..., Queue]) -> None:
    """50 jobs from 8 clients at once on one GPU: no two of their intervals overlap."""
    queue = new_queue(gpus=["A100:1"]).start()
    evidence = queue.work / "evidence"
    lock = queue.work / "lock"
    command = (
        f"exec 9>>{lock}; flock -n 9 || echo BUSY >>{evidence}; "
        f"s=$(date +%s%N); sleep 0.02; echo $CUDA_VISIBLE_DEVICES $s $(date +%s%N) >>{evidence}"
    )
    ids: list[str] = []

    def client(count: int) -> None:
        for _ in range(count):
            ids.append(queue.submit(command))

    clients = [threading.Thread(target=client, args=(count,)) for count in (7, 7, 6, 6, 6, 6, 6, 6)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    queue.ended(*ids, within_s=90)
    lines = evidence.read_text().splitlines()
    assert len(lines) == len(set(ids)) == 50
    assert "BUSY" not in lines
    spans = sorted((int(start), int(end)) for _, start, end in (line.split() for line in lines))
    assert len({line.split()[0] for line in lines}) == 1
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))


def test_a06_old_pid_and_socket_do_not_stop_a_start(new_queue: Callable[..., Queue], tmp_path: Path) -> None:
    """After kill -9, with a stranger's pid in the lock file and the old socket left, a start simply works."""
    queue = new_queue().start()
    queue.kill()
    assert (queue.home / "gpuq.sock").is_socket()
    with subprocess.Popen(["sleep", "300"]) as stranger:
        try:
            (queue.home / "journal.lock").write_text(f"{stranger.pid:<20}")
            queue.start()
            assert queue.ended(queue.submit("true"))["state"] == "COMPLETED"
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_a06_a_file_in_place_of_the_socket(new_queue: Callable[..., Queue]) -> None:
    """A socket left by another program that nobody serves is replaced."""
    queue = new_queue()
    queue.home.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(os.path.relpath(queue.home / "gpuq.sock"))
    queue.start()
    assert queue.answers()


def test_a07_a_stopped_daemon_ends_nobodys_job(new_queue: Callable[..., Queue]) -> None:
    """A daemon that was stopped for longer than its timeouts does not take its own silence for a death."""
    queue = new_queue(constants={**SHORT_WATCH, "gpuq.daemon.connection.UNREACHABLE_AFTER_S": 2.5}).start()
    id_ = queue.submit("echo $$; sleep 987", time_limit_s=600)
    (pid,) = queue.printed_pids(id_, 1)
    before = queue.job(id_)
    os.kill(queue.pid, signal.SIGSTOP)
    holds_for(lambda: is_alive(pid), "the job lives while the daemon is stopped", 4.0)
    os.kill(queue.pid, signal.SIGCONT)
    holds_for(lambda: queue.job(id_)["state"] == "RUNNING" and is_alive(pid), "the job runs on", 2.0)
    after = queue.job(id_)
    assert (after["attempt"], after["restarts"]) == (before["attempt"], 0)
    assert queue.node()["state"].rstrip("*") in ("mixed", "allocated")
    eventually(lambda: queue.node()["reach"] == "up", "the node is up again")


def test_a07_a_jump_of_the_wall_clock_ends_nobodys_job(new_queue: Callable[..., Queue]) -> None:
    """The wall clock jumps two hours: a job with a ten-minute limit runs on, and its elapsed time is honest."""
    queue = new_queue()
    queue.jump.write_text("0")
    queue.start()
    id_ = queue.submit("echo started; sleep 987", time_limit_s=600)
    queue.lines(id_, 1)
    for jump_s in (7200, -3600):
        queue.jump.write_text(str(jump_s))
        other = queue.submit("true")
        assert queue.ended(other)["state"] == "COMPLETED"
        holds_for(lambda: queue.job(id_)["state"] == "RUNNING", "the job runs on", 1.5)
        assert queue.job(id_)["elapsed_s"] < 60
    queue.cancel(id_)
    assert queue.ended(id_)["state"] == "CANCELLED"


def test_a10_a_stopped_agent_is_not_a_dead_node(new_queue: Callable[..., Queue]) -> None:
    """A silent agent is shown with *, its job stays RUNNING, and the result is collected when it answers again."""
    queue = new_queue(settings='[gpus]\nsample_every = "0.3s"\n', constants=SHORT_WATCH).start()
    id_ = queue.submit("echo $$; until test -e go; do sleep 0.05; done; exit 7")
    queue.printed_pids(id_, 1)
    agent = queue.agent()
    os.kill(agent, signal.SIGSTOP)
    node = eventually(lambda: queue.node() if queue.node()["state"].endswith("*") else {}, "the node is shown with *")
    assert node["reach"] == "suspect"
    assert queue.job(id_)["state"] == "RUNNING"
    waiting = queue.submit("true")
    (queue.work / "go").touch()
    holds_for(lambda: queue.job(id_)["state"] == "RUNNING", "no verdict without evidence", 0.7)
    assert queue.job(waiting)["state"] == "PENDING", "nothing is started on a node that does not answer"
    assert "*" in queue.gpuq("nodes").text
    os.kill(agent, signal.SIGCONT)
    job = queue.ended(id_)
    assert (job["state"], job["exit_code"], job["restarts"]) == ("FAILED", 7, 0)
    assert queue.ended(waiting)["state"] == "COMPLETED"
    assert not queue.node()["state"].endswith("*")


def test_a10_a_silent_agent_is_replaced(new_queue: Callable[..., Queue]) -> None:
    """An agent that stays silent is connected anew after a long, stated time; its job goes on all the while."""
    constants = {**SHORT_WATCH, "gpuq.daemon.connection.UNREACHABLE_AFTER_S": 3.0}
    constants["gpuq.links.local.CLOSE_WITHIN_S"] = 0.5
    queue = new_queue(settings='[gpus]\nsample_every = "0.3s"\n', constants=constants).start()
    id_ = queue.submit("echo $$; until test -e go; do sleep 0.05; done; exit 7")
    (pid,) = queue.printed_pids(id_, 1)
    agent = queue.agent()
    os.kill(agent, signal.SIGSTOP)
    eventually(lambda: not is_alive(agent) and queue.node()["reach"] == "up", "another agent has taken over")
    assert is_alive(pid)
    assert queue.job(id_)["state"] == "RUNNING"
    (queue.work / "go").touch()
    job = queue.ended(id_)
    assert (job["state"], job["exit_code"], job["restarts"]) == ("FAILED", 7, 0)
    assert len(queue.agents()) == 1


def test_a11_gigabytes_of_output_cost_no_memory(queue: Queue) -> None:
    """300 MB of output: the daemon's memory stays as it is, and tail reads only the end."""

    def resident_kib() -> int:
        status = Path(f"/proc/{queue.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    queue.ended(queue.submit("true"))
    before = resident_kib()
    id_ = queue.submit("yes 0123456789 | head -c 300000000; echo; echo end of it")
    assert queue.ended(id_, within_s=60)["state"] == "COMPLETED"
    assert queue.job(id_)["log_bytes"] == 300_000_000 + len("\nend of it\n")
    assert queue.gpuq("logs", id_, "--tail", "1").text == "end of it\n"
    shown = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m gpuq logs {id_} | head -n 1; echo ${{PIPESTATUS[0]}}"],
        env=queue.environment, capture_output=True, cwd=queue.work, timeout=30,
    )  # fmt: skip
    assert (shown.stdout, shown.stderr) == (b"0123456789\n0\n", b"")
    assert resident_kib() - before < 20_000


def test_a11_a_kept_log_has_a_limit(new_queue: Callable[..., Queue]) -> None:
    """Above [logs] limit the middle is given up: head and tail stay, the disk is not filled."""
    queue = new_queue(settings='[logs]\nlimit = "8M"\n').start()
    id_ = queue.submit("echo head; for i in 1 2 3 4; do head -c 15000000 /dev/zero; sleep 1.1; done; echo; echo tail")
    assert queue.ended(id_, within_s=60)["state"] == "COMPLETED"
    job = queue.job(id_)
    assert job["log_dropped_bytes"] > 40_000_000
    assert os.stat(job["stdout"]).st_blocks * 512 < 20_000_000
    shown = queue.gpuq("logs", id_).out
    assert shown.startswith(b"head\n")
    assert shown.endswith(b"\ntail\n")


def test_a19_a_time_limit_ends_a_job_that_ignores_term(queue: Queue) -> None:
    """TERM at the limit, KILL after the grace; TIMEOUT with signal 9, and the GPU is free only then."""
    command = "trap 'echo TERM' TERM; echo $$; while :; do sleep 0.1; done"
    id_ = queue.submit(command, gpus=2, time_limit_s=1.0, grace_s=1.5)
    (pid,) = queue.printed_pids(id_, 1)
    queue.reaches(id_, "COMPLETING")
    assert is_alive(pid)
    assert all(gpu["job"] == id_ for gpu in queue.gpus())
    job = queue.ended(id_, within_s=10)
    assert (job["state"], job["reason"], job["exit_signal"]) == ("TIMEOUT", "TimeLimit", 9)
    assert not is_alive(pid)
    assert "TERM" in queue.output(id_)
    assert 2.4 < job["run_s"] < 2.5 + 3
    assert queue.gpuq("wait", id_, code=137).out == b""
    assert all(gpu["job"] is None for gpu in queue.gpus())


def test_a23_term_ends_the_daemon_and_no_job(new_queue: Callable[..., Queue]) -> None:
    """SIGTERM: exit code 0, jobs run on under the same pid, and the next daemon has their exit codes."""
    queue = new_queue().start()
    running = queue.submit("echo $$; until test -e go; do sleep 0.05; done; exit 5")
    meanwhile = queue.submit("until test -e now; do sleep 0.05; done; exit 3")
    pending = queue.submit("true", gpus=2)
    (pid,) = queue.printed_pids(running, 1)
    queue.reaches(meanwhile, "RUNNING")
    assert queue.stop() == 0
    assert is_alive(pid)
    assert queue.agents() == []
    assert not (queue.home / "gpuq.sock").exists()
    (queue.work / "now").touch()
    queue.start()
    queue.node_ready()
    assert queue.ended(meanwhile)["exit_code"] == 3
    assert queue.job(running)["state"] == "RUNNING"
    assert is_alive(pid)
    (queue.work / "go").touch()
    job = queue.ended(running)
    assert (job["state"], job["exit_code"], job["restarts"]) == ("FAILED", 5, 0)
    assert queue.ended(pending)["state"] == "COMPLETED"


def test_a23_daemon_restart_keeps_jobs(new_queue: Callable[..., Queue]) -> None:
    """`gpuq daemon restart` while a job runs: same process, right exit code."""
    queue = new_queue().start()
    id_ = queue.submit("echo $$; until test -e go; do sleep 0.05; done; exit 5")
    (pid,) = queue.printed_pids(id_, 1)
    queue.gpuq("daemon", "restart")
    queue.process.wait(10)  # type: ignore[union-attr]
    assert queue.adopt() != queue.pid
    assert is_alive(pid)
    (queue.work / "go").touch()
    assert queue.ended(id_)["exit_code"] == 5
    queue.gpuq("daemon", "stop")
    eventually(lambda: not queue.processes(), "nothing lives on")


def test_a23_interrupt_ends_the_daemon_with_zero(new_queue: Callable[..., Queue]) -> None:
    """Ctrl-C (SIGINT) at a daemon in the foreground is a clean stop."""
    queue = new_queue().start()
    assert queue.stop(signal.SIGINT) == 0
