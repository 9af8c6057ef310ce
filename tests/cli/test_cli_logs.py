"""gpuq logs, attach and run: bytes, tails, holes, following."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_cases import ended, job, waiting
from fake_daemon import Asked, FakeDaemon
from hypothesis import given
from hypothesis import strategies as st

from gpuq.cli import app, output
from gpuq.cli.logfile import TerminalText, pieces, tail_offset

_DEADLINE_S = 20.0


@pytest.fixture
def log(tmp_path: Path, fake: FakeDaemon) -> Path:
    """The output file of job 5, which has ended with 0."""
    file = tmp_path / "5.log"
    file.write_bytes(b"\xff\xfe caf\xe9\nsecond\n")
    fake.answer("GET", "/v1/jobs/5", {"job": ended("5", stdout=str(file))})
    return file


def test_a12_bytes_to_a_pipe(log: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """A12: output that is not UTF-8 reaches a pipe unchanged."""
    assert app.main(["logs", "5"]) == 0
    assert capfdbinary.readouterr().out == b"\xff\xfe caf\xe9\nsecond\n"


def test_a12_replacement_on_a_terminal_and_in_json(log: Path, gpuq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A12: a terminal and JSON get replacement characters; exit code 0."""
    assert gpuq("logs", "5", "--json").json["text"] == "�� caf�\nsecond\n"
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    ran = gpuq("logs", "5")
    assert (ran.code, ran.out) == (0, "�� caf�\nsecond\n")


def test_tail(log: Path, gpuq: Any) -> None:
    """--tail is the last lines; 0 is none."""
    assert gpuq("logs", "5", "--tail", "1", "--json").json["text"] == "second\n"
    assert gpuq("logs", "5", "--tail", "0", "--json").json["text"] == ""
    assert gpuq("logs", "5", "--tail", "99", "--json").json["text"].count("\n") == 2


@given(st.lists(st.sampled_from([b"\n", b"a", b"xyz", b"\xff"]), max_size=40), st.integers(0, 12))
def test_tail_is_what_splitting_gives(parts: list[bytes], lines: int) -> None:
    """The tail of any file is its last lines, with or without a line break at the end."""
    data = b"".join(parts)
    descriptor = os.memfd_create("log")
    try:
        os.write(descriptor, data)
        kept = data[tail_offset(descriptor, lines) :]
    finally:
        os.close(descriptor)
    whole = data.split(b"\n")
    ended_by_break = whole[-1] == b""
    rows = [row + b"\n" for row in whole[:-1]] + ([] if ended_by_break else [whole[-1]])
    assert kept == b"".join(rows[max(0, len(rows) - lines) :])


def test_a11_a_huge_file_is_read_from_the_end(tmp_path: Path) -> None:
    """A11: the tail of a file of many GiB reads only its end."""
    file = tmp_path / "huge"
    with open(file, "wb") as stream:
        stream.seek(20 << 30)
        stream.write(b"x\nlast\n")
    descriptor = os.open(file, os.O_RDONLY)
    try:
        assert os.pread(descriptor, 9, tail_offset(descriptor, 1)) == b"last\n"
        began = time.process_time()
        tail_offset(descriptor, 50)
        assert time.process_time() - began < 1.0
    finally:
        os.close(descriptor)


def test_a_hole_is_named(tmp_path: Path, fake: FakeDaemon, gpuq: Any) -> None:
    """What the log limit dropped is one note in its place, not gigabytes of zeros."""
    file = tmp_path / "5.log"
    with open(file, "wb") as stream:
        stream.write(b"a" * 65536)
        stream.seek(3 << 30)
        stream.write(b"end\n")
    descriptor = os.open(file, os.O_RDONLY)
    found = list(pieces(descriptor, 0, file.stat().st_size, with_holes=True))
    os.close(descriptor)
    if not any(isinstance(piece, int) for piece in found):
        pytest.skip("this file system has no holes")
    fake.answer("GET", "/v1/jobs/5", {"job": ended("5", stdout=str(file), log_dropped_bytes=(3 << 30) - 65536)})
    answered = gpuq("logs", "5", "--json").json
    assert answered["text"].endswith("end\n")
    assert answered["left_out_bytes"] > 2 << 30
    assert "GiB left out here by the log limit …]" in gpuq("logs", "5").out


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        (b"\x1b]0;title\x07x", "x"),
        (b"\x1b]8;;http://x\x1b\\link", "link"),
        (b"\x1b[2J\x1b[Hx\x1b[?25l", "x"),
        (b"10%\r20%\n", "10%\r20%\n"),
        (b"a\x08b\x00\x07", "ab"),
        (b"\x1bcx", "x"),
        ("é漢".encode(), "é漢"),
        (b"\xc2\x9b31mx", "31mx"),
    ],
)
def test_terminal_text(data: bytes, shown: str) -> None:
    """Colours pass, all other control goes, and how the bytes are cut into blocks changes nothing."""
    whole = TerminalText()
    assert whole.shown(data) + whole.shown(b"", final=True) == shown
    single = TerminalText()
    bytewise = [single.shown(data[place : place + 1]) for place in range(len(data))]
    assert "".join(bytewise) + single.shown(b"", True) == shown


def test_a_job_that_waits_has_no_log(fake: FakeDaemon, gpuq: Any, tmp_path: Path) -> None:
    """No file yet is one sentence, with how to follow it."""
    fake.answer("GET", "/v1/jobs/6", {"job": waiting("6", stdout=str(tmp_path / "6.log"))})
    ran = gpuq("logs", "6")
    assert ran.code == 1
    assert "has not started yet" in ran.err
    assert "gpuq logs -f 6" in ran.err


