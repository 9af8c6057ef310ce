"""Faults of other queues in submitting, listing, logs, ids, environment and waiting; each test has its case's id."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.harness import Queue, eventually

pytestmark = pytest.mark.e2e


def on_terminal(queue: Queue, *words: str, **variables: str) -> tuple[int, str]:
    """Run a command with a terminal as its output: exit code, and what was shown."""
    ours, theirs = pty.openpty()
    environment = queue.command_environment({"TERM": "xterm", "COLUMNS": "100", **variables})
    with subprocess.Popen(
        [sys.executable, "-m", "gpuq", *words], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
        env=environment, cwd=queue.work,
    ) as process:  # fmt: skip
        os.close(theirs)
        shown = b""
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:
                break
            if not data:
                break
            shown += data
        code = process.wait(30)
    os.close(ours)
    return code, shown.decode("utf-8", "replace")


# --- A08: dependencies ----------------------------------------------------------------------------------


def test_a08_a_child_of_a_failed_parent_never_runs(queue: Queue) -> None:
    """30 parents that fail at once, each with a child submitted in the same moment: no child runs."""
    children = []
    for _ in range(30):
        parent = queue.submit("false")
        terms = {"terms": [{"kind": "afterok", "job": parent}]}
        children.append(queue.submit(f"touch {queue.work}/ran", dependencies=terms))
    queue.ended(*children, within_s=60)
    found = {(job["state"], job["reason"]) for job in queue.jobs(*children)}
    assert found == {("CANCELLED", "DependencyNeverSatisfied")}
    assert not (queue.work / "ran").exists()


def test_a08_a_parent_with_living_children_cannot_be_removed(queue: Queue) -> None:
    """prune keeps an ended parent while a pending child needs it, and says so; afterwards the child runs."""
    parent = queue.submit("true", held=True)
    child = queue.submit("true", held=True, dependencies={"terms": [{"kind": "afterok", "job": parent}]})
    queue.api.post("/v1/release", {"ids": [parent]})
    queue.ended(parent)
    answer = queue.api.post("/v1/prune", {"ids": [parent]})
    assert answer["pruned"] == []
    assert child in answer["kept"][0]["reason"]
    assert queue.job(parent)["state"] == "COMPLETED"
    queue.api.post("/v1/release", {"ids": [child]})
    assert queue.ended(child)["state"] == "COMPLETED"
    assert queue.api.post("/v1/prune", {"ids": [parent]})["pruned"] == [parent]


def test_a08_chains_are_cancelled_all_levels_down(queue: Queue) -> None:
    """afterok of afterok of a failure: every level is cancelled; afternotok and afterany run."""
    parent = queue.submit("until test -e go; do sleep 0.05; done; false")
    chain = [parent]
    for _ in range(4):
        chain.append(queue.gpuq("submit", "-d", f"afterok:{chain[-1]}", "--", "touch", "ran").id)
    cleanup = queue.gpuq("submit", "-d", f"afternotok:{parent}", "--", "touch", "cleaned").id
    anyhow = queue.gpuq("submit", "-d", f"afterany:{chain[-1]}", "--", "touch", "reported").id
    assert {job["reason"] for job in queue.jobs(*chain[1:])} == {"Dependency"}
    (queue.work / "go").touch()
    queue.ended(*chain, cleanup, anyhow)
    assert [job["state"] for job in queue.jobs(*chain)] == ["FAILED", *["CANCELLED"] * 4]
    assert not (queue.work / "ran").exists()
    assert (queue.work / "cleaned").exists()
    assert (queue.work / "reported").exists()


def test_a08_keep_on_failed_dependency_holds(queue: Queue) -> None:
    """--keep-on-failed-dep holds the child; without its dependency it can be released and runs."""
    parent = queue.submit("false")
    queue.ended(parent)
    child = queue.gpuq("submit", "-d", f"afterok:{parent}", "--keep-on-failed-dep", "--", "true").id
    job = queue.job(child)
    assert (job["state"], job["held"], job["reason"]) == ("PENDING", "dependency", "DependencyNeverSatisfied")
    assert "dependency" in queue.gpuq("release", child, code=1).error
    queue.api.post("/v1/update", {"ids": [child], "changes": {"dependencies": {}}})
    assert queue.ended(child)["state"] == "COMPLETED"


def test_a08_unknown_parents_and_circles_are_refused(queue: Queue) -> None:
    """A dependency on a job that does not exist, or on oneself through others, is refused."""
    assert "999" in queue.gpuq("submit", "-d", "afterok:999", "--", "true", code=1).error
    one = queue.submit("true", held=True)
    two = queue.gpuq("submit", "-H", "-d", f"afterok:{one}", "--", "true").id
    terms = {"dependencies": {"terms": [{"kind": "afterok", "job": two}]}}
    status, answer = queue.api.exchange("POST", "/v1/update", {"ids": [one], "changes": terms})
    assert (status, answer["error"]["kind"]) == (409, "refused")


# --- A09: what can never run ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "largest"),
    [
        (("--gpus", "5"), "2"),
        (("--gpu-mem", "999G"), "GiB"),
        (("--gpus", "h100:1"), "A100"),
        (("--gpu-ids", "7"), "gpuq gpus"),
        (("-c", "9999"), str(os.cpu_count())),
        (("--mem", "9000T"), "GiB"),
        (("-w", "nowhere"), "local"),
    ],
)
def test_a09_what_can_never_run_is_refused(shared_queue: Queue, options: tuple[str, ...], largest: str) -> None:
    """A request larger than any node is refused at once with the largest possible value."""
    before = shared_queue.jobs()
    ran = shared_queue.gpuq("submit", *options, "--", "true", code=1)
    assert ran.out == b""
    assert largest in ran.error
    assert shared_queue.jobs() == before


def test_a09_what_cannot_run_now_waits_with_the_obstacle(queue: Queue) -> None:
    """A job that must wait names who is in its way."""
    holder = queue.submit("until test -e go; do sleep 0.05; done", gpus=2)
    queue.reaches(holder, "RUNNING")
    waiting = queue.submit("true")
    eventually(lambda: holder in (queue.job(waiting)["message"] or ""), lambda: str(queue.job(waiting)["message"]))
    assert holder in queue.gpuq("why", waiting).text
    (queue.work / "go").touch()
    assert queue.ended(waiting)["state"] == "COMPLETED"


# --- A12, A13, A14: output, tables, names ---------------------------------------------------------------


def test_a12_output_that_is_not_utf8(queue: Queue) -> None:
    """Raw bytes to a pipe unchanged; replacement characters in JSON and on a terminal; exit 0 everywhere."""
    raw = b"\xff\xfe caf\xe9\n"
    id_ = queue.submit(["printf", r"\xff\xfe caf\xe9\n"])
    queue.ended(id_)
    assert queue.gpuq("logs", id_).out == raw
    assert "caf\ufffd" in queue.gpuq("logs", id_, "--json").document["text"]
    code, shown = on_terminal(queue, "logs", id_)
    assert code == 0
    assert "caf" in shown


def test_a12_a_tail_that_begins_inside_a_character(queue: Queue) -> None:
    """A log whose tail would begin inside a multibyte character is shown without an error."""
    id_ = queue.submit("for i in $(seq 3000); do printf 'ééé€€€ %d\\n' $i; done; printf 'no newline €'")
    queue.ended(id_)
    assert queue.gpuq("logs", id_, "--tail", "2").text == "ééé€€€ 3000\nno newline €"
    assert queue.gpuq("logs", id_, "--tail", "1", "--json").document["text"] == "no newline €"


def test_a12_escape_codes_do_not_reach_the_terminal_from_a_list(queue: Queue) -> None:
    """A log with terminal escapes is unchanged on a pipe; on a terminal nothing but colours gets through."""
    id_ = queue.submit(r"printf '\033]0;title\007\033[2J\033[31mred\033[0m\n'")
    queue.ended(id_)
    assert queue.gpuq("logs", id_).out == b"\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m\n"
    _, shown = on_terminal(queue, "logs", id_)
    assert "red" in shown
    assert "\x1b]0;" not in shown
    assert "\x1b[2J" not in shown


@pytest.mark.parametrize("variables", [{}, {"COLUMNS": "40"}, {"TERM": "dumb"}, {"FORCE_COLOR": ""}])
def test_a13_a_pipe_gets_full_lines(queue: Queue, variables: dict[str, str]) -> None:
    """On a pipe: one full line per job, no box, no colour, no shortened name."""
    name = "n" * 80
    queue.submit("true", name=name, held=True)
    ran = queue.gpuq("status", environment=variables)
    lines = ran.text.splitlines()
    assert len(lines) == 2
    assert name in lines[1].split()
    assert "\x1b" not in ran.text
    assert not re.search("[─-╿…]", ran.text)


NAMES = {
    "brackets": "lr[0.1] [/red]",
    "markup": "[bold]x[/]",
    "percent": "100%s %d {0}",
    "unicode": "größe 模型 🚀",
    "quotes": "a'b\"c\\d",
    "spaces": "  two  spaces ",
    "option": "--help",
}


@pytest.mark.parametrize("kind", NAMES)
def test_a14_names_are_shown_letter_by_letter(queue: Queue, kind: str) -> None:
    """Brackets and other odd letters in a name appear as they are in status, show, JSON, logs and errors."""
    name = NAMES[kind]
    id_ = queue.gpuq("submit", f"--job-name={name}", "--", "echo", "[bold]x[/]", name).id
    assert queue.ended(id_)["name"] == name
    assert queue.gpuq("logs", id_).text == f"[bold]x[/] {name}\n"
    assert queue.gpuq("status", id_, "--json").document["job"]["name"] == name
    assert name.strip() in queue.gpuq("show", id_).text
    assert name.strip() in queue.gpuq("status", "--all").text
    assert [job["id"] for job in queue.gpuq("status", "--all", "--json", f"--name={name}").document["jobs"]] == [id_]
    code, shown = on_terminal(queue, "status", "--all")
    assert code == 0
    assert name.split()[0] in shown


def test_a14_an_error_that_quotes_markup(shared_queue: Queue) -> None:
    """An error message that quotes what was typed shows it as typed."""
    assert "[/red]" in shared_queue.gpuq("status", "[/red]", code=2).error
    assert "[bold]" in shared_queue.gpuq("submit", "--gpus", "[bold]", "--", "true", code=2).error


# --- A15, A16, A17 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("separator", [(), ("--",)])
def test_a15_everything_after_the_first_word_is_the_job_s(queue: Queue, separator: tuple[str, ...]) -> None:
    """Options behind the command reach the job unchanged."""
    words = ["printf", "%s\\n", "--gpus", "4", "--name", "x", "-v", "--", "--json", "--help"]
    id_ = queue.gpuq("submit", *separator, *words).id
    job = queue.ended(id_)
    assert job["argv"] == words
    assert job["gpus_asked"] == 1
    assert queue.output(id_).split() == words[2:]


def test_a15_a_mistyped_option_is_an_error(shared_queue: Queue) -> None:
    """An unknown option before the command is exit 2 with a suggestion, and nothing is queued."""
    before = shared_queue.jobs()
    ran = shared_queue.gpuq("submit", "--gpsu", "1", "python", "t.py", code=2)
    assert "--gpus" in ran.error
    assert shared_queue.jobs() == before


def test_a16_the_environment_is_the_submitter_s(new_queue: Callable[..., Queue]) -> None:
    """A job sees the submitter's variables, not the daemon's, and its PATH finds the submitter's programs."""
    queue = new_queue(environment={"FOO": "daemon", "DAEMON_ONLY": "1"}).start()
    own = queue.gpuq("submit", "--", "printenv", "FOO", environment={"FOO": "me"}).id
    none = queue.gpuq("submit", "--", "printenv", "FOO").id
    leaked = queue.gpuq("submit", "--", "printenv", "DAEMON_ONLY", "GPUQ_TEST_JUMP", "GPUQ_TEST_CONSTANTS").id
    tools = queue.directory / "venv" / "bin"
    tools.mkdir(parents=True)
    (tools / "python").write_text("#!/bin/sh\necho the venv\n")
    (tools / "python").chmod(0o755)
    path = {"PATH": f"{tools}:{os.environ['PATH']}"}
    program = queue.gpuq("submit", "--", "python", "train.py", environment=path).id
    queue.ended(own, none, leaked, program)
    assert queue.output(own) == "me\n"
    assert (queue.output(none), queue.job(none)["exit_code"]) == ("", 1)
    assert queue.output(leaked) == ""
    assert queue.output(program) == "the venv\n"


