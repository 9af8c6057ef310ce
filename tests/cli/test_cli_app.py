"""The command as a whole: exit codes, errors, start-up, broken pipes, completion."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cli_cases import SUMMARY, job
from fake_daemon import Asked, Failure, FakeDaemon, HangUp

from gpuq import __version__
from gpuq.cli import client
from gpuq.cli.completion import SHELLS, completion_script
from gpuq.cli.verbs import visible_verbs

_DEADLINE_S = 30.0


def _gpuq(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpuq", *arguments],
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
        **options,
    )


def test_version_and_help(gpuq: Any) -> None:
    """--version and help are on standard output with exit 0; help lists every verb."""
    assert gpuq("--version").out == f"gpuq {__version__}\n"
    ran = gpuq("--help")
    assert ran.code == 0
    for verb in visible_verbs():
        assert f"  {verb.name} " in ran.out
    assert gpuq().out == ran.out


def test_an_unknown_verb(gpuq: Any) -> None:
    """A mistyped verb is exit 2 with the nearest."""
    ran = gpuq("sumbit", "true")
    assert ran.code == 2
    assert "gpuq submit?" in ran.err


@pytest.mark.parametrize("arguments", [["status"], ["wait", "1"], ["cancel", "1"], ["logs", "1"], ["why", "1"]])
def test_no_daemon_is_3(gpuq: Any, arguments: list[str]) -> None:
    """Without a daemon: exit 3, one sentence, what to type; with --json the error document."""
    ran = gpuq(*arguments)
    assert (ran.code, ran.out) == (3, "")
    assert "gpuq daemon start" in ran.err
    if arguments[0] not in ("attach",):
        assert gpuq(*arguments, "--json").json["error"]["exit_code"] == 3


def test_a21_usage_errors_in_json(gpuq: Any) -> None:
    """A21: also a mistaken line is one document when --json stands in it."""
    ran = gpuq("status", "--json", "--nope")
    assert ran.code == 2
    assert ran.json["error"]["kind"] == "usage"


def test_json_among_the_jobs_words_is_the_jobs(gpuq: Any, fake: FakeDaemon) -> None:
    """--json after the first word of a submit belongs to the job, for errors too."""

    def refuse(asked: Asked) -> dict[str, Any]:
        raise Failure(409, "refused", "No.")

    fake.answer("POST", "/v1/jobs", refuse)
    assert gpuq("submit", "-G", "1", "x", "--json").out == ""
    assert gpuq("submit", "-G", "1", "--json", "x").json["error"]["message"] == "No."
    assert gpuq("submit", "-J", "--json", "x").out == ""


def test_a_fault_of_ours_shows_no_traceback(gpuq: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that is not ours is one sentence and a path; the traceback is in that file."""

    def broken(*arguments: Any) -> Any:
        raise ZeroDivisionError("oops\nsecond line")

    monkeypatch.setattr("gpuq.cli.commands.nodes.connect", broken)
    ran = gpuq("nodes")
    assert ran.code == 1
    assert "Traceback" not in ran.err
    assert "ZeroDivisionError: oops" in ran.err
    assert str(home / "cli.log") in ran.err
    assert "Traceback" in (home / "cli.log").read_text()
    assert (home / "cli.log").stat().st_mode & 0o777 == 0o600


def test_an_answer_that_is_not_gpuqs(home: Path, gpuq: Any) -> None:
    """Another program at the socket gives a sentence."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(home / "gpuq.sock"))
        server.listen()
        import threading

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

        thread = threading.Thread(target=answer)
        thread.start()
        ran = gpuq("nodes")
        thread.join(_DEADLINE_S)
    assert ran.code == 1
    assert "is not gpuq's" in ran.err


def test_a_daemon_that_hangs_up_for_good(fake: FakeDaemon, gpuq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """When every connection breaks, the client gives up with exit 3 after a stated time."""
    monkeypatch.setattr(client, "RETRY_FOR_S", 0.2)

    def hang_up(asked: Asked) -> dict[str, Any]:
        raise HangUp

    fake.answer("GET", "/v1/nodes", hang_up)
    ran = gpuq("nodes")
    assert ran.code == 3
    assert "closed the connection" in ran.err
    assert len(fake.asked) > 1


def test_a_socket_of_another_user_gets_nothing(fake: FakeDaemon, gpuq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is sent the kernel is asked who listens; a stranger gets no environment."""
    monkeypatch.setattr(client, "peer_uid", lambda connection: 12345)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    ran = gpuq("nodes")
    assert ran.code == 1
    assert "served by user 12345" in ran.err
    assert fake.asked == []


