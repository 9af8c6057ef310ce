"""The life of jobs on one machine: every verb and every option that changes how a job starts, runs and ends."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.harness import Queue, eventually, holds_for, is_alive
from tests.requirements import need

pytestmark = pytest.mark.e2e

UNTIL_GO = "until test -e go; do sleep 0.05; done"


# --- cancel in every state ------------------------------------------------------------------------------


def test_cancel_while_pending(queue: Queue) -> None:
    """A waiting job ends at once and never runs."""
    id_ = queue.submit("touch ran", begin_at=time.time() + 3600)
    queue.gpuq("cancel", id_)
    job = queue.ended(id_)
    assert (job["state"], job["reason"], job["attempt"]) == ("CANCELLED", "CancelledByUser", None)
    assert not (queue.work / "ran").exists()


def test_cancel_while_configuring(new_queue: Callable[..., Queue]) -> None:
    """A job cancelled between its placement and its start is never started, or ended at once."""
    queue = new_queue(environment={"GPUQ_FAILPOINTS": "agent.after_spec=delay:1000"}).start()
    id_ = queue.submit("echo $$ >pid; sleep 987")
    queue.reaches(id_, "CONFIGURING")
    queue.cancel(id_, grace_s=0.2)
    assert queue.ended(id_)["state"] == "CANCELLED"
    assert not queue.job_pids(id_)
    assert all(gpu["job"] is None for gpu in queue.gpus())
    assert queue.ended(queue.submit("true"))["state"] == "COMPLETED"


def test_cancel_while_running(queue: Queue) -> None:
    """TERM first; a job that ends on it within the grace keeps its signal; a second cancel is a note, not an error."""
    id_ = queue.submit("trap 'echo cleaned; exit 3' TERM; echo up; while :; do sleep 0.1; done")
    queue.lines(id_, 1)
    queue.gpuq("cancel", id_)
    job = queue.ended(id_)
    assert (job["state"], job["exit_code"]) == ("CANCELLED", 3)
    assert queue.output(id_).splitlines()[-1] == "cleaned"
    assert id_ in queue.gpuq("cancel", id_).error
    queue.gpuq("cancel", "--strict", id_, code=1)


def test_cancel_while_completing(queue: Queue) -> None:
    """The first process has ended, a child ignores TERM: a cancel with less grace ends it sooner."""
    id_ = queue.submit("(trap '' TERM; echo $BASHPID; while :; do sleep 0.1; done) & sleep 0.3; exit 0", grace_s=25)
    (pid,) = queue.printed_pids(id_, 1)
    queue.reaches(id_, "COMPLETING")
    started = time.monotonic()
    queue.cancel(id_, grace_s=0.2)
    job = queue.ended(id_)
    assert time.monotonic() - started < 15
    assert job["state"] in ("COMPLETED", "CANCELLED")
    assert job["exit_code"] == 0
    assert not is_alive(pid)


def test_second_cancel_shortens_the_grace(queue: Queue) -> None:
    """`cancel --grace 0` of a job that is being ended kills it now."""
    id_ = queue.submit("trap '' TERM; echo $$; while :; do sleep 0.1; done", grace_s=25)
    (pid,) = queue.printed_pids(id_, 1)
    queue.cancel(id_)
    queue.reaches(id_, "COMPLETING")
    queue.gpuq("cancel", "--grace", "0s", id_)
    assert queue.ended(id_, within_s=10)["state"] == "CANCELLED"
    assert not is_alive(pid)


def test_signals_are_sent_and_nothing_else(queue: Queue) -> None:
    """cancel -s USR1 sends the signal to the job, which runs on; a pending job cannot be sent one."""
    id_ = queue.submit("trap 'echo got it' USR1; echo up; until test -e go; do sleep 0.05; done")
    queue.lines(id_, 1)
    queue.gpuq("cancel", "-s", "USR1", id_)
    assert "got it" in queue.lines(id_, 2)
    assert queue.job(id_)["state"] == "RUNNING"
    pending = queue.submit("true", held=True)
    assert "PENDING" in queue.gpuq("cancel", "-s", "USR1", pending, code=1).error
    (queue.work / "go").touch()
    queue.ended(id_)


def test_cancel_by_filter(queue: Queue) -> None:
    """Filters choose: by name, by state; --all asks unless -y."""
    ids = [queue.submit("true", name=name, held=True) for name in ("red", "blue", "red")]
    queue.gpuq("cancel", "-n", "red")
    assert [job["state"] for job in queue.jobs(*ids)] == ["CANCELLED", "PENDING", "CANCELLED"]
    assert queue.gpuq("cancel", "--all", code=1).error
    assert queue.job(ids[1])["state"] == "PENDING"
    queue.gpuq("cancel", "--all", "-y")
    assert queue.job(ids[1])["state"] == "CANCELLED"


# --- time -----------------------------------------------------------------------------------------------


def test_warning_signal_before_the_limit(queue: Queue) -> None:
    """--signal USR1@N arrives before the limit; a job that ends on it is no TIMEOUT."""
    id_ = queue.submit(
        "trap 'echo saving; exit 0' USR1; while :; do sleep 0.05; done", time_limit_s=3.0, warn_signal=10,
        warn_before_s=2.5,
    )  # fmt: skip
    job = queue.ended(id_)
    assert (job["state"], queue.output(id_).splitlines()[-1]) == ("COMPLETED", "saving")


def test_time_limit_of_a_running_job_can_be_changed(queue: Queue) -> None:
    """A new limit for a running job takes effect at once; 0 takes it away."""
    id_ = queue.submit("echo up; sleep 987", time_limit_s=600)
    free = queue.submit(f"echo up; {UNTIL_GO}", time_limit_s=2.0)
    queue.lines(id_, 1)
    queue.gpuq("update", free, "--time", "0")
    queue.gpuq("update", id_, "time=1s")
    assert queue.ended(id_)["state"] == "TIMEOUT"
    holds_for(lambda: queue.job(free)["state"] == "RUNNING", "a job without a limit runs on", 1.5)
    (queue.work / "go").touch()
    assert queue.ended(free)["state"] == "COMPLETED"


def test_time_limit_does_not_count_waiting(queue: Queue) -> None:
    """The limit begins with the job, not with its submission."""
    first = queue.submit("sleep 1.2", gpus=2)
    second = queue.submit("sleep 0.1; echo done", time_limit_s=1.0)
    assert queue.ended(first)["state"] == "COMPLETED"
    assert queue.ended(second)["state"] == "COMPLETED"


def test_time_limit_holds_without_a_daemon(new_queue: Callable[..., Queue]) -> None:
    """The daemon is dead when the limit comes: the job is ended all the same, and TIMEOUT is known afterwards."""
    queue = new_queue().start()
    id_ = queue.submit("echo $$; sleep 987", time_limit_s=1.0)
    (pid,) = queue.printed_pids(id_, 1)
    queue.kill()
    eventually(lambda: not is_alive(pid), "the limit holds")
    queue.start()
    assert queue.ended(id_)["state"] == "TIMEOUT"


def test_begin_time(queue: Queue) -> None:
    """--begin: not before; a time already past is said aloud and starts at once."""
    begin = time.time() + 1.5
    id_ = queue.submit("date +%s.%N", begin_at=begin)
    eventually(lambda: queue.job(id_)["reason"] == "BeginTime", "the reason is BeginTime")
    queue.ended(id_)
    assert begin <= float(queue.output(id_)) < begin + 10
    ran = queue.gpuq("submit", "--begin", "2020-01-01", "--", "true")
    assert "past" in ran.error or "passed" in ran.error
    assert queue.ended(ran.id)["state"] == "COMPLETED"


# --- hold, release, update, drain ------------------------------------------------------------------------


def test_hold_and_release(queue: Queue) -> None:
    """A held job waits though GPUs are free; released it runs; a running one cannot be held."""
    id_ = queue.gpuq("submit", "-H", "--", "true").id
    holds_for(lambda: queue.job(id_)["state"] == "PENDING", "a held job waits", 0.7)
    assert queue.job(id_)["reason"] == "JobHeldUser"
    queue.gpuq("release", id_)
    assert queue.ended(id_)["state"] == "COMPLETED"
    running = queue.submit(UNTIL_GO)
    queue.reaches(running, "RUNNING")
    assert "RUNNING" in queue.gpuq("hold", running, code=1).error
    (queue.work / "go").touch()
    queue.ended(running)
    other = queue.submit("true", begin_at=time.time() + 3600)
    queue.gpuq("hold", other)
    assert queue.job(other)["held"] == "user"


def test_update_of_a_pending_job(queue: Queue) -> None:
    """GPUs, name, priority and dependency of a waiting job can be changed; nonsense is refused whole."""
    id_ = queue.submit("echo $GPUQ_GPUS", held=True)
    queue.gpuq("update", id_, "--gpus", "2", "--job-name", "new name", "--priority", "7")
    job = queue.job(id_)
    assert (job["gpus_asked"], job["name"], job["priority"]) == (2, "new name", 7)
    assert "2" in queue.gpuq("update", id_, "--gpus", "3", code=1).error
    assert queue.gpuq("update", id_, "colour=red", code=2).error
    assert queue.job(id_)["gpus_asked"] == 2
    queue.gpuq("release", id_)
    queue.ended(id_)
    assert len(queue.output(id_).strip().split(",")) == 2
    assert "ended" in queue.gpuq("update", id_, "--gpus", "1", code=1).error


def test_priority_decides_who_is_next(new_queue: Callable[..., Queue]) -> None:
    """Of two waiting jobs the one with the larger priority runs first."""
    queue = new_queue(gpus=["A100:1"]).start()
    first = queue.submit(UNTIL_GO)
    queue.reaches(first, "RUNNING")
    low = queue.submit("echo low >>order", priority=0)
    high = queue.submit("echo high >>order", priority=100)
    (queue.work / "go").touch()
    queue.ended(first, low, high)
    assert (queue.work / "order").read_text().split() == ["high", "low"]


def test_drain_and_resume(queue: Queue) -> None:
    """A drained node finishes what it has and takes nothing more until it is resumed; also over a restart."""
    running = queue.submit(UNTIL_GO)
    queue.reaches(running, "RUNNING")
    assert "reason" in queue.gpuq("drain", "local", code=None).error
    queue.gpuq("drain", "local", "--reason", "new disk")
    waiting = queue.submit("true")
    assert queue.node()["state"] == "draining"
    eventually(lambda: "new disk" in (queue.job(waiting)["message"] or ""), "the reason names the drain")
    (queue.work / "go").touch()
    assert queue.ended(running)["state"] == "COMPLETED"
    assert queue.node()["state"] == "drained"
    queue.kill()
    queue.start()
    queue.node_ready()
    holds_for(lambda: queue.job(waiting)["state"] == "PENDING", "the drain outlives the daemon", 0.7)
    queue.gpuq("resume", "local")
    assert queue.ended(waiting)["state"] == "COMPLETED"
    assert "nowhere" in queue.gpuq("drain", "nowhere", "--reason", "x", code=1).error


# --- again ----------------------------------------------------------------------------------------------


def test_retries_of_a_failing_job(queue: Queue) -> None:
    """--retries N: up to N further attempts after its own failure, then FAILED; success ends them."""
    always = queue.submit("echo run >>always; exit 2", retries=1)
    second = queue.submit("echo run >>second; test $(wc -l <second) = 2", retries=5)
    job = queue.ended(always, second)
    assert (job["state"], job["exit_code"], job["restarts"]) == ("FAILED", 2, 1)
    assert queue.job(second)["state"] == "COMPLETED"
    assert (queue.work / "always").read_text() == "run\n" * 2
    assert (queue.work / "second").read_text() == "run\n" * 2


def test_cancel_ends_retries(queue: Queue) -> None:
    """A job cancelled between two tries is not tried again."""
    id_ = queue.submit("echo run >>runs; exit 2", retries=50)
    eventually(lambda: queue.job(id_)["restarts"] >= 1, "the first retry is due")
    queue.cancel(id_)
    assert queue.ended(id_)["state"] in ("CANCELLED", "FAILED")
    count = len((queue.work / "runs").read_text().split())
    holds_for(lambda: len((queue.work / "runs").read_text().split()) == count, "no further try", 2.5)


def test_requeue_of_a_running_job(queue: Queue) -> None:
    """requeue ends the present attempt first; the next one starts only when nothing of it lives."""
    command = "trap '' TERM; flock -n 9 || echo BUSY; echo $GPUQ_RESTART_COUNT >>runs; test $GPUQ_RESTART_COUNT = 1 || "
    id_ = queue.submit(f"exec 9>>lock; {command} while :; do sleep 0.1; done", grace_s=0.5)
    eventually(lambda: (queue.work / "runs").exists(), "the first attempt runs")
    queue.gpuq("requeue", id_)
    job = queue.ended(id_)
    assert (job["state"], job["restarts"]) == ("COMPLETED", 1)
    assert (queue.work / "runs").read_text() == "0\n1\n"
    assert queue.output(id_) == ""
    assert "already waiting" in queue.gpuq("requeue", queue.submit("true", held=True), code=1).error


def test_no_rerun_unless_asked(queue: Queue) -> None:
    """A failed job stays failed: no second attempt without --retries or --requeue."""
    id_ = queue.submit("echo run >>runs; exit 1")
    queue.ended(id_)
    holds_for(lambda: (queue.work / "runs").read_text() == "run\n", "no rerun", 1.5)


# --- arrays ---------------------------------------------------------------------------------------------


def test_array_with_a_limit(new_queue: Callable[..., Queue]) -> None:
    """%2: never more than two tasks at once, each with its own index; ids are 1_0 ... 1_5."""
    queue = new_queue(gpus=["A100:4"]).start()
    mark = "$GPUQ_ARRAY_TASK_ID.start"
    command = f"touch {mark}; ls *.start | wc -l >>seen; sleep 0.2; rm {mark}"
    id_ = queue.gpuq("submit", "--array", "0-10:2%2", "--", "bash", "-c", f"{command}; exit $GPUQ_ARRAY_TASK_ID").id
    queue.ended(id_)
    jobs = queue.jobs(id_)
    assert [job["id"] for job in jobs] == [f"{id_}_{task}" for task in range(0, 11, 2)]
    assert [job["exit_code"] for job in jobs] == list(range(0, 11, 2))
    assert {int(count) for count in (queue.work / "seen").read_text().split()} <= {1, 2}
    assert queue.gpuq("wait", id_, code=10).code == 10


def test_array_tasks_one_by_one(queue: Queue) -> None:
    """One task can be cancelled alone, the array as a whole too; a child waits for all of it."""
    id_ = queue.submit(f"{UNTIL_GO}; exit 0", tasks=range(4))
    child = queue.submit("true", dependencies={"terms": [{"kind": "afterany", "job": id_}]})
    queue.gpuq("cancel", f"{id_}_[2-3]")
    assert [job["state"] for job in queue.jobs(f"{id_}_2", f"{id_}_3")] == ["CANCELLED"] * 2
    holds_for(lambda: queue.job(child)["state"] == "PENDING", "the child waits for all tasks", 0.5)
    (queue.work / "go").touch()
    queue.ended(id_, child)
    assert [job["state"] for job in queue.jobs(id_)] == ["COMPLETED", "COMPLETED", "CANCELLED", "CANCELLED"]
    assert queue.job(child)["state"] == "COMPLETED"


def test_aftercorr_pairs_tasks(queue: Queue) -> None:
    """aftercorr: task i of the second array runs only if task i of the first succeeded."""
    first = queue.submit("exit $GPUQ_ARRAY_TASK_ID", tasks=range(3))
    second = queue.gpuq("submit", "-a", "0-2", "-d", f"aftercorr:{first}", "--", "true").id
    queue.ended(first, second)
    assert [job["state"] for job in queue.jobs(second)] == ["COMPLETED", "CANCELLED", "CANCELLED"]


def test_sweep_and_each_line(queue: Queue) -> None:
    """--sweep makes the product, --each-line one job per line, with the values put into the command."""
    sweep = queue.gpuq("submit", "--sweep", "lr=1,2", "--sweep", "b=x,y", "--", "echo", "{lr}-{b}").id
    lines = queue.gpuq("submit", "--each-line", "-", "--", "echo", "[{line}]", stdin=b"one\ntwo words\n").id
    queue.ended(sweep, lines)
    assert sorted(queue.output(job["id"]) for job in queue.jobs(sweep)) == ["1-x\n", "1-y\n", "2-x\n", "2-y\n"]
    assert [queue.output(job["id"]) for job in queue.jobs(lines)] == ["[one]\n", "[two words]\n"]


def test_singleton(queue: Queue) -> None:
    """Of jobs with one name only one runs at a time."""
    command = "mkdir busy || echo OVERLAP >>overlap; sleep 0.2; rmdir busy"
    ids = [queue.submit(command, name="same", dependencies={"terms": [{"kind": "singleton"}]}) for _ in range(4)]
    queue.ended(*ids)
    assert not (queue.work / "overlap").exists()


# --- what a job gets ------------------------------------------------------------------------------------


def test_descriptors_signals_and_limits_of_a_job(new_queue: Callable[..., Queue]) -> None:
    """A job has stdin from /dev/null, its output, and no other descriptor; no ignored or blocked signal; its umask."""
    queue = new_queue().start()
    program = (
        "import os, json; "
        "link = lambda fd: os.readlink(f'/proc/self/fd/{fd}') if os.path.lexists(f'/proc/self/fd/{fd}') else None; "
        "fds = {fd: link(fd) for fd in range(64)}; "
        "status = dict(line.split(':', 1) for line in open('/proc/self/status')); "
        "print(json.dumps([fds, status['SigIgn'].strip(), status['SigBlk'].strip(), os.umask(0), os.getcwd()]))"
    )
    id_ = queue.submit([sys.executable, "-S", "-E", "-c", program], umask=0o027)
    queue.ended(id_)
    fds, ignored, blocked, umask, cwd = json.loads(queue.output(id_))
    log = queue.job(id_)["stdout"]
    assert {fd: path for fd, path in fds.items() if path} == {"0": "/dev/null", "1": log, "2": log}
    python_ignores = (1 << 12) | (1 << 24)  # SIGPIPE and SIGXFSZ, by the interpreter itself
    unsettable = (1 << 31) | (1 << 32)  # 32 and 33 are the C library's own
    assert int(ignored, 16) & ~(python_ignores | unsettable) == 0
    assert int(blocked, 16) == 0
    assert umask == 0o027
    assert cwd == str(queue.work)


def test_script_is_taken_at_submit(queue: Queue) -> None:
    """A script's text and directives are those of the moment of submission; it gets its arguments."""
    script = queue.work / "train.sh"
    script.write_text("#!/bin/bash\n#GPUQ --job-name=from-script --gpus=2\n#SBATCH --time=00:10:00\necho first $1 $#\n")
    script.chmod(0o755)
    id_ = queue.gpuq("submit", "-H", "train.sh", "a b", "c").id
    script.write_text("#!/bin/bash\necho second\n")
    queue.gpuq("release", id_)
    job = queue.ended(id_)
    assert (job["name"], job["gpus_asked"], job["time_limit_s"]) == ("from-script", 2, 600.0)
    assert queue.output(id_) == "first a b 2\n"


