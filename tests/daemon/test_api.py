"""The socket: who may call, what is refused unread, one table of routes, and that nothing listens anywhere else."""

from __future__ import annotations

import asyncio
import grp
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gpuq
from gpuq.core import decide
from gpuq.core.model import JobId, User
from gpuq.core.requests import Cancel
from gpuq.daemon import api as api_module
from gpuq.daemon import loop as loop_module
from gpuq.daemon.api import ROUTES, Callers, bind_socket, find_route
from gpuq.daemon.queries import status
from gpuq.errors import NotFound
from gpuq.journal.problems import JournalFull
from tests.daemon.stage import Json, Stage, played, submit_body
from tests.fakes import until
from tests.requirements import need

API_TEXT = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
STRANGER = 54321


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop does not wait for clients whose bodies were refused unread."""
    monkeypatch.setattr(api_module, "STOP_WITHIN_S", 0.05)


async def raw(stage: Stage, data: bytes, end: bool = False) -> bytes:
    """What the daemon answers to these bytes, read until it closes or stops speaking."""
    reader, writer = await asyncio.open_unix_connection(str(stage.socket))
    try:
        writer.write(data)
        await writer.drain()
        if end:
            writer.write_eof()
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5.0)
        length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])  # type: ignore[index]
        return head + await asyncio.wait_for(reader.readexactly(length), 5.0)
    finally:
        writer.close()


def post(path: str, headers: str, body: bytes = b"") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: gpuq\r\n{headers}\r\n\r\n".encode() + body


# --- routes ---------------------------------------------------------------------------------------------


def documented_routes() -> set[tuple[str, str]]:
    """(method, path) of every row of the table in docs/api.md."""
    found: set[tuple[str, str]] = set()
    for line in API_TEXT.splitlines():
        row = re.match(r"\| (GET|POST) (`[^|]+`) \|", line)
        if row:
            found |= {(row[1], path) for path in re.findall(r"`([^`]+)`", row[2])}
    return found


def test_the_table_of_routes_is_the_documents() -> None:
    """docs/api.md names every route there is, and none that there is not."""
    served = {(method, path.replace("{id}", "ID").replace("{name}", "NAME")) for method, path, _ in ROUTES}
    assert len(served) == len(ROUTES)
    assert documented_routes() == served


def test_routes_are_found() -> None:
    """Fixed paths win over patterns, values of a path are cut out, anything else is not found."""
    assert find_route("GET", "/v1/status") == (status, {})
    assert find_route("GET", "/v1/jobs/42_3/why")[1] == {"id": "42_3"}
    assert find_route("POST", "/v1/nodes/mill/drain")[1] == {"name": "mill"}
    for method, path in (("PUT", "/v1/status"), ("GET", "/v1/cancel"), ("GET", "/v1/jobs/"), ("GET", "/v1/jobs/a/b"),
                         ("GET", "/v2/status"), ("GET", "/"), ("POST", "/v1/nodes//drain")):  # fmt: skip
        with pytest.raises(NotFound, match="There is no"):
            find_route(method, path)


def documented_fields(heading: str) -> set[str]:
    """The field names of one object of docs/api.md."""
    paragraph = API_TEXT.partition(f"\n{heading}: ")[2].partition("\n\n")[0].partition("The full form")[0]
    without_notes = re.sub(r"\([^()]*\)", "", paragraph).partition(". The list form")[0]
    return set(re.findall(r"`([a-z_]+)`", without_notes))


@played
async def test_objects_have_the_documented_fields(tmp_path: Path) -> None:
    """Every field that docs/api.md gives a job, a `why`, a node, a GPU or the status is in the answer."""
    async with Stage(tmp_path) as stage:
        running = await stage.run_job({"gpus": 2})
        waiting = await stage.submit()
        job = (await stage.get(f"/v1/jobs/{running}"))["job"]
        assert documented_fields("Job object") <= set(job)
        why = (await stage.get(f"/v1/jobs/{waiting}/why"))["why"]
        assert documented_fields("`why` object") <= set(why)
        node = (await stage.get("/v1/nodes"))["nodes"][0]
        assert documented_fields("Node object") <= set(node)
        gpu = (await stage.get("/v1/gpus"))["gpus"][0]
        assert documented_fields("GPU object") <= set(gpu)
        answer = await stage.get("/v1/status")
        row = next(line for line in API_TEXT.splitlines() if line.startswith("| GET `/v1/status`"))
        assert set(re.findall(r"`([a-z_]+)`", row)) <= set(answer)


@played
async def test_status_says_who_serves(tmp_path: Path) -> None:
    """`version`, `pid`, `socket` and `home` are those of this daemon."""
    async with Stage(tmp_path) as stage:
        answer = await stage.get("/v1/status")
        assert answer["version"] == gpuq.__version__
        assert answer["pid"] == os.getpid()
        assert answer["socket"] == str(stage.socket)
        assert answer["home"] == str(tmp_path)
        assert answer["degraded"] is None
        assert answer["schema"] == 1


# --- who calls ------------------------------------------------------------------------------------------

_AS_SOMEBODY = """
import os, socket, sys
os.chdir(sys.argv[1])
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
connection = socket.socket(socket.AF_UNIX)
connection.connect("gpuq.sock")
body = b'{"uid": 0, "by": {"uid": 0}}'
head = "POST /v1/shutdown HTTP/1.0", "Host: gpuq", "X-User: root", f"Content-Length: {len(body)}", "", ""
connection.sendall("\\r\\n".join(head).encode() + body)
answer = b""
while piece := connection.recv(65536):
    answer += piece
