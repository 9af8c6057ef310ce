"""The daemon's log: one JSON object a line, rotated, private, and without what belongs to jobs."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from gpuq.daemon import log as log_module
from gpuq.daemon import loop as loop_module
from gpuq.daemon.log import open_log
from gpuq.journal.problems import JournalFull
from tests.daemon.stage import Stage, base64_of, played, submit_body
from tests.fakes import FakeAgent, until


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Where the log goes; logging is as before after the test."""
    root, gpuq = logging.getLogger(), logging.getLogger("gpuq")
    before = (root.handlers[:], root.level, gpuq.level)
    yield tmp_path / "daemon.log"
    for each in root.handlers:
        if each not in before[0]:
            each.close()
    root.handlers, root.level, gpuq.level = before
    logging.getLogger("gpuq").manager._clear_cache()  # type: ignore[attr-defined]


def lines_of(path: Path) -> list[dict[str, str]]:
    """Every line of a log, parsed."""
    return [json.loads(line) for line in path.read_text("ascii").splitlines()]


def test_a_line_is_one_json_object(path: Path) -> None:
    """Time with offset, level, logger and message; nothing that a name contains can forge a second line."""
    open_log(path, "info", to_terminal=False)
    logging.getLogger("gpuq.test").warning("node %s: %s", 'a"b', "two\nlines\r\x1b[2J \u2028 \udcff")
    (line,) = lines_of(path)
    assert line["level"] == "warning"
    assert line["logger"] == "gpuq.test"
    assert line["message"] == 'node a"b: two\nlines\r\x1b[2J \u2028 \udcff'
    assert datetime.fromisoformat(line["at"]).tzinfo is not None


def test_a_traceback_is_in_its_line(path: Path) -> None:
    """An exception is logged with its traceback, in the same line."""
    open_log(path, "info", to_terminal=False)
    try:
        raise ZeroDivisionError("a fault")
    except ZeroDivisionError:
        logging.getLogger("gpuq.test").exception("it failed")
    (line,) = lines_of(path)
    assert "ZeroDivisionError: a fault" in line["traceback"]


@pytest.mark.parametrize(("level", "words"), [("error", "c"), ("warning", "bc"), ("info", "abc"), ("debug", "0abc")])
def test_levels(path: Path, level: str, words: str) -> None:
    """The level in the settings holds for gpuq; of other libraries only warnings are kept."""
    open_log(path, level, to_terminal=False)
    own, other = logging.getLogger("gpuq.test"), logging.getLogger("some.library")
    other.info("not ours")
    for write, word in ((own.debug, "0"), (own.info, "a"), (own.warning, "b"), (own.error, "c")):
        write(word)
    assert [line["message"] for line in lines_of(path)] == list(words)


def test_rotation(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log beyond its size is put aside, at most three old ones stay, and no line is torn."""
    monkeypatch.setattr(log_module, "MAX_BYTES", 2000)
    open_log(path, "info", to_terminal=False)
    for number in range(200):
        logging.getLogger("gpuq.test").info("line %d %s", number, "x" * 50)
    files = sorted(each.name for each in path.parent.iterdir())
    assert files == ["daemon.log", "daemon.log.1", "daemon.log.2", "daemon.log.3"]
    for name in files:
        assert (path.parent / name).stat().st_size <= 2000
        lines_of(path.parent / name)
    assert lines_of(path)[-1]["message"].startswith("line 199 ")


def test_the_log_is_made_when_first_written(path: Path) -> None:
    """Opening the log makes no file, and the first line makes it with the rights that the umask leaves."""
    before = os.umask(0o077)
    try:
        open_log(path, "info", to_terminal=False)
        assert not path.exists()
        logging.getLogger("gpuq.test").info("first")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600


def test_in_the_foreground_people_read_along(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a terminal the same lines also go to stderr, in words; the file stays JSON."""
    open_log(path, "info", to_terminal=True)
    logging.getLogger("gpuq.test").info("serving")
    assert capsys.readouterr().err.endswith(" INFO serving\n")
    assert lines_of(path)[0]["message"] == "serving"


SECRET = "s3cr3t-of-anna"


@played
async def test_the_log_has_no_environment_and_no_command(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever happens to a job (runs, fails, is refused, hits a fault or a full disk), its secrets are not logged."""
    monkeypatch.setattr(loop_module, "RETRY_S", 0.01)
    open_log(path, "debug", to_terminal=False)
    logging.getLogger().setLevel(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    environment = f"PATH=/bin\0TOKEN={SECRET}".encode()
    argv = ["train", f"--token={SECRET}"]
    async with Stage(tmp_path, agent=FakeAgent()) as stage:
        id_ = (await stage.post("/v1/jobs", submit_body(environment=environment, argv=argv)))["id"]
        await stage.reaches(id_, "RUNNING")
        await stage.end_job(id_, 1)
        script = submit_body(environment=environment, argv=argv) | {"script": base64_of(f"echo {SECRET}".encode())}
        await stage.post("/v1/jobs", script)
        await stage.refusal("POST", "/v1/jobs", submit_body({"gpus": 99}, environment=environment, argv=argv))
        await stage.refusal("POST", "/v1/jobs", submit_body(environment=environment, argv=[SECRET, 7]))
        await stage.refusal("POST", "/v1/jobs", b'{"spec": {"argv": ["' + SECRET.encode() + b'"')
        with monkeypatch.context() as patch:
            patch.setattr(loop_module, "step", lambda state, request, now: 1 / 0)
            await stage.refusal("POST", "/v1/jobs", submit_body(environment=environment, argv=argv))
        stage.store.failing = JournalFull("The disk is full.")
        await stage.refusal("POST", "/v1/jobs", submit_body(environment=environment, argv=argv))
        stage.store.failing = None
        await until(lambda: stage.loop.degraded is None, "the loop has recovered")
        stage.agent.links[-1].break_off()
        await until(lambda: len(stage.agent.links) == 2, "another agent is started")
    text = path.read_text()
    assert "ZeroDivisionError" in text
    assert "The disk is full." in text
    assert "is ready" in text
    assert SECRET not in text
    assert base64_of(environment)[8:24] not in text
