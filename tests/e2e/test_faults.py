"""Faults of the machine and of our own processes: kills, full and read-only disks, damaged and old state files."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import FINAL, ApiError, Queue, eventually, holds_for, is_alive, living_among
from tests.requirements import need

pytestmark = pytest.mark.e2e

UNTIL_GO = "until test -e go; do sleep 0.05; done"

LOCKS_FAIL = """
#include <errno.h>
#include <sys/file.h>
int flock(int fd, int operation) { (void)fd; (void)operation; errno = ENOLCK; return -1; }
"""


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A function that mounts a small tmpfs with the given options.

    To be named before the queue's fixture in a test's arguments: then it is unmounted after the queue is closed.
    """
    need(os.geteuid() == 0, "mounting a small disk needs root")
    points: list[Path] = []

    def mount(options: str) -> Path:
        point = tmp_path / f"disk{len(points)}"
        point.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=0700,{options}", "gpuq-test", point], check=True)
        points.append(point)
        return point

    yield mount
    for point in points:
        subprocess.run(["umount", "-l", point], check=True)


def parent_of(pid: int) -> int:
    """The parent's pid."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text[text.rindex(")") + 2 :].split()[1])


def fill(directory: Path, number: int = 0) -> Path:
    """Use up all space of a disk; returns the file to remove."""
    ballast = directory / f"ballast-{number}"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return ballast


# --- kill -9 --------------------------------------------------------------------------------------------


def test_killed_daemon_keeps_every_job(new_queue: Callable[..., Queue]) -> None:
    """kill -9 with 4 running and 20 waiting, five times over: all known, each runs once, exit codes exact."""
    queue = new_queue(gpus=["A100:4"]).start()
    evidence = queue.work / "evidence"
    running = [queue.submit(f"echo $GPUQ_JOB_ID >>{evidence}; {UNTIL_GO}; exit {number}") for number in range(4)]
    waiting = [queue.submit(f"echo $GPUQ_JOB_ID >>{evidence}; exit {10 + number}") for number in range(20)]
    for id_ in running:
        queue.reaches(id_, "RUNNING")
    for round_ in range(5):
        queue.kill()
        queue.start()
        assert {job["id"] for job in queue.jobs()} == {*running, *waiting}
        if round_ == 2:
            (queue.work / "go").touch()
    queue.ended(*running, *waiting, within_s=60)
    codes = {job["id"]: job["exit_code"] for job in queue.jobs()}
    assert [codes[id_] for id_ in running] == [0, 1, 2, 3]
    assert [codes[id_] for id_ in waiting] == list(range(10, 30))
    assert sorted(evidence.read_text().split(), key=int) == sorted([*running, *waiting], key=int)


def test_killed_daemon_starts_nothing_beside_survivors(new_queue: Callable[..., Queue]) -> None:
    """After a kill -9 the GPUs of running jobs stay theirs from the first moment."""
    queue = new_queue(gpus=["A100:2"]).start()
    running = [queue.submit(UNTIL_GO) for _ in range(2)]
    waiting = queue.submit("touch started")
    for id_ in running:
        queue.reaches(id_, "RUNNING")
    queue.kill()
    queue.start()
    holds_for(lambda: not (queue.work / "started").exists(), "nothing starts beside the survivors", 1.5)
    assert queue.job(waiting)["state"] == "PENDING"
    (queue.work / "go").touch()
    queue.ended(*running, waiting)


def test_job_that_ended_while_the_daemon_was_dead(new_queue: Callable[..., Queue]) -> None:
    """Its exit code and its run time are known afterwards."""
    queue = new_queue().start()
    id_ = queue.submit(f"echo $$; {UNTIL_GO}; exit 77")
    (pid,) = queue.printed_pids(id_, 1)
    queue.kill()
    (queue.work / "go").touch()
    eventually(lambda: not is_alive(pid), "the job ends without a daemon")
    queue.start()
    job = queue.ended(id_)
    assert (job["state"], job["exit_code"]) == ("FAILED", 77)
    assert job["run_s"] > 0


def test_killed_agent_is_replaced(queue: Queue) -> None:
    """kill -9 of the agent: the job goes on, another agent takes over, the exit code is exact."""
    id_ = queue.submit(f"echo $$; {UNTIL_GO}; exit 8")
    (pid,) = queue.printed_pids(id_, 1)
    agent = queue.agent()
    os.kill(agent, signal.SIGKILL)
    eventually(lambda: [one for one in queue.agents() if one != agent], "another agent runs")
    queue.node_ready()
    assert is_alive(pid)
    assert queue.job(id_)["state"] == "RUNNING"
    assert queue.ended(queue.submit("true"))["state"] == "COMPLETED"
    (queue.work / "go").touch()
    job = queue.ended(id_)
    assert (job["state"], job["exit_code"], job["restarts"]) == ("FAILED", 8, 0)


def test_killed_agent_cannot_make_a_cancel_incomplete(queue: Queue) -> None:
    """A cancel given while there is no agent is carried out by the next one."""
    id_ = queue.submit("trap '' TERM; echo $$; while :; do sleep 0.1; done", grace_s=0.3)
    (pid,) = queue.printed_pids(id_, 1)
    os.kill(queue.agent(), signal.SIGKILL)
    queue.cancel(id_)
    assert queue.ended(id_)["state"] == "CANCELLED"
    assert not is_alive(pid)


def test_killed_forker_is_replaced(queue: Queue) -> None:
    """kill -9 of the process that forks shims: running jobs go on, new ones start."""
    running = queue.submit(f"echo $$; {UNTIL_GO}; exit 8")
    (pid,) = queue.printed_pids(running, 1)
    agent = queue.agent()
    (forker,) = (one for one in queue.serving("forker") if parent_of(one) == agent)
    os.kill(forker, signal.SIGKILL)
    assert queue.ended(queue.submit("true"))["state"] == "COMPLETED"
    assert is_alive(pid)
    (queue.work / "go").touch()
    assert queue.ended(running)["exit_code"] == 8


def test_killed_shim_takes_its_job_along(queue: Queue) -> None:
    """kill -9 of a shim: the whole job dies, its end is honestly unknown, and only then the GPU is free."""
    id_ = queue.submit("setsid bash -c 'echo $$; exec sleep 987' & sleep 987 & echo $!; wait", gpus=2)
    pids = queue.printed_pids(id_, 2)
    following = queue.submit(living_among(pids))
    os.kill(queue.shim(id_), signal.SIGKILL)
    job = queue.ended(id_)
    assert (job["state"], job["reason"], job["exit_code"]) == ("NODE_FAIL", "ShimLost", None)
    assert not [pid for pid in pids if is_alive(pid)]
    assert queue.ended(following)["state"] == "COMPLETED"
    assert queue.output(following) == ""


def test_killed_shim_of_a_job_that_may_run_again(queue: Queue) -> None:
    """With --requeue the job runs again after its shim was lost, and only once."""
    id_ = queue.gpuq("submit", "--requeue", "--", "bash", "-c", "echo $GPUQ_RESTART_COUNT >>runs; sleep 0.3; "
                     "test $GPUQ_RESTART_COUNT = 1 || sleep 987").id  # fmt: skip
    runs = queue.work / "runs"
    eventually(lambda: runs.exists() and runs.read_text() == "0\n", "the job runs")
    os.kill(queue.shim(id_), signal.SIGKILL)
    job = queue.ended(id_)
    assert (job["state"], job["restarts"]) == ("COMPLETED", 1)
    assert (queue.work / "runs").read_text() == "0\n1\n"


def test_everything_killed_at_once(new_queue: Callable[..., Queue]) -> None:
    """kill -9 of daemon, agent, forker, sampler and shims: all jobs are known, none runs on, none is called done."""
    queue = new_queue().start()
    id_ = queue.submit("echo $$; sleep 987", gpus=2)
    waiting = queue.submit("true")
    (pid,) = queue.printed_pids(id_, 1)
    own = [*queue.agents(), *queue.serving("forker"), *queue.serving("sampler")]
    queue.kill()
    for each in own:
        os.kill(each, signal.SIGKILL)
    queue.start()
    job = queue.ended(id_)
    assert (job["state"], job["exit_code"]) == ("NODE_FAIL", None)
    assert not is_alive(pid)
    assert queue.ended(waiting)["state"] == "COMPLETED"


def test_stopped_shim_can_be_cancelled(queue: Queue) -> None:
    """A shim that was stopped (SIGSTOP) and goes on later carries the cancel out; nothing is lost meanwhile."""
    id_ = queue.submit("echo $$; sleep 987")
    (pid,) = queue.printed_pids(id_, 1)
    shim = queue.shim(id_)
    os.kill(shim, signal.SIGSTOP)
    queue.cancel(id_, grace_s=0.2)
    holds_for(lambda: queue.job(id_)["state"] not in FINAL or not is_alive(pid), "no end before the end", 1.0)
    os.kill(shim, signal.SIGCONT)
    assert queue.ended(id_)["state"] == "CANCELLED"
    assert not is_alive(pid)


def test_lost_spool_is_never_a_rerun(new_queue: Callable[..., Queue]) -> None:
    """The spool is gone after a restart: the job is not started again, and its end is honestly unknown."""
    queue = new_queue().start()
    id_ = queue.submit("echo run >>runs; echo $$; sleep 987")
    (pid,) = queue.printed_pids(id_, 1)
    queue.kill()
    eventually(lambda: not queue.agents(), "the agent ends with the daemon")
    shutil.rmtree(queue.home / "spool")
    queue.start()
    job = queue.ended(id_, within_s=40)
    assert (job["state"], job["exit_code"]) == ("NODE_FAIL", None)
    assert not is_alive(pid), "what is given up must not live on"
    assert (queue.work / "runs").read_text() == "run\n"


# --- disks ----------------------------------------------------------------------------------------------


def test_full_disk_loses_nothing(mounted: Callable[[str], Path], new_queue: Callable[..., Queue]) -> None:
    """On a full disk new work is refused with the reason, running jobs and their results are safe, space heals it."""
    queue = new_queue(home=mounted("size=12m") / "h", constants={"gpuq.daemon.main.MEND_EVERY_S": 0.5})
    queue.start()
    acknowledged = [queue.submit(f"{UNTIL_GO}; exit 5") for _ in range(4)]
    queue.reaches(acknowledged[0], "RUNNING")
    ballast: list[Path] = []
    told = eventually(lambda: _refusal(queue, acknowledged, ballast), "new work is refused")
    assert "full" in told
    assert str(queue.home) in told
    assert "Traceback" not in told
    assert queue.gpuq("status").code == 0, "reading goes on"
    pids = queue.job_pids(acknowledged[0])
    (queue.work / "go").touch()
    eventually(lambda: not any(map(is_alive, pids)), "running jobs end on a full disk")
    for path in ballast:
        path.unlink()
    eventually(lambda: _accepts(queue), "new work is taken again once there is space")
    queue.ended(*acknowledged)
    assert [job["exit_code"] for job in queue.jobs(*acknowledged[:4])] == [5, 5, 5, 5]
    assert queue.api.get("/v1/status")["degraded"] is None
    assert queue.stop() == 0
    queue.start()
    assert {job["id"] for job in queue.jobs()} >= set(acknowledged)


def _refusal(queue: Queue, acknowledged: list[str], ballast: list[Path]) -> str:
    """Fill the disk to the last byte and submit: the words of the refusal, or the job is one more to be kept."""
    ballast.append(fill(queue.home, len(ballast)))
    ran = queue.gpuq("submit", "--", "true", code=None)
    if ran.code == 0:
        acknowledged.append(ran.id)
        return ""
    assert (ran.code, ran.out) == (1, b"")
    return ran.error


def _accepts(queue: Queue) -> bool:
    try:
        queue.submit("true")
    except ApiError:
        return False
    return True


def test_full_disk_under_a_log(mounted: Callable[[str], Path], new_queue: Callable[..., Queue]) -> None:
    """A job whose log fills the disk sees the error itself; its exit record is written all the same."""
    queue = new_queue(home=mounted("size=24m") / "h")
    queue.start()
    id_ = queue.submit("head -c 100000000 /dev/zero; exit $?")
    job = queue.ended(id_)
    assert (job["state"], job["exit_code"]) == ("FAILED", 1)
    Path(job["stdout"]).unlink()
    eventually(lambda: _accepts(queue), "work goes on once there is space")


def test_read_only_home(mounted: Callable[[str], Path], new_queue: Callable[..., Queue]) -> None:
    """A state directory that cannot be written: one sentence that names it, from daemon and command line."""
    queue = new_queue(home=mounted("ro"))
    queue.launch()
    assert queue.process is not None
    assert queue.process.wait(30) == 1
    words = queue.last_words()
    assert str(queue.home) in words
    assert "Traceback" not in words
    assert len(words.strip().splitlines()) == 1
    ran = queue.gpuq("submit", "--", "true", code=None)
    assert ran.code in (1, 3)
    assert str(queue.home) in ran.error
    assert b"Traceback" not in ran.err


@pytest.mark.parametrize("fault", ["eio", "enospc"])
def test_one_failed_write(new_queue: Callable[..., Queue], fault: str) -> None:
    """One commit fails: that request is refused whole, nothing half-done stays, and the queue heals by itself."""
    constants = {"gpuq.daemon.loop.RETRY_S": 0.2, "gpuq.daemon.main.MEND_EVERY_S": 0.2}
    queue = new_queue(failpoints=f"journal.before_commit={fault}@4", constants=constants).start()
    queue.node_ready()
    ids, refusals = [], []
    for _ in range(12):
        status, answer = queue.api.exchange("POST", "/v1/jobs", queue.body("true", held=True))
        if status == 200:
            ids.append(answer["id"])
            continue
        refusals.append(answer["error"]["message"])
        eventually(lambda: queue.api.get("/v1/status")["degraded"] is None, "writing works again")
    assert len(ids) == 11
    assert len(refusals) == 1
    assert {job["id"] for job in queue.jobs()} == set(ids)
    queue.kill()
    queue.failpoints = ""
    queue.start()
    assert {job["id"] for job in queue.jobs()} == set(ids)


# --- two daemons, locks ---------------------------------------------------------------------------------


def test_a18_second_daemon_is_refused(queue: Queue) -> None:
    """Two daemons on one home: the second ends with one sentence, the first is not disturbed."""
    id_ = queue.submit(UNTIL_GO)
    queue.reaches(id_, "RUNNING")
    first, queue.process = queue.process, None
    try:
        second = queue.launch()
        assert second.wait(30) == 1
        assert "another gpuq daemon" in queue.last_words()
        assert f"process {first.pid}" in queue.last_words()  # type: ignore[union-attr]
    finally:
        queue.process = first
    assert queue.job(id_)["state"] == "RUNNING"
    assert len(queue.agents()) == 1
    (queue.work / "go").touch()
    queue.ended(id_)


def test_a18_first_submits_at_once_start_one_daemon(new_queue: Callable[..., Queue]) -> None:
    """Six first submits in one moment: one daemon, six jobs."""
    queue = new_queue()
    command = f"for i in 1 2 3 4 5 6; do {sys.executable} -m gpuq submit -- true & done; wait"
    done = subprocess.run(
        ["bash", "-c", command], env=queue.environment, cwd=queue.work, capture_output=True, timeout=60, text=True
    )
    assert sorted(line.split()[-1] for line in done.stdout.splitlines()) == ["1", "2", "3", "4", "5", "6"], done.stderr
    queue.ended(*map(str, range(1, 7)))
    assert len(queue.agents()) == 1
    queue.gpuq("daemon", "stop")
    eventually(lambda: not queue.processes(), "nothing lives on")


def test_a18_file_system_without_locks(new_queue: Callable[..., Queue], tmp_path: Path) -> None:
    """A file system that cannot lock is one sentence and no daemon, never two writers."""
    compiler = shutil.which("gcc")
    need(compiler, "gcc is needed to make locks fail; install gcc")
    assert compiler is not None
    source, library = tmp_path / "locks.c", tmp_path / "locks.so"
    source.write_text(LOCKS_FAIL)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    queue = new_queue(environment={"LD_PRELOAD": str(library)})
    queue.launch()
    assert queue.process is not None
    assert queue.process.wait(30) == 1
    assert "cannot lock files" in queue.last_words()
    assert "GPUQ_HOME" in queue.last_words()
    assert "Traceback" not in queue.last_words()


# --- damaged and old state ------------------------------------------------------------------------------


def damage_header(path: Path) -> None:
    """Overwrite the beginning."""
    with path.open("r+b") as file:
        file.write(b"garbage " * 32)


def damage_pages(path: Path) -> None:
    """Overwrite pages in the middle."""
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xa5" * 16384)


def cut_in_half(path: Path) -> None:
    """Keep the first half."""
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    """Keep nothing."""
    os.truncate(path, 0)


def remove(path: Path) -> None:
    """Take the file away."""
    path.unlink()


@pytest.mark.parametrize("damage", [damage_header, damage_pages, cut_in_half, empty, remove])
def test_damaged_database_stops_the_daemon(new_queue: Callable[..., Queue], damage: Callable[[Path], None]) -> None:
    """A damaged state file: no start, a sentence that names it, the file kept as it is, running jobs untouched."""
    queue = new_queue().start()
    id_ = queue.submit(f"echo $$; {UNTIL_GO}")
    (pid,) = queue.printed_pids(id_, 1)
    assert queue.stop() == 0
    database = queue.home / "journal.db"
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    connection.close()
    kept = database.read_bytes()
    damage(database)
    damaged = database.read_bytes() if database.exists() else None
    queue.launch()
    assert queue.process is not None
    assert queue.process.wait(30) == 1
    assert str(database) in queue.last_words()
    assert "Traceback" not in queue.last_words()
    assert (database.read_bytes() if database.exists() else None) == damaged
    ran = queue.gpuq("submit", "--", "true", code=3)
    assert str(database) in ran.error
    assert is_alive(pid)
    database.write_bytes(kept)
    database.chmod(0o600)
    queue.start()
    assert queue.job(id_)["state"] == "RUNNING"
    (queue.work / "go").touch()
    assert queue.ended(id_)["state"] == "COMPLETED"


def copied(home: Path, target: Path) -> None:
    """Copy the database and its log."""
    target.mkdir()
    for path in home.glob("journal.db*"):
        shutil.copy(path, target / path.name)


def test_old_database_put_back_is_noticed(new_queue: Callable[..., Queue], tmp_path: Path) -> None:
    """State that went backwards stops the daemon; only on demand it goes on, and then nothing runs twice."""
    queue = new_queue().start()
    old = queue.submit(f"echo old $$; {UNTIL_GO}")
    queue.lines(old, 1)
    assert queue.stop() == 0
    copied(queue.home, tmp_path / "copy")
    queue.start()
    new = queue.submit(f"echo new >>{queue.work}/runs; {UNTIL_GO}")
    queue.reaches(new, "RUNNING")
    eventually(lambda: (queue.work / "runs").exists(), "the new job runs")
    uuid = queue.job(new)["gpus"][0]["uuid"]
    assert queue.stop() == 0
    for path in queue.home.glob("journal.db*"):
        path.unlink()
    for path in (tmp_path / "copy").iterdir():
        shutil.copy(path, queue.home / path.name)
    queue.launch()
    assert queue.process is not None
    assert queue.process.wait(30) == 1
    assert "backwards" in queue.last_words()
    assert "--allow-rollback" in queue.last_words()
    queue.start("--allow-rollback")
    queue.node_ready()
    assert queue.job(old)["state"] == "RUNNING"
    waiting = queue.submit("true", gpus=2)
    holds_for(lambda: queue.job(waiting)["state"] == "PENDING", "the forgotten job keeps its GPU", 1.5)
    assert int(waiting) > int(new), "an id that was given out is not given out again"
    stray = [gpu for gpu in queue.gpus() if gpu["uuid"] == uuid]
    assert stray[0]["state"] == "busy"
    (queue.work / "go").touch()
    assert queue.ended(old)["state"] == "COMPLETED"
    assert queue.ended(waiting)["state"] == "COMPLETED"
    assert (queue.work / "runs").read_text() == "new\n"


def test_the_way_out_that_the_message_names_exists(new_queue: Callable[..., Queue], tmp_path: Path) -> None:
    """What the refusal tells people to type is understood: gpuq daemon start --allow-rollback."""
    queue = new_queue().start()
    assert queue.stop() == 0
    copied(queue.home, tmp_path / "copy")
    queue.start()
    queue.submit("true", held=True)
    assert queue.stop() == 0
    for path in queue.home.glob("journal.db*"):
        path.unlink()
    for path in (tmp_path / "copy").iterdir():
        shutil.copy(path, queue.home / path.name)
    assert "backwards" in queue.gpuq("daemon", "start", code=3).error
    queue.gpuq("daemon", "start", "--allow-rollback")
    assert queue.jobs() == []
    queue.gpuq("daemon", "stop")
    eventually(lambda: not queue.processes(), "nothing lives on")