def test_a16_export_and_env(queue: Queue) -> None:
    """--export=NONE leaves the submitter's variables out, NAME=VALUE and --env add some."""
    shown = "bash", "-c", "echo [$FOO] [$BAR] [$BAZ]"
    here = {"FOO": "me", "BAR": "here"}
    wanted = {
        ("--export", "NONE"): "[] [] []",
        ("--export", "ALL,BAZ=1"): "[me] [here] [1]",
        ("--export", "BAR"): "[] [here] []",
        ("--env", "FOO=other", "--env", "BAZ=a b"): "[other] [here] [a b]",
    }
    ids = {options: queue.gpuq("submit", *options, "--", *shown, environment=here).id for options in wanted}
    for options, text in wanted.items():
        queue.ended(ids[options])
        assert queue.output(ids[options]).strip() == text, options


def test_a16_variables_that_describe_the_job(queue: Queue) -> None:
    """GPUQ_ variables are set, an outer job's are not passed on, and SLURM_ ones only on request."""
    variables = {"GPUQ_JOB_ID": "999", "GPUQ_ARRAY_TASK_ID": "8", "GPUQ_GPUS": "GPU-outer"}
    one = queue.gpuq("submit", "-J", "my name", "-t", "10", "--", "env", environment=variables).id
    two = queue.gpuq("submit", "--slurm-env", "--", "env").id
    queue.ended(one, two)
    found = dict(line.partition("=")[::2] for line in queue.output(one).splitlines())
    assert found["GPUQ_JOB_ID"] == one
    assert found["GPUQ_JOB_NAME"] == "my name"
    assert found["GPUQ_NODENAME"] == "local"
    assert found["GPUQ_RESTART_COUNT"] == "0"
    assert found["GPUQ_GPUS"] == found["CUDA_VISIBLE_DEVICES"] == queue.job(one)["gpus"][0]["uuid"]
    assert found["GPUQ_SUBMIT_DIR"] == str(queue.work)
    assert abs(int(found["GPUQ_JOB_END_TIME"]) - time.time() - 600) < 60
    assert "GPUQ_ARRAY_TASK_ID" not in found
    assert not [name for name in found if name.startswith("SLURM_")]
    assert f"SLURM_JOB_ID={two}\n" in queue.output(two)


