"""Shows a job's output, once or as it grows. Imports client, logfile, waiting, output.

One thing to know: the file is read here, as the person who asks, so no one sees a log that its permissions forbid.
While following, one long poll in a second thread tells when the job has ended.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from typing import Any, Final

from gpuq.cli import output
from gpuq.cli.client import Daemon, job_path
from gpuq.cli.logfile import TerminalText, copy, tail_offset
from gpuq.cli.waiting import exit_code, wait_for
from gpuq.errors import GpuqError, NotFound, UserError

_LOOK_EVERY_S: Final = 0.1
_ASK_EVERY_S: Final = 2.0


class Screen:
    """Where output goes: raw bytes to a pipe, made safe for a terminal."""

    def __init__(self) -> None:
        self._text = TerminalText() if output.on_terminal() else None

    def write(self, data: bytes, final: bool = False) -> None:
        """Show `data`."""
        if self._text is None:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        else:
            sys.stdout.write(self._text.shown(data, final))
            sys.stdout.flush()


def log_file(job: dict[str, Any], errors: bool = False, attempt: int | None = None) -> str:
    """The path of a job's output (or error output), of the present or of an earlier attempt."""
    path = job.get("stderr") if errors else job.get("stdout")
    if not path:
        what = "its error output is in its output" if errors else "it has no output file"
        raise NotFound(f"Job {job['id']}: {what}.", f"See: gpuq logs {job['id']}")
    if attempt is None:
        return str(path)
    directory, name = os.path.split(str(path))
    if not re.fullmatch(rf"{re.escape(str(job['id']))}(-restart-\d+)?\.log", name):
        raise UserError(
            f"Job {job['id']} names its own output file, so all attempts are in {path}.", "Leave --attempt out."
        )
    return os.path.join(directory, f"{job['id']}-restart-{attempt}.log" if attempt else f"{job['id']}.log")


def open_log(job: dict[str, Any], path: str) -> int:
    """A descriptor of the file; raises NotFound or UserError with the reason."""
    try:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        place = f" on {job['node']}" if job.get("node") else ""
        began = "has not started yet" if job["state"] == "PENDING" else f"left no output file{place}"
        hint = f"Follow it from its start with: gpuq logs -f {job['id']}" if job["state"] == "PENDING" else None
        raise NotFound(f"Job {job['id']} {began}: {path} does not exist.", hint) from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


class _Ending(threading.Thread):
    """Waits for the end of a job beside the reading."""

    def __init__(self, daemon: Daemon, identity: str) -> None:
        super().__init__(daemon=True)
        self._arguments = (daemon, [identity])
        self.jobs: list[dict[str, Any]] = []
        self.failure: GpuqError | None = None
        self.over = threading.Event()

    def run(self) -> None:
        try:
            self.jobs = wait_for(*self._arguments)
        except GpuqError as error:
            self.failure = error
        self.over.set()


def follow(daemon: Daemon, job: dict[str, Any], *, errors: bool = False, tail: int | None = None) -> int:
    """Show a job's output until it has ended; its exit code."""
    ending = _Ending(daemon, job["id"])
    ending.start()
    follower = _Follower(daemon, job, errors, tail)
    while not ending.over.wait(_LOOK_EVERY_S):
        follower.look()
    if ending.failure is not None:
        raise ending.failure
    follower.job = next((each for each in ending.jobs if each["id"] == job["id"]), job)
    follower.finish()
    return exit_code(ending.jobs)


class _Follower:
    """The growing output of one job, across its attempts."""

    def __init__(self, daemon: Daemon, job: dict[str, Any], errors: bool, tail: int | None) -> None:
        self.job = job
        self._daemon = daemon
        self._errors = errors
        self._tail = tail
        self._screen = Screen()
        self._path = ""
        self._descriptor: int | None = None
        self._offset = 0
        self._asked_at = time.monotonic()
        if job["state"] == "PENDING":
            output.note(f"job {job['id']} waits: {job.get('message') or job.get('reason') or 'no reason known'}")

    def look(self) -> None:
        """Show what is new."""
        if self._descriptor is None:
            self._open()
        before = self._offset
        self._copy()
        if self._offset == before and time.monotonic() - self._asked_at > _ASK_EVERY_S:
            self._asked_at = time.monotonic()
            self._refresh()

    def finish(self) -> None:
        """Show the rest after the end."""
        if self._descriptor is not None and log_file(self.job, self._errors) != self._path:
            self._copy()
            self._close()
        if self._descriptor is None:
            self._open()
        self._copy()
        self._screen.write(b"", final=True)
        self._close()

    def _open(self) -> None:
        path = log_file(self.job, self._errors)
        try:
            self._descriptor = open_log(self.job, path)
        except NotFound:
            return  # not there yet, or nothing was ever written
        self._path = path
        self._offset = 0 if self._tail is None else tail_offset(self._descriptor, self._tail)
        self._tail = None

    def _copy(self) -> None:
        if self._descriptor is None:
            return
        if os.fstat(self._descriptor).st_size < self._offset:
            self._offset = 0  # the job truncated its file
        self._offset = copy(self._descriptor, self._offset, self._screen.write, bool(self.job.get("log_dropped_bytes")))

    def _refresh(self) -> None:
        """Ask about the job: another attempt writes another file."""
        try:
            self.job = self._daemon.get(job_path(self.job["id"]))["job"]
        except GpuqError:
            return  # the thread that waits for the end says so if it lasts
        if self._descriptor is not None and log_file(self.job, self._errors) != self._path:
            self._copy()
            self._close()
            output.note(f"job {self.job['id']} runs again (attempt {self.job.get('attempt_number')})")

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
