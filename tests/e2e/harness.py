"""A whole gpuq of its own for one test: daemon, agent, jobs, command line and a fast way to the socket.

Owns: starting, stopping, killing and cleaning up everything that belongs to one GPUQ_HOME. May import: the standard
library, gpuq.socketpath. Used by the end-to-end tests, the chaos tests and the benchmarks.

One thing to know: whatever a daemon starts inherits its GPUQ_HOME, and jobs submitted here are given it too, so
/proc/*/environ says which processes belong to a test. None of them may outlive it.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gpuq.socketpath import connect_address

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 30.0
FINAL = frozenset(
    ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED", "DEADLINE")
)
ACTIVE = frozenset(("CONFIGURING", "RUNNING", "COMPLETING"))

Json = dict[str, Any]
Found = TypeVar("Found")

# The daemon with some of its constants replaced, and with a wall clock that a file moves. `time.time` alone is
# replaced: the monotonic clock never jumps on a real machine either.
_PATCHED_DAEMON = """
import importlib, json, os, sys, time
of_agent = os.environ.pop("GPUQ_FAILPOINTS", None)
if os.environ["GPUQ_TEST_FAILPOINTS"]:
    os.environ["GPUQ_FAILPOINTS"] = os.environ["GPUQ_TEST_FAILPOINTS"]
importlib.import_module("gpuq.journal.failpoints")
os.environ.pop("GPUQ_FAILPOINTS", None)
if of_agent is not None:
    os.environ["GPUQ_FAILPOINTS"] = of_agent
for place, value in json.loads(os.environ["GPUQ_TEST_CONSTANTS"]).items():
    module, _, name = place.rpartition(".")
    setattr(importlib.import_module(module), name, value)
real, jump = time.time, os.environ["GPUQ_TEST_JUMP"]
def moved():
    try:
        with open(jump) as file:
            return real() + float(file.read() or 0)
    except FileNotFoundError:
        return real()
time.time = moved
from gpuq.daemon.__main__ import main
sys.exit(main())
"""


def eventually(look: Callable[[], Found], what: str | Callable[[], str], within_s: float = DEADLINE_S) -> Found:
    """Poll until `look` gives something true; fails with `what` after the deadline."""
    end = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {within_s:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.02)


def holds_for(look: Callable[[], object], what: str, for_s: float) -> None:
    """Fail with `what` as soon as `look` gives something false within `for_s`."""
    end = time.monotonic() + for_s
    while time.monotonic() < end:
        assert look(), what
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a pid is a process that is not a zombie."""
    return process_state(pid) not in ("", "Z", "X")


def process_state(pid: int) -> str:
    """The kernel's letter for a process (S, T, Z ...); empty when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text[text.rindex(")") + 2]


def command_line(pid: int) -> list[str]:
    """The words a process was started with; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
    except OSError:
        return []


def living_among(pids: Iterable[int]) -> str:
    """A line of bash that prints `alive` for each of the pids that is a process and no zombie."""
    listed = " ".join(map(str, pids))
    return f"for pid in {listed}; do grep -qs '^State:.[^ZX]' /proc/$pid/status && echo alive; done; true"


def pids_with(marker: str) -> list[int]:
    """Living processes with `marker` as a whole entry of their environment."""
    wanted = os.fsencode(marker)
    return [pid for pid in _all_pids() if wanted in _environment_of(pid) and is_alive(pid)]


def pids_running(words: str) -> list[int]:
    """Living processes whose command line contains `words`."""
    return [pid for pid in _all_pids() if words in " ".join(command_line(pid)) and is_alive(pid)]


def _all_pids() -> list[int]:
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]


def _environment_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


class Ran(NamedTuple):
    """One command line that has been run."""

    words: tuple[str, ...]
    code: int
    out: bytes
    err: bytes

    @property
    def text(self) -> str:
        """Standard output."""
        return self.out.decode("utf-8", "replace")

    @property
    def error(self) -> str:
        """Standard error."""
        return self.err.decode("utf-8", "replace")

    @property
    def document(self) -> Any:
        """Standard output as its one JSON document."""
        return json.loads(self.out)

    @property
    def id(self) -> str:
        """The job id at the end of `Submitted batch job 42`."""
        return self.text.split()[-1]


