"""A home of its own for each test of the command line, and a fake daemon at its socket."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cli_cases import NOW
from fake_daemon import FakeDaemon

from gpuq.cli import app, output


class Ran(NamedTuple):
    """What one command line did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as the one JSON document it must be."""
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty GPUQ_HOME, no settings, UTC, and none of the person's variables."""
    for name in list(os.environ):
        if name.startswith("GPUQ_") or name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
            monkeypatch.delenv(name)
    place = tmp_path / "home"
    place.mkdir(mode=0o700)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("PWD", str(work))
    monkeypatch.setenv("GPUQ_HOME", str(place))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    return place


@pytest.fixture
def fake(home: Path) -> Iterator[FakeDaemon]:
    """A fake daemon at the socket of the home."""
    daemon = FakeDaemon(str(home / "gpuq.sock"))
    daemon.answer("POST", "/v1/jobs", {"id": "42", "tasks": 0, "state": "PENDING", "notes": [], "existing": False})
    yield daemon
    daemon.close()


@pytest.fixture
def gpuq(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line in this process."""

    def run(*arguments: str) -> Ran:
        code = app.main(list(arguments))
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make standard output look like a terminal of 100 columns without colour, at a fixed moment."""
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the wall clock at NOW, and be anna."""
    monkeypatch.setattr(time, "time", lambda: NOW)
    monkeypatch.setattr("gpuq.cli.selectors.own_name", lambda: "anna")
    monkeypatch.setattr("gpuq.cli.commands.status.own_name", lambda: "anna")
    monkeypatch.setattr("gpuq.cli.commands.history.own_name", lambda: "anna")