def test_a17_a_long_home(new_queue: Callable[..., Queue], tmp_path: Path) -> None:
    """A home of 200 letters: the daemon starts by itself, submits and status work."""
    queue = new_queue(home=tmp_path / ("h" * 150) / ("j" * 50))
    queue.home.parent.mkdir()
    assert len(str(queue.home)) > 200
    id_ = queue.gpuq("submit", "--", "echo", "hello").id
    queue.gpuq("wait", id_)
    assert queue.gpuq("logs", id_).text == "hello\n"
    queue.gpuq("daemon", "stop")
    eventually(lambda: not queue.processes(), "nothing lives on")


def test_a17_a_long_tmpdir_does_not_matter(new_queue: Callable[..., Queue]) -> None:
    """TMPDIR plays no part in where the socket is."""
    queue = new_queue(environment={"TMPDIR": "/tmp/" + "t" * 150}).start()
    assert queue.gpuq("status", environment={"TMPDIR": "/tmp/" + "t" * 150}).code == 0


# --- A20, A21, A22 --------------------------------------------------------------------------------------


def test_a20_ids_only_grow(new_queue: Callable[..., Queue]) -> None:
    """After pruning everything and a restart new jobs get new ids and new logs."""
    queue = new_queue().start()
    first = [queue.submit(f"echo {number}") for number in range(3)]
    queue.ended(*first)
    logs = [queue.job(id_)["stdout"] for id_ in first]
    assert set(queue.api.post("/v1/prune", {})["pruned"]) == set(first)
    assert queue.stop() == 0
    queue.start()
    assert queue.gpuq("show", first[0], code=1).error
    later = queue.submit("echo later")
    assert int(later) > max(map(int, first))
    assert queue.ended(later)["stdout"] not in logs
    assert queue.output(later) == "later\n"


