"""Drives a real agent process through frames. Owns the agent's life in tests and waiting with a deadline."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Union

AGENT = Path(__file__).resolve().parents[2] / "gpuq" / "agent" / "__main__.py"
DEADLINE_S = 20.0
CGROUPS = Path("/sys/fs/cgroup")
Frame = dict[str, Any]


def eventually(look: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """Poll until `look` gives something true; fails with `what` after the deadline."""
    end = time.monotonic() + deadline_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s:g} s: {what}")
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a pid is a process that is not a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text[text.rindex(")") + 2] not in "ZX"


def locked(claim: Path) -> bool:
    """Whether a living shim holds a claim."""
    with claim.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class AgentDriver:
    """One agent process, its frames and its spool."""

    def __init__(
        self,
        spool: Path,
        python: str = sys.executable,
        environment: dict[str, str] | None = None,
        simulate: list[dict[str, Any]] | None = None,
        heartbeat_every_s: float = 0.3,
        program: Path = AGENT,
        greet: bool = True,
    ) -> None:
        self.spool = Path(spool)
        self.frames: list[Frame] = []
        self._rest = b""
        self._stderr_path = self.spool.parent / f"agent-{uuid.uuid4().hex}.stderr"
        with self._stderr_path.open("wb") as stderr:
            self.process = subprocess.Popen(
                [python, "-S", "-E", str(program), "serve"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **(environment or {})},
            )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        if greet:
            self.hello(simulate=[] if simulate is None else simulate, heartbeat_every_s=heartbeat_every_s)

    def hello(self, **fields: Any) -> None:
        """Send `hello` with sensible values for what is not given."""
        frame: Frame = {
            "type": "hello", "protocol": 1, "node": "here", "spool": str(self.spool), "simulate": [],
            "sample_every_s": 1.0, "heartbeat_every_s": 0.3, "foreign_memory_mib": 300,
        }  # fmt: skip
        self.send(**{**frame, **fields})

    def send(self, **frame: Any) -> None:
        """Send one frame."""
        self.send_bytes(json.dumps(frame).encode() + b"\n")

    def send_bytes(self, data: bytes) -> None:
        """Send raw bytes."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read(self, timeout_s: float = 0.0) -> None:
        """Take in what the agent has written."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], timeout_s)[0]:
            return
        data = os.read(self.process.stdout.fileno(), 1 << 20)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.frames += [json.loads(line) for line in lines]
        if not data:
            time.sleep(0.01)

    def wait_for(self, matches: Callable[[Frame], bool], what: str, deadline_s: float = DEADLINE_S) -> Frame:
        """The first frame, old or new, that matches."""
        end = time.monotonic() + deadline_s
        seen = 0
        while True:
            for frame in self.frames[seen:]:
                if matches(frame):
                    return frame
            seen = len(self.frames)
            if time.monotonic() > end:
                last = [frame for frame in self.frames if frame["type"] not in ("samples", "heartbeat")][-5:]
                raise AssertionError(f"no {what} within {deadline_s:g} s; last frames {last}; stderr {self.stderr()}")
            self.read(0.05)

    def ready(self) -> Frame:
        """The `ready` frame."""
        return self.wait_for(lambda frame: frame["type"] == "ready", "ready")

    def phase(self, attempt: str, *phases: str, deadline_s: float = DEADLINE_S) -> Frame:
        """The first report of an attempt in one of the phases."""
        return self.wait_for(
            lambda frame: frame["type"] == "attempt" and frame["attempt"] == attempt and frame["phase"] in phases,
            f"{'/'.join(phases)} of {attempt}",
            deadline_s,
        )

    def phase_at_start(self, attempt: str, phase: str) -> Frame:
        """What `ready` says of an attempt, if it is in that phase, else the first later report that is."""
        for frame in self.ready()["attempts"]:
            if frame["attempt"] == attempt and frame["phase"] == phase:
                found: Frame = frame
                return found
        return self.phase(attempt, phase)

    def last(self, attempt: str) -> Frame | None:
        """The newest report of an attempt."""
        self.read()
        found = [frame for frame in self.frames if frame["type"] == "attempt" and frame["attempt"] == attempt]
        return found[-1] if found else None

    def forget(self) -> None:
        """Drop the frames read so far, so that `phase` waits for new ones."""
        self.read()
        self.frames.clear()

    def spec(self, argv: Sequence[str], **fields: Any) -> dict[str, Any]:
        """A spec that runs `argv`; output goes to `<spool>/../logs/<new name>.log` unless given."""
        environment = fields.pop("environment", {"PATH": os.environ["PATH"]})
        script = fields.pop("script", None)
        logs = self.spool.parent / "logs"
        logs.mkdir(exist_ok=True)
        joined = b"\0".join(os.fsencode(f"{name}={value}") for name, value in environment.items())
        spec = {
            "job": "1", "name": "test", "argv": list(argv), "environment": base64.b64encode(joined).decode(),
            "script": None if script is None else base64.b64encode(script).decode(), "cwd": str(self.spool.parent),
            "stdout": str(logs / f"{uuid.uuid4().hex}.log"), "stderr": None, "open_mode": "append", "umask": 0o022,
            "time_limit_s": None, "grace_s": 1.0, "warn_signal": None, "warn_before_s": 0.0, "warn_all": False,
            "log_limit_bytes": None, "memory_limit_mib": None, "gpus": [], "visible": "uuid",
        }  # fmt: skip
        return {**spec, **fields}

    def start(self, argv: Union[str, Sequence[str]], attempt: str | None = None, **fields: Any) -> Run:
        """Start a program, or bash with a text; returns the handle of its attempt."""
        words = ["/bin/bash", "-c", argv] if isinstance(argv, str) else list(argv)
        spec = self.spec(words, **fields)
        run = Run(self, attempt or str(uuid.uuid4()), spec)
        self.send(type="start", attempt=run.attempt, spec=spec)
        return run

    def stderr(self) -> str:
        """What the agent wrote to stderr so far."""
        return self._stderr_path.read_text(errors="replace")

    def directory(self, attempt: str) -> Path:
        """An attempt's directory in the spool."""
        return self.spool / attempt

    def shim_pid(self, attempt: str) -> int:
        """Pid of the shim that claimed an attempt."""
        return int(json.loads((self.directory(attempt) / "claim").read_text())["shim_pid"])

    def kill(self) -> None:
        """`kill -9` the agent."""
        self.process.send_signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """End the agent by closing its input."""
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            try:
                stream.close()
            except OSError:
                pass  # unsent bytes for a dead agent
        self.process.wait(timeout=DEADLINE_S)

    def clean(self) -> None:
        """Kill the shims of attempts that still live, and have an agent see to what they leave."""
        for claim in self.spool.glob("*/claim"):
            if locked(claim):
                os.kill(json.loads(claim.read_text())["shim_pid"], signal.SIGKILL)
                sweeper = AgentDriver(self.spool)
                try:
                    sweeper.ready()
                    sweeper.send(type="scan")
                    sweeper.phase(claim.parent.name, "lost", "ended")  # it may have ended in this moment
                finally:
                    sweeper.close()
        if (self.spool / "id").exists():
            name = "gpuq-" + (self.spool / "id").read_text()[:8]
            for top in [*CGROUPS.glob(f"*/{name}"), *CGROUPS.glob(f"*/*/*/{name}")]:
                top.rmdir()