sys.stdout.buffer.write(answer)
"""


async def ask_as(stage: Stage, uid: int, directory: Path) -> Json:
    """The answer to a shutdown asked by another user."""
    directory.chmod(0o755)
    stage.socket.chmod(0o666)  # so that only the daemon's own check is in the way
    words = (sys.executable, "-c", _AS_SOMEBODY, str(directory), str(uid))
    process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    answer: Json = json.loads(out.partition(b"\r\n\r\n")[2])
    return answer


@played
async def test_another_user_is_refused(tmp_path: Path) -> None:
    """Whoever the kernel says is somebody else gets nothing, whatever the message claims."""
    need(os.getuid() == 0, "only root can become somebody else")
    async with Stage(tmp_path) as stage:
        error = (await ask_as(stage, STRANGER, tmp_path))["error"]
        assert (error["kind"], error["exit_code"]) == ("forbidden", 1)
        assert error["message"].startswith("This daemon serves user root only")
        assert not stage.desk.stopping.is_set()


@played
async def test_an_administrator_may_call_but_not_stop_the_daemon(tmp_path: Path) -> None:
    """A user whom the settings name may ask; the daemon itself is stopped by its own user or root alone."""
    need(os.getuid() == 0, "only root can become somebody else")
    async with Stage(tmp_path, admins=(f"uid-{STRANGER}",)) as stage:
        error = (await ask_as(stage, STRANGER, tmp_path))["error"]
        assert (error["kind"], error["message"]) == ("forbidden", "Only the daemon's own user may stop it.")


def pair_of_this_process() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


@pytest.mark.parametrize(
    ("admins", "own_uid", "is_admin"),
    [
        ((), os.getuid(), True),
        ((), STRANGER, os.getuid() == 0),
        (("@no-such-group", "nobody-here"), STRANGER, os.getuid() == 0),
    ],
)
def test_callers(admins: tuple[str, ...], own_uid: int, is_admin: bool) -> None:
    """The daemon's own user and root are administrators; unknown names and groups make nobody one."""
    one, other = pair_of_this_process()
    with one, other:
        caller = Callers(admins, own_uid).of(one)
    assert caller.uid == os.getuid()
    assert caller.is_admin is is_admin


def test_administrators_by_name_and_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """`admins` takes user names and @groups."""

    class Group:
        gr_mem = ("lena",)

    monkeypatch.setattr(grp, "getgrnam", lambda name: Group() if name == "gpu" else 1 / 0)
    callers = Callers(("tom", "@gpu"), 1)
    assert [callers._is_admin(name, 2000) for name in ("tom", "lena", "anna")] == [True, True, False]


@played
async def test_jobs_belong_to_the_caller(tmp_path: Path) -> None:
    """The owner of a job is who connected, by uid and name."""
    async with Stage(tmp_path) as stage:
        id_ = await stage.submit()
        assert stage.job(id_).owner.uid == os.getuid()
        assert (await stage.get(f"/v1/jobs/{id_}"))["job"]["uid"] == os.getuid()


# --- limits ---------------------------------------------------------------------------------------------


@played
async def test_a_large_body_is_refused_unread(tmp_path: Path) -> None:
    """By its Content-Length alone, before a byte of it has come."""
    async with Stage(tmp_path) as stage:
        size = api_module.MAX_BODY_BYTES + 1
        answer = await raw(stage, post("/v1/jobs", f"Content-Length: {size}"))
        assert answer.startswith(b"HTTP/1.1 400")
        assert f"The request has {size} bytes; at most {64 * 2**20} are accepted.".encode() in answer


