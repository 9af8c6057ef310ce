"""A private daemon in a temporary home, for `gpuq demo`. Imports errors, config, client; daemon lazily.

Owns: the home (gpuq.toml, a copy of the examples, everything the daemon writes) and its complete removal.

One thing to know: a daemon that dies on the way is started again over the same home, as a person would do it. Signals
are only noted, and looked at between two steps: nothing is interrupted in the middle, so everything can be cleaned up.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import gpuq
from gpuq.cli.client import Daemon
from gpuq.config import Paths
from gpuq.errors import DaemonUnreachable, GpuqError, InternalError

SIMULATED: Final = ("A100:4", "V100:4")
MOST_RESTARTS: Final = 20
CLEAN_WITHIN_S: Final = 15.0
_SETTINGS: Final = """\
[submit]
grace = "2s"

[planner]
min_gap = "0s"
default_runtime = "5s"
"""


class Interrupted(Exception):
    """The person pressed Ctrl-C, or a signal told the demo to end."""


class Stage:
    """The private daemon and its home; close() removes both."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._signals: list[int] = []
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, frame: self._signals.append(number))
        self.home = Path(tempfile.mkdtemp(prefix="gpuq-demo-"))
        self.work = self.home / "work"
        self.restarts = 0
        self.daemon = Daemon(Paths(str(self.home), str(self.home / "gpuq.toml"), True, str(self.home / "gpuq.sock")))
        self._say = say
        self._environment_before = dict(os.environ)
        self._was_started = False

    def open(self, simulated: bool) -> None:
        """Fill the home and start the daemon; raises GpuqError with its last words."""
        _make_home(self.home, self.work, simulated)
        _point_environment_at(self.daemon.paths, self.work)
        os.chdir(self.work)
        self.check_signals()
        self._was_started = True
        self._start()

    def _start(self) -> None:
        from gpuq.daemon.main import start_in_background

        start_in_background()

    def check_signals(self) -> None:
        """Raise Interrupted if a signal has come."""
        if self._signals:
            raise Interrupted

    def get(self, path: str, query: dict[str, Any] | None = None) -> Any:
        """The daemon's answer, from a new daemon if the old one has died."""
        return self._answered(lambda: self.daemon.get(path, query))

    def submit(self, words: list[str]) -> str:
        """What `gpuq submit WORDS` does; the id."""
        from gpuq.cli.commands.submit import COMMAND
        from gpuq.cli.reader import read_values
        from gpuq.cli.submission import submission

        values = read_values(COMMAND, words)
        if values is None:
            raise InternalError(f"The demo's own line is not understood: {' '.join(words)}")
        body = submission(values, COMMAND).body  # its key makes a repetition harmless
        return str(self._answered(lambda: self.daemon.post("/v1/jobs", body))["id"])

    def _answered(self, ask: Callable[[], Any]) -> Any:
        while True:
            self.check_signals()
            try:
                if self.daemon.answers():
                    return ask()
            except DaemonUnreachable:
                pass  # it died while it was asked: as if it had not answered at all
            if self.restarts >= MOST_RESTARTS:
                raise DaemonUnreachable(f"The demo's daemon died {self.restarts} times.", "Please report it.")
            self.restarts += 1
            self._say("the daemon is gone; starting it again over the same journal")
            self._start()

    def close(self) -> None:
        """End every job, the daemon and what belongs to them, then remove the home."""
        stop_at = time.monotonic() + CLEAN_WITHIN_S
        if self._was_started:
            self._end_jobs(stop_at)
        self._end_processes(stop_at)
        os.chdir("/")
        shutil.rmtree(self.home, ignore_errors=True)
        os.environ.clear()
        os.environ.update(self._environment_before)  # should gpuq itself fail, its log is not the demo's

    def _end_jobs(self, stop_at: float) -> None:
        """Through a daemon, since only it ends jobs in order, control groups included."""
        try:
            while not self.daemon.answers():
                if not any(_is_daemon(pid) for pid in processes_of(self.home)):
                    self._start()
                if time.monotonic() > stop_at:
                    return
                time.sleep(0.05)  # it is still starting
            waiting = [job["id"] for job in self.daemon.get("/v1/jobs")["jobs"]]
            if waiting:
                self.daemon.post("/v1/cancel", {"ids": waiting, "grace_s": 1.0})
                self.daemon.get("/v1/wait", {"ids": ",".join(waiting), "timeout_s": stop_at - time.monotonic()})
        except GpuqError:
            return  # what the daemon cannot end, _end_processes ends

    def _end_processes(self, stop_at: float) -> None:
        """Stop the daemon and wait until no process of this home is left; what is there too long is killed."""
        while left := processes_of(self.home):
            if time.monotonic() > stop_at:
                for pid in left:
                    _kill(pid)
            elif self.daemon.answers():
                try:
                    self.daemon.post("/v1/shutdown", {}, repeatable=False)
                except GpuqError:
                    pass  # it was ending already
            time.sleep(0.05)


def examples() -> Path:
    """Where the examples are: in an installed package, or beside it in a checkout."""
    package = Path(gpuq.__file__).resolve().parent
    for directory in (package / "examples", package.parent / "examples"):
        if (directory / "train_numpy.py").is_file():
            return directory
    raise GpuqError("This installation lacks the examples.", "Install gpuq again: pip install gpuq-scheduler")


def processes_of(home: Path) -> list[int]:
    """The pids of this user's processes whose environment names `home`: daemon, agents, shims and jobs."""
    mark = os.fsencode(home)
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            environment = Path("/proc", entry, "environ").read_bytes()
        except OSError:
            continue  # it has ended, or belongs to somebody else
        if mark in environment:
            found.append(int(entry))
    return found


def _is_daemon(pid: int) -> bool:
    try:
        return b"gpuq.daemon" in Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return False  # it has ended


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has ended by itself


def _make_home(home: Path, work: Path, simulated: bool) -> None:
    shutil.copytree(examples(), work, ignore=shutil.ignore_patterns("__pycache__"))
    cards = ", ".join(f'"{card}"' for card in SIMULATED)
    node = f"\n[node.local]\ngpus = [{cards}]\n" if simulated else ""
    (home / "gpuq.toml").write_text(_SETTINGS + node, "utf-8")


def _point_environment_at(paths: Paths, work: Path) -> None:
    """From here on this process, its daemon and the jobs know only the private home."""
    for name in [name for name in os.environ if name.startswith("GPUQ_")]:
        del os.environ[name]
    os.environ |= {
        "GPUQ_HOME": paths.home,
        "GPUQ_CONFIG": paths.config_file,
        "GPUQ_SOCKET": paths.socket,
        "PWD": str(work),
        # `python3` in the examples is the Python that runs gpuq, which may have numpy.
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]),
    }