class Run:
    """One started attempt."""

    def __init__(self, agent: AgentDriver, attempt: str, spec: dict[str, Any]) -> None:
        self.agent = agent
        self.attempt = attempt
        self.spec = spec

    def running(self) -> Frame:
        """Wait for the claim."""
        return self.agent.phase(self.attempt, "running")

    def ended(self, deadline_s: float = DEADLINE_S) -> Frame:
        """Wait for the exit record."""
        return self.agent.phase(self.attempt, "ended", deadline_s=deadline_s)

    def stop(self, grace_s: float = 1.0, reason: str = "cancel") -> None:
        """Ask for the end."""
        self.agent.send(type="stop", attempt=self.attempt, reason=reason, grace_s=grace_s)

    def output(self) -> str:
        """The job's standard output so far."""
        path = Path(self.spec["stdout"])
        return path.read_text(errors="replace") if path.exists() else ""

    def pids(self, count: int) -> list[int]:
        """Wait for `count` lines of output and read them as pids."""

        def look() -> list[int]:
            lines = self.output().splitlines(keepends=True)
            complete = [int(line) for line in lines if line.endswith("\n") and line.strip().isdigit()]
            return complete if len(complete) >= count else []

        found: list[int] = eventually(look, f"{count} pids in the output {self.output()!r}")
        return found