def test_a_log_in_json_error(fake: FakeDaemon, gpuq: Any, tmp_path: Path) -> None:
    """A21: also this failure is a JSON document."""
    fake.answer("GET", "/v1/jobs/6", {"job": ended("6", stdout=str(tmp_path / "6.log"))})
    assert gpuq("logs", "6", "--json").json["error"]["kind"] == "not_found"


def test_an_earlier_attempt(log: Path, fake: FakeDaemon, gpuq: Any) -> None:
    """A20: --attempt reads the log of an earlier try; a file the person named holds all of them."""
    again = log.with_name("5-restart-1.log")
    again.write_text("second try\n")
    fake.answer("GET", "/v1/jobs/5", {"job": ended("5", stdout=str(again), attempt_number=1)})
    assert gpuq("logs", "5", "--json").json["text"] == "second try\n"
    assert gpuq("logs", "5", "--attempt", "0", "--json").json["text"].endswith("second\n")
    fake.answer("GET", "/v1/jobs/5", {"job": ended("5", stdout=str(log.with_name("mine.txt")))})
    assert "Leave --attempt out" in gpuq("logs", "5", "--attempt", "0").err


def test_a_whole_array_is_asked_to_be_named(fake: FakeDaemon, gpuq: Any) -> None:
    """An array has as many logs as tasks: one has to be named."""
    tasks = [ended(f"7_{number}", array="7", task=number) for number in range(2)]
    fake.answer("GET", "/v1/jobs/7", {"job": tasks[0], "tasks": tasks})
    ran = gpuq("logs", "7")
    assert ran.code == 2
    assert "gpuq logs 7_0" in ran.err


def _wait_until(look: Callable[[], bool]) -> None:
    stop_at = time.monotonic() + _DEADLINE_S
    while not look():
        assert time.monotonic() < stop_at
        time.sleep(0.01)


class _Growing:
    """A job of the fake daemon whose log grows and which ends when told."""

    def __init__(self, fake: FakeDaemon, file: Path, code: int) -> None:
        self.over = threading.Event()
        self.job = waiting("8", stdout=str(file))
        fake.answer("GET", "/v1/jobs/8", lambda asked: {"job": self.job})
        fake.answer("GET", "/v1/wait", self._wait)
        self._end = ended("8", code, stdout=str(file))

    def _wait(self, asked: Asked) -> dict[str, Any]:
        done = self.over.wait(0.2)
        return {"done": done, "jobs": [self._end if done else self.job]}


def test_follow(fake: FakeDaemon, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """-f waits for the start, shows what comes, and exits with the job's code."""
    file = tmp_path / "8.log"
    growing = _Growing(fake, file, 5)
    codes: list[int] = []
    follower = threading.Thread(target=lambda: codes.append(app.main(["logs", "-f", "8"])))
    follower.start()
    _wait_until(lambda: bool(fake.queries("/v1/wait")))
    with open(file, "wb", buffering=0) as stream:
        stream.write(b"one\n")
        growing.job = job("8", stdout=str(file))
        polls = len(fake.queries("/v1/wait"))
        _wait_until(lambda: len(fake.queries("/v1/wait")) > polls + 1)  # some looks at the file later
        stream.write(b"two\n")
    growing.over.set()
    follower.join(_DEADLINE_S)
    assert codes == [5]
    captured = capfd.readouterr()
    assert captured.out == "one\ntwo\n"
    assert "job 8 waits" in captured.err


def test_run(fake: FakeDaemon, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """run shows the output and exits with the job's code; only the output is on standard output."""
    file = tmp_path / "8.log"
    file.write_text("hello\n")
    growing = _Growing(fake, file, 137)
    growing.over.set()
    fake.answer("POST", "/v1/jobs", {"id": "8", "tasks": 0, "state": "PENDING", "notes": ["a note"]})
    assert app.main(["run", "--", "true"]) == 137
    captured = capfd.readouterr()
    assert captured.out == "hello\n"
    assert "a note" in captured.err


def test_ctrl_c_in_run_cancels(fake: FakeDaemon, gpuq: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in run cancels the job, sees its end, and exits 130."""
    growing = _Growing(fake, tmp_path / "8.log", 143)
    fake.answer("POST", "/v1/jobs", {"id": "8", "tasks": 0, "state": "PENDING", "notes": []})

    def cancel(asked: Asked) -> dict[str, Any]:
        growing.over.set()
        return {"cancelled": ["8"], "already_ended": []}

    fake.answer("POST", "/v1/cancel", cancel)

    def interrupted(*arguments: Any, **options: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpuq.cli.following.follow", interrupted)
    assert gpuq("run", "--", "true").code == 130
    assert fake.bodies("/v1/cancel") == [{"ids": ["8"]}]


def test_ctrl_c_in_attach(fake: FakeDaemon, gpuq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in attach leaves the job running and exits 130; with --signal it goes to the job."""
    fake.answer("GET", "/v1/jobs/8", {"job": job("8")})
    fake.answer("POST", "/v1/signal", {"signalled": ["8"]})
    calls: list[int] = []

    def interrupted_once(*arguments: Any, **options: Any) -> int:
        calls.append(1)
        if len(calls) < 3:
            raise KeyboardInterrupt
        return 0

    monkeypatch.setattr("gpuq.cli.following.follow", interrupted_once)
    detached = gpuq("attach", "8")
    assert (detached.code, fake.bodies("/v1/signal")) == (130, [])
    assert "runs on" in detached.err
    assert gpuq("attach", "--signal", "8").code == 0
    assert fake.bodies("/v1/signal") == [{"ids": ["8"], "signal": 2}]