class ApiError(Exception):
    """The daemon refused; `error` is the object of docs/api.md."""

    def __init__(self, status: int, document: Json) -> None:
        self.status = status
        self.error: Json = document.get("error") or {}
        self.kind = str(self.error.get("kind"))
        self.message = str(self.error.get("message"))
        super().__init__(f"{status} {self.kind}: {self.message}")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("gpuq", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket file instead of a host."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        with connect_address(self._path) as address:
            self.sock.connect(address)


class Api:
    """The socket, without the command line. Each call uses a connection of its own, so threads may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def exchange(
        self, method: str, path: str, body: object = None, query: Mapping[str, object] | None = None,
        timeout_s: float = 60.0,
    ) -> tuple[int, Json]:  # fmt: skip
        """One request; the status and the answer. Raises OSError when nobody listens."""
        wanted = {name: value for name, value in (query or {}).items() if value is not None}
        target = path + ("?" + urllib.parse.urlencode(wanted) if wanted else "")
        content = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = _UnixConnection(str(self.path), timeout_s)
        try:
            connection.request(method, target, content, {"Content-Type": "application/json"})
            with connection.getresponse() as answer:
                return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def get(self, path: str, **query: object) -> Json:
        """A question; raises ApiError on a refusal."""
        return self._answer(*self.exchange("GET", path, query=query))

    def post(self, path: str, body: object = None) -> Json:
        """A request; raises ApiError on a refusal."""
        return self._answer(*self.exchange("POST", path, {} if body is None else body))

    @staticmethod
    def _answer(status: int, document: Json) -> Json:
        if status != 200 or "error" in document:
            raise ApiError(status, document)
        return document


class Queue:
    """One gpuq: its home, its settings, its daemon, and all that the daemon started.

    gpus: entries of `[node.local] gpus` (simulated GPUs); empty: the real (or mocked) driver is asked.
    settings: further text of gpuq.toml. environment: further variables of the daemon (and so of its agent).
    constants: dotted names of module constants to replace in the daemon, such as gpuq.daemon.connection.PAUSE_S.
    failpoints: the daemon's own failpoints (journal.*, daemon.*); those of the agent go into `environment`.
    """

    def __init__(
        self, directory: Path, gpus: Sequence[str] = ("A100:2",), settings: str = "",
        environment: Mapping[str, str] | None = None, constants: Mapping[str, object] | None = None,
        failpoints: str = "", home: Path | None = None,
    ) -> None:  # fmt: skip
        self.directory = directory
        self.work = directory / "w"
        self.work.mkdir(parents=True, exist_ok=True)
        self.home = home or directory / "h"
        self.config = directory / "gpuq.toml"
        self.jump = directory / "jump"
        self.settings = settings
        self.set_gpus(gpus)
        self.daemon_environment = dict(environment or {})
        self.constants = dict(constants or {})
        self.failpoints = failpoints
        self.api = Api(self.home / "gpuq.sock")
        self.process: subprocess.Popen[bytes] | None = None
        self.expects_survivors = False  # a test that ends with its daemon dead cannot end its jobs properly

    # --- settings ----------------------------------------------------------------------------------------

    def set_gpus(self, gpus: Sequence[str]) -> None:
        """Write gpuq.toml; takes effect at the next start."""
        node = f"[node.local]\ngpus = {json.dumps(list(gpus))}\n" if gpus else ""
        self.config.write_text(f"{node}{self.settings}")

    @property
    def environment(self) -> dict[str, str]:
        """What the command line and jobs get: little, and nothing of the machine's own gpuq."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.directory),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(ROOT),
            "GPUQ_HOME": str(self.home),
            "GPUQ_CONFIG": str(self.config),
        }

    # --- the daemon --------------------------------------------------------------------------------------

    def start(self, *options: str, environment: Mapping[str, str] | None = None) -> Queue:
        """Start a daemon and wait until its socket answers; fails with its last words when it ends instead."""
        self.launch(*options, environment=environment)
        eventually(lambda: self.answers() or not self.is_running(), "the daemon's socket answers")
        assert self.is_running(), f"the daemon ended while starting: {self.last_words()}"
        return self

    def launch(self, *options: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a daemon without waiting; its output is in `last_words`."""
        assert not self.is_running(), "this home's daemon is running already"
        variables = {**self.environment, **self.daemon_environment, **(environment or {})}
        variables["GPUQ_TEST_CONSTANTS"] = json.dumps(self.constants)
        variables["GPUQ_TEST_JUMP"] = str(self.jump)
        variables["GPUQ_TEST_FAILPOINTS"] = self.failpoints
        patched = bool(self.constants or self.failpoints) or self.jump.exists()
        program = ["-c", _PATCHED_DAEMON] if patched else ["-m", "gpuq.daemon"]
        with open(self.directory / "words", "ab") as words:
            self.process = subprocess.Popen(
                [sys.executable, *program, *options], stdin=subprocess.DEVNULL, stdout=words, stderr=words,
                env=variables, cwd="/", start_new_session=True,
            )  # fmt: skip
        return self.process

    def last_words(self) -> str:
        """What this home's daemons wrote to stdout and stderr."""
        path = self.directory / "words"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def is_running(self) -> bool:
        """Whether the daemon started here lives."""
        return self.process is not None and self.process.poll() is None

    def answers(self) -> bool:
        """Whether the socket answers a question."""
        try:
            return self.api.exchange("GET", "/v1/status", timeout_s=5.0)[0] == 200
        except (OSError, http.client.HTTPException, ValueError):
            return False

    @property
    def pid(self) -> int:
        """The daemon's process id."""
        assert self.process is not None
        return self.process.pid

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal to the daemon and wait for its end; its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def kill(self) -> None:
        """`kill -9` the daemon."""
        self.stop(signal.SIGKILL)

    def adopt(self) -> int:
        """Find the daemon that the command line started in the background, so that it is cleaned up; its pid."""
        return int(self.api.get("/v1/status")["pid"])

    def log(self) -> str:
        """The daemon's own log."""
        path = self.home / "daemon.log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    # --- processes ---------------------------------------------------------------------------------------

    def processes(self) -> list[int]:
        """Everything that lives of this home: daemon, agent, forker, sampler, shims, jobs."""
        return pids_with(f"GPUQ_HOME={self.home}")

    def agents(self) -> list[int]:
        """Pids of agents (one, when all is well)."""
        return self.serving("serve")

    def serving(self, verb: str) -> list[int]:
        """Pids of the agent's processes of one kind: serve, forker (its shims too) or sampler."""
        found = []
        for pid in self.processes():
            words = command_line(pid)
            if verb in words and any(word.endswith("agent/__main__.py") for word in words):
                found.append(pid)
        return found

    def agent(self) -> int:
        """Pid of the agent, once there is one."""
        return eventually(self.agents, "an agent runs")[0]

    def claim(self, attempt: str) -> Json:
        """What the shim of an attempt wrote when it took it; empty before and after."""
        try:
            claim: Json = json.loads((self.home / "spool" / attempt / "claim").read_text())
        except (OSError, ValueError):
            return {}
        return claim

    def shim(self, id_: str) -> int:
        """Pid of the shim that guards a job's attempt."""
        attempt = self.job(id_)["attempt"]
        return int(eventually(lambda: self.claim(attempt), f"job {id_} is claimed by a shim")["shim_pid"])

    def job_pids(self, id_: str) -> list[int]:
        """Living processes of a job's present attempt that kept the marker in their environment."""
        return pids_with(f"GPUQ_ATTEMPT_ID={self.job(id_)['attempt']}")

    # --- the command line --------------------------------------------------------------------------------

    def gpuq(
        self, *words: str, code: int | None = 0, environment: Mapping[str, str | None] | None = None,
        stdin: bytes = b"", cwd: Path | None = None, within_s: float = 60.0,
    ) -> Ran:  # fmt: skip
        """Run the command; checks the exit code unless `code` is None. A variable given as None is left out."""
        done = subprocess.run(
            [sys.executable, "-m", "gpuq", *words], input=stdin, capture_output=True, timeout=within_s,
            env=self.command_environment(environment), cwd=cwd or self.work,
        )  # fmt: skip
        ran = Ran(words, done.returncode, done.stdout, done.stderr)
        shown = [word[:80] for word in words]
        assert code is None or ran.code == code, f"gpuq {shown}: exit {ran.code}, not {code}\n{ran.text}\n{ran.error}"
        return ran

    def command_environment(self, changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
        """The environment of a command line with some variables changed (None: left out)."""
        merged = {**self.environment, **(changes or {})}
        return {name: value for name, value in merged.items() if value is not None}

    # --- jobs through the socket -------------------------------------------------------------------------

    def body(
        self, command: str | Sequence[str], *, gpus: int = 1, key: str | None = None, tasks: Sequence[int] = (),
        held: bool = False, environment: Mapping[str, str] | None = None, script: bytes | None = None,
        resources: Mapping[str, object] | None = None, **spec: object,
    ) -> Json:  # fmt: skip
        """A submit object: a text runs in bash, a list is run as it is."""
        argv = ["/bin/bash", "-c", command] if isinstance(command, str) else list(command)
        variables = {**self.environment, **(environment or {})}
        packed = b"\0".join(os.fsencode(f"{name}={value}") for name, value in variables.items())
        asked: Json = {
            "name": "test", "argv": argv, "cwd": str(self.work), "grace_s": 2.0,
            "resources": {"gpus": gpus, **(resources or {})},
        }  # fmt: skip
        if tasks:
            asked |= {"array_size": len(tasks), "array_min": min(tasks), "array_max": max(tasks)}
        return {
            "key": uuid.uuid4().hex if key is None else key,
            "spec": {**asked, **spec},
            "tasks": list(tasks),
            "held": held,
            "gpus_given": True,
            "environment": base64.b64encode(packed).decode(),
            "script": None if script is None else base64.b64encode(script).decode(),
        }

    def submit(self, command: str | Sequence[str], **fields: Any) -> str:
        """Submit a job through the socket (fields as in `body`); its id."""
        return str(self.api.post("/v1/jobs", self.body(command, **fields))["id"])

    def job(self, id_: str) -> Json:
        """The job in full."""
        found: Json = self.api.get(f"/v1/jobs/{id_}")["job"]
        return found

    def jobs(self, *ids: str) -> list[Json]:
        """All jobs, or those named, ended ones too."""
        found: list[Json] = self.api.get("/v1/jobs", all=1, ids=",".join(ids) or None)["jobs"]
        return found

    def reaches(self, id_: str, *states: str, within_s: float = DEADLINE_S) -> Json:
        """The job as soon as it is in one of the states; fails at once when it ends in another one."""
        end = time.monotonic() + within_s
        while True:
            job = self.job(id_)
            if job["state"] in states:
                return job
            dead = job["state"] in FINAL
            assert not dead, f"job {id_} ended {job['state']} ({job['message']}), wanted {states}"
            assert time.monotonic() < end, f"job {id_} is {job['state']} ({job['reason']}: {job['message']})"
            time.sleep(0.02)

    def ended(self, *ids: str, within_s: float = DEADLINE_S) -> Json:
        """The first of the jobs once all have ended, whatever way."""
        end = time.monotonic() + within_s
        while True:
            left_s = end - time.monotonic()
            answer = self.api.get("/v1/wait", ids=",".join(ids), timeout_s=max(0.0, min(10.0, left_s)))
            if answer["done"]:
                first: Json = answer["jobs"][0]
                return first
            open_ = [(job["id"], job["state"], job["reason"], job["message"]) for job in answer["jobs"]]
            assert left_s > 0, f"not ended within {within_s:g} s: {[each for each in open_ if each[1] not in FINAL]}"

    def output(self, id_: str) -> str:
        """What the job has written so far."""
        path = Path(self.job(id_)["stdout"])
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def lines(self, id_: str, count: int) -> list[str]:
        """The job's output once it has `count` complete lines."""

        def look() -> list[str]:
            found = self.output(id_).splitlines(keepends=True)
            complete = [line.rstrip("\n") for line in found if line.endswith("\n")]
            return complete if len(complete) >= count else []

        return eventually(look, lambda: f"{count} lines of job {id_}: {self.output(id_)!r} {self.job(id_)['state']}")

    def printed_pids(self, id_: str, count: int) -> list[int]:
        """The first `count` lines of the job's output, as pids."""
        return [int(line) for line in self.lines(id_, count)[:count]]

    def cancel(self, *ids: str, grace_s: float | None = None) -> Json:
        """Cancel through the socket."""
        return self.api.post("/v1/cancel", {"ids": list(ids), "grace_s": grace_s})

    # --- nodes and GPUs ----------------------------------------------------------------------------------

    def node(self) -> Json:
        """The one node; empty before its agent has said hello."""
        return next(iter(self.api.get("/v1/nodes")["nodes"]), {})

    def node_ready(self) -> Json:
        """The node once its agent answers."""
        return eventually(lambda: self.node() if self.node().get("reach") == "up" else {}, "the node is up")

    def gpus(self) -> list[Json]:
        """All GPUs, by index."""
        found: list[Json] = self.api.get("/v1/gpus")["gpus"]
        return found

    def gpu_becomes(self, index: int, *states: str, within_s: float = DEADLINE_S) -> Json:
        """The GPU once it is in one of the states."""

        def look() -> Json:
            found = [gpu for gpu in self.gpus() if gpu["index"] == index and gpu["parent"] is None]
            return found[0] if found and found[0]["state"] in states else {}

        shown = [(gpu["index"], gpu["state"], gpu["reason"]) for gpu in self.gpus()]
        return eventually(look, lambda: f"GPU {index} is {states}: {shown}", within_s)

    def simulate(self, **devices: object) -> None:
        """Steer simulated GPUs while they run: simulate(g0={"health": "lost"}), hang_s=5 (see agent/simulated.py)."""
        state = {name.removeprefix("g") if name[1:].isdigit() else name: value for name, value in devices.items()}
        path = self.home / "spool" / "simulated.json"
        fresh = path.with_name("simulated.json.new")
        fresh.write_text(json.dumps(state))
        fresh.rename(path)

    # --- the end -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """End jobs, daemon and all; fails when something lived on that should have ended by itself."""
        try:
            left = self._end_properly()
        finally:
            self._kill_leftovers()
            self._remove_control_groups()
        assert not left, f"processes lived on after the daemon: {left}"

    def _end_properly(self) -> list[str]:
        """Cancel what runs, stop the daemon, and name the processes that stayed."""
        if not self.is_running():
            return []
        os.kill(self.pid, signal.SIGCONT)
        for pid in self.processes():
            if process_state(pid) == "T":
                os.kill(pid, signal.SIGCONT)
        if not self.expects_survivors:
            self._cancel_all()
        try:
            code = self.stop()
        except subprocess.TimeoutExpired:
            return [f"daemon {self.pid} did not stop: {self.last_words()}"]
        if code != 0:
            return [f"daemon ended with exit code {code}: {self.last_words()}"]
        if self.expects_survivors:
            return []
        end = time.monotonic() + 10.0
        while (left := self.processes()) and time.monotonic() < end:
            time.sleep(0.02)
        return [f"{pid} ({process_state(pid)}) {' '.join(command_line(pid))[:200]}" for pid in left]

    def _cancel_all(self) -> None:
        try:
            living = [job["id"] for job in self.jobs() if job["state"] not in FINAL]
            if living:
                self.cancel(*living, grace_s=0.0)
                self.ended(*living)
        except (ApiError, AssertionError, OSError) as error:
            print(f"jobs of {self.home} could not be ended: {error}", file=sys.stderr)

    def _kill_leftovers(self) -> None:
        """By pid, until there are none: a killed shim's jobs may need a second look."""
        end = time.monotonic() + 10.0
        while (left := self.processes()) and time.monotonic() < end:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.02)
        if self.process is not None:
            self.process.wait(10.0)

    def _remove_control_groups(self) -> None:
        """Take away the empty control groups of this home's spool, whose name is in the node's description."""
        try:
            spool_id = (self.home / "spool" / "id").read_text().strip()
        except OSError:
            return
        for top in _mounted_groups(f"gpuq-{spool_id[:8]}"):
            for directory in sorted(top.rglob("*"), key=lambda path: len(path.parts), reverse=True):
                _remove_group(directory)
            _remove_group(top)


def _mounted_groups(name: str) -> Iterable[Path]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        if right.startswith(("cgroup ", "cgroup2 ")):
            found = Path(left.split()[4]) / name
            if found.is_dir():
                yield found


def _remove_group(directory: Path) -> None:
    if directory.is_dir():
        try:
            directory.rmdir()
        except OSError:
            pass  # something lives in it: the check for leftovers has named it