@played
async def test_a_large_body_without_its_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks, reading stops at the limit."""
    monkeypatch.setattr(api_module, "MAX_BODY_BYTES", 1000)
    async with Stage(tmp_path) as stage:
        chunks = b"200\r\n" + b"x" * 512 + b"\r\n"
        answer = await raw(stage, post("/v1/jobs", "Transfer-Encoding: chunked", chunks * 3))
        assert b"more than 1000 bytes" in answer


@played
async def test_a_body_of_the_largest_size_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly the limit is not above it."""
    monkeypatch.setattr(api_module, "MAX_BODY_BYTES", 3000)
    async with Stage(tmp_path) as stage:
        body = submit_body()
        body["padding"] = "x" * (3000 - len(json.dumps(body)) - len(', "padding": ""'))
        assert len(json.dumps(body)) == 3000
        await stage.post("/v1/jobs", body)


@played
async def test_a_slow_sender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that does not arrive in time is refused, and others are served meanwhile."""
    monkeypatch.setattr(api_module, "BODY_WITHIN_S", 0.1)
    async with Stage(tmp_path) as stage:
        slow = asyncio.create_task(raw(stage, post("/v1/jobs", "Content-Length: 100", b'{"spec": ')))
        await stage.submit()
        assert b"did not arrive within" in await slow


@pytest.mark.parametrize(
    ("body", "words"),
    [(b"{nonsense", "is not JSON"), (b"[]", "must be a JSON object"), (b"7", "must be a JSON object"),
     (b"null", "must be a JSON object"), (b"\xff\xfe", "is not JSON"), (b'{"a": NaN}', "is not JSON"),
     (b'{"a": "\\ud800"}', "is not JSON"), (b"[" * 100_000, "is not JSON")],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
@played
async def test_bodies_that_are_no_objects(tmp_path: Path, body: bytes, words: str) -> None:
    """What is not a JSON object is refused with one sentence."""
    async with Stage(tmp_path, no_node=True) as stage:
        refusal = await stage.refusal("POST", "/v1/jobs", body)
        assert (refusal.status, refusal.kind) == (400, "usage")
        assert words in refusal.message
        assert "\n" not in refusal.message


@played
async def test_the_caller_is_checked_before_the_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's body is not read, nor is its size even looked at."""
    stranger = User(name="tom", uid=STRANGER, is_admin=False)
    monkeypatch.setattr(Callers, "of", lambda self, connection: stranger)
    async with Stage(tmp_path, no_node=True) as stage:
        answer = await raw(stage, post("/v1/jobs", f"Content-Length: {2**40}"))
        assert answer.startswith(b"HTTP/1.1 403")


# --- errors ---------------------------------------------------------------------------------------------


@played
async def test_an_unknown_path_is_an_error_object(tmp_path: Path) -> None:
    """Every error has kind, message, hint and exit code, and the schema's number."""
    async with Stage(tmp_path, no_node=True) as stage:
        status_code, document = await stage.exchange("GET", "/v1/nothing")
        assert status_code == 404
        assert set(document) == {"schema", "error"}
        assert set(document["error"]) == {"kind", "message", "hint", "exit_code"}


@played
async def test_a_fault_is_hidden_but_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of gpuq reaches the caller as one sentence that names the log, and the log with its traceback."""
    real = decide.step

    def step(state: Any, request: Any, now: Any) -> Any:
        if isinstance(request, Cancel):
            raise ZeroDivisionError("a fault")
        return real(state, request, now)

    monkeypatch.setattr(loop_module, "step", step)
    async with Stage(tmp_path) as stage:
        await stage.submit()
        refusal = await stage.refusal("POST", "/v1/cancel", {"ids": ["1"]})
        assert (refusal.status, refusal.kind) == (500, "internal")
        assert "a fault" not in refusal.message
        assert refusal.hint == f"Details: {stage.desk.log_path}"
        assert any(record.exc_info and "POST /v1/cancel" in record.getMessage() for record in caplog.records)
        await stage.submit()


@played
async def test_while_degraded_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk is full, submits are refused with the reason, questions are answered, and `status` says so."""
    monkeypatch.setattr(loop_module, "RETRY_S", 0.01)
    async with Stage(tmp_path) as stage:
        id_ = await stage.submit()
        stage.store.failing = JournalFull("The disk is full.", "Free some space.")
        refusal = await stage.refusal("POST", "/v1/jobs", submit_body())
        assert (refusal.kind, refusal.message) == ("refused", "Nothing was changed: The disk is full.")
        assert refusal.hint == "Free some space."
        assert (await stage.get("/v1/status"))["degraded"] == "The disk is full."
        assert [job["id"] for job in (await stage.get("/v1/jobs"))["jobs"]] == [id_]
        stage.store.failing = None
        await until(lambda: stage.loop.degraded is None, "the daemon has recovered")
        assert (await stage.get("/v1/status"))["degraded"] is None
        await stage.submit()


