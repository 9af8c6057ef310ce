"""Input that nobody should send: odd names, huge environments, unknown ids, broken pipes, malformed requests."""

from __future__ import annotations

import base64
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from gpuq.socketpath import connect_address
from tests.e2e.harness import ApiError, Queue, eventually

pytestmark = pytest.mark.e2e

GPUQ = f"{sys.executable} -m gpuq"


def in_shell(queue: Queue, line: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of bash with the queue's environment."""
    return subprocess.run(
        ["bash", "-c", line], env=queue.environment, cwd=queue.work, capture_output=True, timeout=60, check=False
    )


# --- names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["two\nlines", "carriage\rreturn", "x" * 10_240, "nul\0byte", ""])
def test_names_that_cannot_be_kept_whole(queue: Queue, name: str) -> None:
    """Through the socket: refused with a sentence, or kept and still shown as one line; never a crash."""
    status, answer = queue.api.exchange("POST", "/v1/jobs", queue.body("true", name=name, held=True))
    if status != 200:
        assert status in (400, 409)
        assert len(answer["error"]["message"]) < 300, "the name itself is not poured out"
        return
    ran = queue.gpuq("status")
    assert len(ran.text.splitlines()) == 2
    assert "\r" not in ran.text


def test_names_on_the_command_line(shared_queue: Queue) -> None:
    """A line break or 10 KB in a name is refused by the command line in one sentence."""
    before = shared_queue.jobs()
    for name in ("two\nlines", "x" * 10_240):
        ran = shared_queue.gpuq("submit", "-J", name, "--", "true", code=None)
        assert ran.code in (1, 2)
        assert "name" in ran.error
        assert len(ran.error) < 500
    assert shared_queue.jobs() == before


def test_escape_codes_in_a_name_stay_text(queue: Queue) -> None:
    """A name with terminal escapes never reaches the terminal as such."""
    id_ = queue.submit("true", name="\x1b[2J\x1b]0;owned\x07red", held=True)
    for words in (("status",), ("show", id_), ("why", id_)):
        assert b"\x1b" not in queue.gpuq(*words).out
    assert queue.gpuq("status", id_, "--json").document["job"]["name"].startswith("\x1b[2J")


def test_a_huge_environment(queue: Queue) -> None:
    """An environment of 1 MiB reaches the job whole; one that no program could be given is refused."""
    large = {f"LARGE_{number}": "v" * 100_000 for number in range(10)}
    counts = "bash", "-c", "env | grep -c ^LARGE_; printf %s $LARGE_9 | wc -c"
    id_ = queue.gpuq("submit", "--", *counts, environment=large).id
    assert queue.ended(id_)["state"] == "COMPLETED"
    assert queue.output(id_).split() == ["10", "100000"]
    body = queue.body("true")
    body["environment"] = base64.b64encode(b"A=" + b"x" * (9 << 20)).decode()
    with pytest.raises(ApiError, match="bytes"):
        queue.api.post("/v1/jobs", body)


def test_an_environment_that_is_not_utf8(queue: Queue) -> None:
    """Values are bytes, and reach the job as they are."""
    body = queue.body(["printenv", "RAW"])
    body["environment"] = base64.b64encode(b"PATH=/usr/bin:/bin\0RAW=caf\xe9\xff").decode()
    id_ = queue.api.post("/v1/jobs", body)["id"]
    queue.ended(id_)
    assert queue.gpuq("logs", id_).out == b"caf\xe9\xff\n"


# --- ids ------------------------------------------------------------------------------------------------

VERBS = (
    ("show",), ("status",), ("logs",), ("logs", "-f"), ("wait",), ("cancel",), ("cancel", "-s", "USR1"), ("why",),
    ("hold",), ("release",), ("requeue",), ("update", "--time", "5"), ("attach",), ("submit", "--like"),
    ("prune", "-y"),
)  # fmt: skip


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_unknown_ids_are_exit_1(shared_queue: Queue, words: tuple[str, ...]) -> None:
    """Every verb says which id does not exist, with exit code 1."""
    ran = shared_queue.gpuq(*words, "4242", code=1)
    assert "4242" in ran.error
    assert ran.out == b""


@pytest.mark.parametrize("verb", ["cancel", "hold", "wait", "show", "release", "requeue"])
def test_an_unknown_id_in_a_list_changes_nothing(queue: Queue, verb: str) -> None:
    """One unknown id in a list is exit 1, and the others are left as they were."""
    id_ = queue.submit("true", held=verb != "hold", begin_at=4e9)
    before = queue.job(id_)
    assert "4242" in queue.gpuq(verb, f"{id_},4242", code=1).error
    after = queue.job(id_)
    assert (after["state"], after["held"]) == (before["state"], before["held"])


@pytest.mark.parametrize("word", ["abc", "1-", "-3", "1_", "5-1", "1,,2x", "12_[²]"])
def test_words_that_are_no_ids_are_usage_errors(shared_queue: Queue, word: str) -> None:
    """What is not an id is exit 2."""
    assert shared_queue.gpuq("show", "--", word, code=2).error


@pytest.mark.parametrize("indices", ["²", "1-²", "0-", "5-1", "a", "0-3%", "-1", "0-999999999"])
def test_array_indices_that_are_none(shared_queue: Queue, indices: str) -> None:
    """What is no list of array indices is exit 2 with a sentence, and nothing is queued."""
    before = shared_queue.jobs()
    ran = shared_queue.gpuq("submit", f"--array={indices}", "--", "true", code=2)
    assert "gpuq itself failed" not in ran.error
    assert shared_queue.jobs() == before


def test_thousands_of_ids_in_one_command(queue: Queue) -> None:
    """A range of 3000 ids is listed, cancelled and waited for like one id."""
    body = queue.body("true", held=True)
    answer = queue.api.post("/v1/jobs/batch", {"submits": [{**body, "key": f"key {n}"} for n in range(3000)]})
    assert len(answer["ids"]) == 3000
    assert len(queue.gpuq("status", "1-3000", "--noheader").text.splitlines()) == 3000
    queue.gpuq("cancel", "1-3000")
    assert queue.gpuq("wait", "-q", "1-3000", code=1).err == b""


# --- pipes ----------------------------------------------------------------------------------------------


def test_a_broken_pipe_is_a_quiet_end(queue: Queue) -> None:
    """`| head` ends every list without a word and without a traceback."""
    queue.api.post("/v1/jobs", queue.body("true", tasks=range(3000), held=True))
    id_ = queue.submit("seq 200000")
    queue.ended(id_)
    queue.api.post("/v1/jobs/batch", {"submits": [queue.body("true", held=True, name="n" * 500) for _ in range(500)]})
    for words in ("status --all", "status --json", f"logs {id_}", f"logs -f {id_}", "history"):
        done = in_shell(queue, f"{GPUQ} {words} | head -c 100 >/dev/null; echo ${{PIPESTATUS[0]}}")
        assert done.stderr == b"", words
        assert done.stdout in (b"0\n", b"141\n"), words


def test_closed_standard_output(queue: Queue) -> None:
    """A command whose output is closed does its work and does not crash."""
    done = in_shell(queue, f"{GPUQ} submit -- true >&-; {GPUQ} status >/dev/full; true")
    assert b"Traceback" not in done.stderr
    assert len(queue.jobs()) == 1


# --- requests -------------------------------------------------------------------------------------------


def test_the_same_key_twice_makes_one_job(new_queue: Callable[..., Queue]) -> None:
    """A submit repeated with its key (at once, in parallel, after a kill -9) is the same job."""
    queue = new_queue().start()
    body = queue.body("echo run >>runs", key="the key")
    first = queue.api.post("/v1/jobs", body)
    assert first["existing"] is False
    second = queue.api.post("/v1/jobs", body)
    assert (second["id"], second["existing"]) == (first["id"], True)
    queue.kill()
    queue.start()
    assert queue.api.post("/v1/jobs", body)["id"] == first["id"]
    other = queue.body("echo run >>runs", key="another key")
    ids: list[str] = []
    threads = [threading.Thread(target=lambda: ids.append(queue.api.post("/v1/jobs", other)["id"])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 8
    assert len({first["id"], *ids}) == 2
    queue.ended(first["id"], ids[0])
    assert (queue.work / "runs").read_text() == "run\nrun\n"


def program(**fields: object) -> dict[str, object]:
    """A submit object that is right but for `fields` of its spec."""
    return {"spec": {"name": "x", "cwd": "/", "argv": ["true"], **fields}, "environment": "", "gpus_given": True}


MALFORMED = {
    "not json": b"{nonsense",
    "a list": b"[]",
    "a number": b"7",
    "empty object": {},
    "spec is text": {"spec": "x", "environment": ""},
    "no argv": {"spec": {"name": "x", "cwd": "/"}, "environment": ""},
    "argv of numbers": program(argv=[1]),
    "empty argv": program(argv=[]),
    "nul in argv": program(argv=["echo", "a\0b"]),
    "nul in cwd": program(cwd="/\0"),
    "relative cwd": program(cwd="here"),
    "surrogate": b'{"spec": {"name": "\\ud800", "cwd": "/", "argv": ["true"]}, "environment": ""}',
    "negative gpus": program(resources={"gpus": -1}),
    "huge gpus": program(resources={"gpus": 10**30}),
    "negative limit": program(time_limit_s=-5),
    "negative grace": program(grace_s=-5),
    "negative retries": program(retries=-1),
    "bad signal": program(warn_signal=4000),
    "bad umask": program(umask=-1),
    "bad base64": {**program(), "environment": "%%%"},
    "bad tasks": {**program(), "tasks": [-1]},
    "same task twice": {**program(), "tasks": [1, 1]},
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_submits_are_refused(shared_queue: Queue, kind: str) -> None:
    """A request that does not fit is answered with a sentence (status 4xx), and the daemon serves on."""
    before = shared_queue.jobs()
    status, answer = shared_queue.api.exchange("POST", "/v1/jobs", MALFORMED[kind])
    assert 400 <= status < 500, answer
    assert answer["schema"] == 1
    assert answer["error"]["message"]
    assert shared_queue.jobs() == before


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/nothing", None),
        ("GET", "/", None),
        ("DELETE", "/v1/jobs", None),
        ("GET", "/v1/jobs/%2e%2e%2fetc", None),
        ("GET", "/v1/jobs?limit=x", None),
        ("GET", "/v1/jobs?states=NOPE", None),
        ("GET", "/v1/wait", None),
        ("GET", "/v1/wait?ids=1&timeout_s=nan", None),
        ("GET", "/v1/events?since=x", None),
        ("POST", "/v1/cancel", {"ids": "1"}),
        ("POST", "/v1/cancel", {"ids": [1]}),
        ("POST", "/v1/cancel", {}),
        ("POST", "/v1/signal", {"ids": ["1"], "signal": 99}),
        ("POST", "/v1/update", {"ids": ["1"], "changes": []}),
        ("POST", "/v1/nodes/nowhere/drain", {"reason": "x"}),
        ("POST", "/v1/jobs/batch", {"submits": []}),
        ("POST", "/v1/jobs/batch", {"submits": [7]}),
    ],
)
def test_malformed_requests_are_refused(shared_queue: Queue, method: str, path: str, body: object) -> None:
    """Odd paths, queries and bodies get an error object and a status 4xx."""
    status, answer = shared_queue.api.exchange(method, path, body)
    assert 400 <= status < 500, answer
    assert answer["error"]["message"]


def test_bytes_that_are_not_http(shared_queue: Queue) -> None:
    """Garbage, a slow sender and a body cut short do not disturb the others."""
    senders = []
    for data in (b"\0" * 4096, b"GET", b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"):
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with connect_address(str(shared_queue.api.path)) as address:
            sender.connect(address)
        sender.sendall(data)
        senders.append(sender)
    assert shared_queue.answers()
    for sender in senders:
        sender.close()
    assert shared_queue.answers()


def test_a_body_beyond_the_limit(shared_queue: Queue) -> None:
    """A body that says it has a gigabyte is refused before it is read."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sender:
        with connect_address(str(shared_queue.api.path)) as address:
            sender.connect(address)
        sender.settimeout(10)
        sender.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 1073741824\r\n\r\n")
        assert sender.recv(64).split()[1] in (b"400", b"413")
    assert shared_queue.answers()


def test_many_connections_at_once(shared_queue: Queue) -> None:
    """300 idle connections of one user: refused or kept, the daemon answers again when they go."""
    idle = []
    for _ in range(300):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        one.settimeout(5)
        with connect_address(str(shared_queue.api.path)) as address:
            one.connect(address)
        idle.append(one)
    for one in idle:
        one.close()
    eventually(shared_queue.answers, "the daemon answers")