def test_a20_a_requeued_job_keeps_the_earlier_log(queue: Queue) -> None:
    """Each attempt has a log of its own; the first one's stays as it was."""
    id_ = queue.submit("echo attempt $GPUQ_RESTART_COUNT")
    queue.ended(id_)
    queue.gpuq("requeue", id_)
    job = queue.ended(id_)
    assert (job["restarts"], job["attempt_number"]) == (1, 1)
    assert queue.gpuq("logs", id_).text == "attempt 1\n"
    assert queue.gpuq("logs", id_, "--attempt", "0").text == "attempt 0\n"


def test_a21_one_json_document_and_nothing_else(new_queue: Callable[..., Queue]) -> None:
    """stdout is exactly one JSON document: empty queue, jobs, an unknown id, a usage error, no daemon."""
    queue = new_queue()
    gone = queue.gpuq("status", "--json", code=3)
    assert gone.document["error"]["kind"] == "unreachable"
    queue.start()
    assert queue.gpuq("status", "--json").document["jobs"] == []
    made = queue.gpuq("submit", "--json", "--", "true").document
    assert made["id"] == "1"
    queue.ended("1")
    for words in (("status", "--all"), ("show", "1"), ("history",), ("nodes",), ("gpus",), ("logs", "1"), ("wait", "1"),
                  ("why", "1"), ("daemon", "status"), ("cancel", "1")):  # fmt: skip
        assert isinstance(queue.gpuq(*words, "--json").document, dict), words
    for words, code in ((("show", "99"), 1), (("status", "zzz"), 2), (("cancel", "99"), 1), (("wait", "99"), 1),
                        (("logs", "99"), 1)):  # fmt: skip
        ran = queue.gpuq(*words, "--json", code=code)
        assert ran.document["error"]["message"], words
        assert ran.document["error"]["exit_code"] == code