def test_output_letters(queue: Queue) -> None:
    """%j %A %a %x %u %N %% in -o and -e; relative paths are below the working directory."""
    id_ = queue.gpuq(
        "submit", "-J", "my name", "-o", "o-%j-%x-%u-%N-%%.txt", "-e", "e-%A.txt",
        "--", "bash", "-c", "echo out; echo err >&2",
    ).id  # fmt: skip
    array = queue.gpuq("submit", "-a", "3-4", "-o", "%A.%a.%j", "--", "bash", "-c", "echo $GPUQ_ARRAY_TASK_ID").id
    job = queue.ended(id_, array)
    assert (queue.work / f"o-{id_}-my name-{job['user']}-local-%.txt").read_text() == "out\n"
    assert (queue.work / f"e-{id_}.txt").read_text() == "err\n"
    assert (queue.work / f"{array}.3.{array}_3").read_text() == "3\n"
    assert queue.gpuq("logs", id_).text == "out\n"
    assert queue.gpuq("logs", "-e", id_).text == "err\n"


def test_open_modes(queue: Queue) -> None:
    """append (the default) keeps what is there, truncate does not; the mode holds for a requeued job too."""
    for name in ("kept", "cut"):
        (queue.work / name).write_text("before\n")
    kept = queue.gpuq("submit", "-o", "kept", "--", "echo", "new").id
    cut = queue.gpuq("submit", "-o", "cut", "--open-mode", "truncate", "--", "echo", "new").id
    queue.ended(kept, cut)
    queue.gpuq("requeue", kept, cut)
    queue.ended(kept, cut)
    assert (queue.work / "kept").read_text() == "before\nnew\nnew\n"
    assert (queue.work / "cut").read_text() == "new\n"


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"cwd": "/no/such/directory"}, None, "/no/such/directory"),
        ({"stdout": "/no/such/directory/out"}, None, "/no/such/directory/out"),
        ({"stdout": "/dev"}, None, "/dev"),
        ({"argv": ["/no/such/program"]}, 127, "/no/such/program"),
        ({"argv": ["/etc/passwd"]}, 126, "/etc/passwd"),
    ],
)
def test_jobs_that_cannot_be_started(queue: Queue, fields: dict[str, object], code: int | None, words: str) -> None:
    """FAILED with a sentence that names what is missing; never a fallback to another directory or file."""
    body = queue.body(["true"])
    body["spec"] |= fields
    id_ = queue.api.post("/v1/jobs", body)["id"]
    job = queue.ended(id_)
    assert (job["state"], job["exit_code"]) == ("FAILED", code)
    assert words in (job["message"] or "")
    assert all(gpu["job"] is None for gpu in queue.gpus())