def test_broken_pipe_is_quiet(fake: FakeDaemon) -> None:
    """`gpuq status | head` ends quietly."""
    fake.answer("GET", "/v1/jobs", {"jobs": [job(str(number)) for number in range(3000)], "more": 0})
    command = f"'{sys.executable}' -m gpuq status | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "0"


def test_ctrl_c_is_130(fake: FakeDaemon) -> None:
    """Ctrl-C while waiting ends with 130 and no traceback."""

    def slow(asked: Asked) -> dict[str, Any]:
        time.sleep(1)
        return {"done": False, "jobs": []}

    fake.answer("GET", "/v1/wait", slow)
    process = subprocess.Popen([sys.executable, "-m", "gpuq", "wait", "1"], stderr=subprocess.PIPE, text=True)
    stop_at = time.monotonic() + _DEADLINE_S
    while not fake.asked:
        assert time.monotonic() < stop_at
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=_DEADLINE_S)
    assert (process.returncode, err) == (130, "")


def test_a22_no_heavy_imports(fake: FakeDaemon) -> None:
    """A22: submit, status and completion import nothing heavy, not even typer; help typer (and rich in old ones)."""
    fake.answer("GET", "/v1/status", SUMMARY)
    fake.answer("GET", "/v1/jobs", {"jobs": [], "more": 0})
    heavy = {"typer", "rich", "pydantic", "msgspec", "numpy", "ortools", "aiohttp", "http", "asyncio", "textual",
             "dataclasses"}  # fmt: skip
    code = (
        "import sys; from gpuq.cli import app; app.main(sys.argv[1:]);"
        "print('MODULES', *sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    for arguments, allowed in (
        (["submit", "--", "true"], set()), (["status"], set()), (["complete", "jobs"], set()),
        (["--help"], {"typer", "dataclasses", "rich"}), (["submit", "--help"], {"typer", "dataclasses", "rich"}),
    ):  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=_DEADLINE_S, check=False
        )
        loaded = set(done.stderr.rpartition("MODULES")[2].split())
        assert loaded & heavy <= allowed, arguments


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_scripts(shell: str, gpuq: Any, tmp_path: Path) -> None:
    """Each script knows all verbs and the options of submit, and its shell can read it."""
    text = gpuq("completion", shell).out
    assert text == completion_script(shell)
    for verb in ("submit", "status", "cancel", "logs"):
        assert verb in text
    assert "gpu-mem" in text
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    file = tmp_path / f"gpuq.{shell}"
    file.write_text(text)
    assert subprocess.run([shell, "-n", str(file)], capture_output=True, check=False).stderr == b""


def _bash_completes(words: list[str], script: Path) -> list[str]:
    line = (
        f"source '{script}'; COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}; "
        "_gpuq; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    return done.stdout.split()


def test_bash_completion(tmp_path: Path) -> None:
    """In bash: verbs, options of the verb, fixed values."""
    script = tmp_path / "gpuq.bash"
    script.write_text(completion_script("bash"))
    assert _bash_completes(["gpuq", "sub"], script) == ["submit"]
    assert _bash_completes(["gpuq", "submit", "--gpu-m"], script) == ["--gpu-mem"]
    assert _bash_completes(["gpuq", "submit", "--visible", "u"], script) == ["uuid"]
    assert _bash_completes(["gpuq", "daemon", "sta"], script) == ["start", "status"]


def test_words_for_completion(fake: FakeDaemon, gpuq: Any) -> None:
    """Job ids come from the daemon; without one there is silence."""
    fake.answer("GET", "/v1/jobs", {"jobs": [job("41"), job("43_3")], "more": 0})
    assert gpuq("complete", "jobs").out == "last\n41\n43_3\n"
    silent = gpuq("complete", "nodes")
    assert (silent.out, silent.err) == ("", "")


def test_module_entry(home: Path) -> None:
    """`python -m gpuq` works, and its JSON is one document even when nothing answers."""
    done = _gpuq("status", "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["error"]["kind"] == "unreachable"
    assert done.stderr == ""