def test_a21_json_has_the_schema_and_offset_times(queue: Queue) -> None:
    """Documents say their schema, times are ISO 8601 with an offset, unknown is null."""
    id_ = queue.submit("true")
    queue.ended(id_)
    document = queue.gpuq("status", id_, "--json").document
    assert document["schema"] == 1
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?[+-]\d\d:\d\d", document["job"]["submitted_at"])
    assert document["job"]["exit_signal"] is None


def test_a22_the_client_imports_little(queue: Queue) -> None:
    """Help, completion and the daily verbs load no solver, no numpy, no server and no terminal tool-kit."""
    heavy = ("ortools", "numpy", "aiohttp", "textual", "matplotlib", "http.client", "asyncio", "sqlite3")
    for words in (("--help",), ("complete", "submit", "--g"), ("status",), ("submit", "--", "true")):
        ran = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "gpuq", *words], env=queue.environment, capture_output=True,
            text=True, timeout=30, cwd=queue.work,
        )  # fmt: skip
        loaded = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines() if "import time:" in line}
        assert "gpuq" in loaded
        assert not [name for name in loaded for each in heavy if name == each or name.startswith(each + ".")], words


# --- A25: wait ------------------------------------------------------------------------------------------


def test_a25_wait_returns_for_every_final_state(new_queue: Callable[..., Queue]) -> None:
    """`wait` returns at once with the documented code, whatever way the job ended."""
    queue = new_queue().start()
    cases: dict[str, tuple[str, str, int]] = {}

    def add(id_: str, state: str, code: int) -> None:
        cases[id_] = (id_, state, code)

    add(queue.submit("true"), "COMPLETED", 0)
    failed = queue.submit("exit 42")
    add(failed, "FAILED", 42)
    add(queue.submit("kill -SEGV $$"), "FAILED", 139)
    add(queue.submit(["/no/such/program"]), "FAILED", 127)
    add(queue.submit("true", cwd="/no/such/directory"), "FAILED", 1)
    queue.ended(*cases)
    held = queue.submit("true", held=True)
    queue.cancel(held)
    add(held, "CANCELLED", 1)
    running = queue.submit("echo up; sleep 987")
    queue.lines(running, 1)
    queue.cancel(running)
    add(running, "CANCELLED", 143)
    add(queue.submit("sleep 987", time_limit_s=0.5), "TIMEOUT", 143)
    add(queue.submit("true", dependencies={"terms": [{"kind": "afterok", "job": failed}]}), "CANCELLED", 1)
    lost = queue.submit("echo up; sleep 987")
    queue.lines(lost, 1)
    os.kill(queue.shim(lost), 9)
    add(lost, "NODE_FAIL", 1)
    for id_, state, code in cases.values():
        assert queue.gpuq("wait", id_, code=code, within_s=20).out == b""
        assert queue.job(id_)["state"] == state, queue.job(id_)
    assert queue.gpuq("wait", *cases, code=143, within_s=20).out == b""