def test_memory_limit(new_queue: Callable[..., Queue]) -> None:
    """A job that goes over its --mem is ended by the kernel and is OUT_OF_MEMORY, not FAILED."""
    need(os.geteuid() == 0, "limiting memory with control groups needs root here")
    v1 = Path("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists()
    queue = new_queue(environment={"GPUQ_CONTAINMENT": "B" if v1 else "A"}).start()
    program = "x = bytearray(400 << 20); print(len(x))"
    id_ = queue.submit([sys.executable, "-c", program], resources={"memory_mib": 100})
    job = queue.ended(id_)
    assert (job["state"], job["reason"]) == ("OUT_OF_MEMORY", "OutOfMemory")
    assert "400" not in queue.output(id_)


def test_measures_of_a_run(queue: Queue) -> None:
    """Run time, CPU time, memory and log size are the kernel's, null while unknown."""
    program = "import time; x = bytearray(60 << 20); e = time.time() + 0.5\nwhile time.time() < e: pass\nprint('done')"
    id_ = queue.submit([sys.executable, "-c", program])
    job = queue.ended(id_)
    assert 0.5 <= job["run_s"] < 30
    assert 0.1 < job["cpu_s"] < 30
    assert 60 < job["max_rss_mib"] < 400
    assert job["log_bytes"] == len("done\n")
    waiting = queue.job(queue.submit("true", held=True))
    assert (waiting["run_s"], waiting["exit_code"], waiting["started_at"], waiting["node"]) == (None, None, None, None)


def test_history_of_ended_jobs(new_queue: Callable[..., Queue]) -> None:
    """Ended jobs stay known over restarts, newest first, until they are pruned on demand."""
    queue = new_queue().start()
    ids = [queue.submit("true", name=f"number {number}") for number in range(3)]
    queue.ended(*ids)
    assert queue.stop() == 0
    queue.start()
    found = [job["id"] for job in queue.api.get("/v1/history")["jobs"]]
    assert sorted(found, key=int) == ids
    text = queue.gpuq("history").text
    assert "number 2" in text
    queue.gpuq("prune", "-y", ids[0])
    assert queue.gpuq("show", ids[0], code=1).error
    assert [job["id"] for job in queue.api.get("/v1/history")["jobs"] if job["id"] == ids[0]] == []
    assert Path(queue.job(ids[1])["stdout"]).exists(), "people's output is never deleted as a side effect"


def test_dry_run_queues_nothing(queue: Queue) -> None:
    """--dry-run says where it would start and makes no job."""
    queue.node_ready()
    assert "local" in queue.gpuq("submit", "--dry-run", "--", "true").text
    assert queue.jobs() == []


def test_batch_is_all_or_nothing(queue: Queue) -> None:
    """One submit of a batch is refused: none is made."""
    good, bad = queue.body("true"), queue.body("true", gpus=99)
    status, answer = queue.api.exchange("POST", "/v1/jobs/batch", {"submits": [good, bad]})
    assert (status, "error" in answer) == (409, True)
    assert queue.jobs() == []
    answer = queue.api.post("/v1/jobs/batch", {"submits": [queue.body("true") for _ in range(5)]})
    assert len(set(answer["ids"])) == 5
    queue.ended(*answer["ids"])


def test_idle_queue_costs_no_processor_time(new_queue: Callable[..., Queue]) -> None:
    """With 200 waiting jobs and nothing to do, the daemon sleeps: no busy loop anywhere."""
    queue = new_queue().start()
    queue.api.post("/v1/jobs", queue.body("true", tasks=range(200), held=True))
    queue.node_ready()

    def ticks() -> int:
        total = 0
        for pid in queue.processes():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total

    settled = time.monotonic() + 1.0
    eventually(lambda: time.monotonic() > settled, "start-up is over", 5)
    before = ticks()
    until = time.monotonic() + 3.0
    eventually(lambda: time.monotonic() > until, "three seconds have passed", 10)
    assert (ticks() - before) / os.sysconf("SC_CLK_TCK") < 1.0


def test_long_lines_and_chosen_fields(queue: Queue) -> None:
    """`status -l` and `-o` fill every column, those of the full job object too."""
    id_ = queue.gpuq("submit", "-H", "-c", "2", "--mem", "100M", "--", "echo", "a b").id
    head, line = queue.gpuq("status", "-l").text.splitlines()[:2]
    assert head.split()[-1] == "COMMAND"
    assert line.endswith("echo 'a b'")
    assert queue.gpuq("status", "--noheader", "-o", "jobid,cpus,mem,workdir").text.split() == [
        id_, "2", "100", "MiB", str(queue.work),
    ]  # fmt: skip
    queue.gpuq("cancel", id_)
