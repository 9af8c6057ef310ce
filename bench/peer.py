"""task-spooler, measured beside gpuq where its `tsp` is installed. Imports processes.

One thing to know: each server has a socket and an output directory of its own, so a person's own queue is neither
seen nor touched.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from types import TracebackType

from bench.processes import DEADLINE_S, Timed, output_of, timed

MOST_JOBS = 900  # each waiting job keeps a connection open, of which the server takes about a thousand


def tsp_program() -> str | None:
    """Path of task-spooler's command, under either name; None when it is not there."""
    for name in ("tsp", "ts"):
        found = shutil.which(name)
        # Another program is called ts too: it adds time stamps to lines.
        if found and "TS_SOCKET" in output_of([found, "-h"], {"PATH": os.environ["PATH"]}, Path("/")):
            return found
    return None


class Spooler:
    """One task-spooler server of its own, started by its first command; use with `with`."""

    def __init__(self, program: str, directory: Path, slots: int) -> None:
        self.program = program
        self.directory = directory
        directory.mkdir(parents=True)
        self.environment = {
            "PATH": os.environ["PATH"],
            "TMPDIR": str(directory),
            "TS_SOCKET": str(directory / "socket"),
            "TS_SLOTS": str(slots),
            "TS_MAXFINISHED": "5000",
        }

    def __enter__(self) -> Spooler:
        self.say("-l")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.say("-K")

    def say(self, *words: str) -> str:
        """Run a command; what it prints."""
        return output_of([self.program, *words], self.environment, self.directory)

    def block(self, count: int, gate: Path) -> None:
        """Queue jobs that run until there is a file `gate`, or until the directory is gone, also after an error."""
        line = f"until [ -e {gate} ] || [ ! -d {self.directory} ]; do sleep 0.05; done"
        for _ in range(count):
            self.say("-n", "sh", "-c", line)

    def timed(self, *words: str) -> Timed:
        """Run a command; what it costs."""
        return timed([self.program, *words], self.environment, self.directory)

    def server(self) -> int:
        """Pid of the server."""
        wanted = os.fsencode(f"TS_SOCKET={self.environment['TS_SOCKET']}")
        for name in os.listdir("/proc"):
            try:
                if name.isdigit() and wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                    if words[0].endswith(self.program.encode()) and int(name) != os.getpid():
                        return int(name)
            except OSError:
                continue  # gone meanwhile, or another user's
        raise RuntimeError("task-spooler's server is not there")

    def states(self) -> dict[str, int]:
        """Number of jobs by state."""
        counts: dict[str, int] = {}
        for line in self.say("-l").splitlines()[1:]:
            state = line.split()[1]
            counts[state] = counts.get(state, 0) + 1
        return counts

    def wait_until(self, state: str, count: int) -> None:
        """Return when so many jobs are in a state; raises TimeoutError."""
        end_s = time.monotonic() + DEADLINE_S
        while self.states().get(state, 0) < count:
            if time.monotonic() > end_s:
                raise TimeoutError(f"task-spooler has {self.states()}, not {count} {state}")
            time.sleep(0.02)