def test_a25_wait_gives_up_in_time(queue: Queue) -> None:
    """`wait --timeout` ends with 124; --any returns with the first end; waiting jobs are not disturbed."""
    slow = queue.submit("until test -e go; do sleep 0.05; done")
    quick = queue.submit("exit 3")
    assert queue.gpuq("wait", slow, "--timeout", "0.3s", code=124).out == b""
    assert queue.gpuq("wait", "--any", slow, quick, code=3).out == b""
    assert queue.job(slow)["state"] == "RUNNING"
    (queue.work / "go").touch()
    queue.gpuq("wait", slow, "--timeout", "30s")


def test_a25_a_waiting_client_survives_a_daemon_restart(new_queue: Callable[..., Queue]) -> None:
    """`wait` goes on over a kill -9 of the daemon and returns the job's code."""
    queue = new_queue().start()
    id_ = queue.submit("echo up; until test -e go; do sleep 0.05; done; exit 6")
    queue.lines(id_, 1)
    with subprocess.Popen(
        [sys.executable, "-m", "gpuq", "wait", id_], env=queue.environment, cwd=queue.work,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as waiting:  # fmt: skip
        eventually(lambda: _has_socket(waiting.pid), "the client is connected")
        queue.kill()
        (queue.work / "go").touch()
        queue.start()
        out, _ = waiting.communicate(timeout=40)
        assert (waiting.returncode, out) == (6, b"")


def _has_socket(pid: int) -> bool:
    directory = Path(f"/proc/{pid}/fd")
    try:
        return any(os.readlink(each).startswith("socket:") for each in directory.iterdir())
    except OSError:
        return False


def test_run_passes_output_and_code_on(queue: Queue) -> None:
    """`run` shows the job's output and ends with its code; `submit --wait` with the code alone."""
    ran = queue.gpuq("run", "--", "bash", "-c", "echo out; echo err >&2; exit 9", code=9)
    assert ran.out == b"out\nerr\n"
    assert queue.gpuq("submit", "--wait", "--", "bash", "-c", "exit 4", code=4).text.startswith("Submitted batch job")
    assert json.loads(queue.gpuq("submit", "--wait", "--json", "--", "true").out)["jobs"][0]["state"] == "COMPLETED"