@played
async def test_a_nearly_full_disk_takes_no_new_work(tmp_path: Path) -> None:
    """With the reserve spent, submits are refused before anything is written; a cancel still works."""
    async with Stage(tmp_path) as stage:
        id_ = await stage.run_job()
        stage.store.low_space = True
        for path, body in (("/v1/jobs", submit_body()), ("/v1/jobs/batch", {"submits": [submit_body()]})):
            refusal = await stage.refusal("POST", path, body)
            assert (refusal.status, refusal.kind) == (409, "refused")
            assert "nearly full" in refusal.message
        await stage.post("/v1/cancel", {"ids": [id_]})
        await stage.reaches(id_, "CANCELLED")


# --- the socket itself ----------------------------------------------------------------------------------


def listening_inodes() -> set[str]:
    """Inodes of every TCP and UDP socket that this machine's kernel lists."""
    found: set[str] = set()
    for name in ("tcp", "tcp6", "udp", "udp6"):
        path = Path("/proc/net") / name
        if path.exists():
            found |= {line.split()[9] for line in path.read_text().splitlines()[1:]}
    return found


def own_inodes() -> set[str]:
    """Inodes of the sockets that this process holds."""
    found: set[str] = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found


def own_network_sockets() -> set[str]:
    return own_inodes() & listening_inodes()


def abstract_names() -> set[str]:
    lines = Path("/proc/net/unix").read_text().splitlines()[1:]
    return {line.split()[7] for line in lines if len(line.split()) > 7 and line.split()[7].startswith("@")}


@played
async def test_nothing_listens_but_the_socket(tmp_path: Path) -> None:
    """A serving daemon has no TCP or UDP socket and no abstract one; the check itself sees one that is made."""
    before, abstract = own_network_sockets(), abstract_names()
    async with Stage(tmp_path) as stage:
        await stage.run_job()
        assert own_network_sockets() == before
        assert {name for name in abstract_names() - abstract if "gpuq" in name} == set()
        with socket.socket(socket.AF_INET) as probe:
            probe.bind(("127.0.0.1", 0))
            probe.listen(1)
            assert len(own_network_sockets()) == len(before) + 1


def test_the_socket_is_private_from_birth(tmp_path: Path) -> None:
    """Whatever the umask, the socket has mode 0600; the umask is as before, and a stale file is replaced."""
    path = tmp_path / "gpuq.sock"
    path.write_text("stale")
    before = os.umask(0)
    try:
        with bind_socket(path, str(path)):
            assert path.is_socket()
            assert path.stat().st_mode & 0o777 == 0o600
        assert os.umask(0) == 0
    finally:
        os.umask(before)


def test_a_socket_that_cannot_be_bound(tmp_path: Path) -> None:
    """A failed bind leaves the umask as it was, and no descriptor behind."""
    before = os.umask(0o022)
    try:
        sockets = own_inodes()
        with pytest.raises(OSError, match="No such file"):
            bind_socket(tmp_path / "gpuq.sock", str(tmp_path / "missing" / "gpuq.sock"))
        assert os.umask(0o022) == 0o022
        assert own_inodes() == sockets
    finally:
        os.umask(before)


@played
async def test_keep_alive_and_many_at_once(tmp_path: Path) -> None:
    """A hundred requests at once over one client are all answered, durable submits among them in few commits."""
    async with Stage(tmp_path) as stage:
        await stage.submit()
        commits = len(stage.store.commits)
        ids = await asyncio.gather(*[stage.submit({"gpus": 0}, begin_at=2e9) for _ in range(100)])
        assert sorted(map(int, ids)) == list(range(2, 102))
        assert len(stage.store.commits) - commits < 100
        assert JobId("101") in stage.loop.state.jobs


@played
async def test_a_stop_does_not_wait_for_those_who_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a stop a long poll is answered at once, so that its client asks the next daemon; nothing is cut off."""
    monkeypatch.setattr(api_module, "STOP_WITHIN_S", 20.0)
    async with Stage(tmp_path) as stage:
        id_ = await stage.submit({"gpus": 0}, begin_at=2e9)
        asked: list[float] = []
        real = stage.loop.changed

        async def changed(timeout_s: float) -> bool:
            asked.append(timeout_s)
            return await real(timeout_s)

        monkeypatch.setattr(stage.loop, "changed", changed)
        waiting = asyncio.create_task(stage.get("/v1/wait", ids=id_, timeout_s=30))
        await until(lambda: asked, "the poll waits")
        await stage.post("/v1/shutdown")
        await asyncio.wait_for(stage.desk.stopping.wait(), 5.0)
        await asyncio.wait_for(stage.stop(), 10.0)
        assert (await waiting)["done"] is False
