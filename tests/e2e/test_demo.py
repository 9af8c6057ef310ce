"""`gpuq demo`: a real daemon and real processes, started, interrupted and killed, with nothing left behind."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuq.cli.client import Daemon
from gpuq.cli.demo_stage import processes_of
from gpuq.config import Paths
from tests.e2e.harness import eventually

pytestmark = pytest.mark.e2e

WITHIN_S = 120.0
TABLES = ("unix", "tcp", "tcp6", "udp", "udp6", "raw", "raw6")
DEMO = (sys.executable, "-m", "gpuq", "demo")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """The directory for temporary files, with the person's home beside it; what a failed test leaves is ended."""
    place = tmp_path / "t"
    place.mkdir()
    yield place
    for pid in processes_of(tmp_path):
        os.kill(pid, signal.SIGKILL)


def start_demo(place: Path, output: int = subprocess.PIPE, **variables: str) -> subprocess.Popen[str]:
    """`gpuq demo` with its temporary home below `place`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GPUQ_", "XDG_"))}
    environment |= {"TMPDIR": str(place), "HOME": str(place.parent / "person"), **variables}
    return subprocess.Popen(
        DEMO, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, text=True, env=environment,
        start_new_session=True,
    )  # fmt: skip


def read_until(demo: subprocess.Popen[str], words: str) -> str:
    """The demo's output up to the line with `words`."""
    assert demo.stdout is not None
    lines = []
    for line in demo.stdout:
        lines.append(line)
        if words in line:
            return "".join(lines)
    raise AssertionError(f"The demo ended without '{words}':\n{''.join(lines)}")


def assert_nothing_is_left(place: Path) -> None:
    """No file and no process of the demo is there any more, and the person's own home was not touched."""
    assert list(place.iterdir()) == []
    assert list(place.parent.glob("person/**/*")) == []
    assert [Path("/proc", str(pid), "cmdline").read_bytes() for pid in processes_of(place.parent)] == []


def test_demo_accounts_for_every_job(place: Path) -> None:
    """The demo ends with exit code 0 within its time, with one line for each job, and leaves nothing behind."""
    demo = start_demo(place)
    text, _ = demo.communicate(timeout=WITHIN_S)
    assert demo.returncode == 0, text
    account = text[text.index(" ID  NAME") :]
    assert len(re.findall(r"^ *\d+(_\d)? ", account.split("\n\n")[0], re.MULTILINE)) == 21
    assert re.search(r"diverges .* FAILED +3 ", account)
    assert re.search(r"after-it .* CANCELLED +- ", account)
    assert re.search(r"too-long .* TIMEOUT ", account)
    assert re.search(r"pretrain +4 +A100 0,1,2,3 +COMPLETED +0 ", account)
    assert "21 jobs: 18 completed" in account
    factor = re.search(r"Impact Factor (\d\.\d\d)", account)
    assert factor is not None
    assert 0 < float(factor[1]) <= 1
    assert "started again" not in text
    assert_nothing_is_left(place)


def test_ctrl_c_on_a_terminal_leaves_nothing_behind(place: Path) -> None:
    """SIGINT in the middle ends the jobs and the daemon, with exit code 130; until then a terminal sees a picture."""
    ours, theirs = pty.openpty()
    demo = start_demo(place, theirs, TERM="xterm", COLUMNS="100")
    os.close(theirs)
    shown = ""
    stop_at = time.monotonic() + WITHIN_S
    while "V100" not in shown.partition("HOLDS")[2]:
        assert time.monotonic() < stop_at, shown
        shown += os.read(ours, 65536).decode("utf-8", "replace")
    demo.send_signal(signal.SIGINT)
    while data := _read_or_end(ours):
        shown += data.decode("utf-8", "replace")
    os.close(ours)
    assert demo.wait(WITHIN_S) == 130, shown
    assert "running" in shown
    assert "interrupted" in shown
    assert_nothing_is_left(place)


def _read_or_end(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""  # the other side is closed


@pytest.mark.parametrize("sign", ["gpuq-demo-*", "gpuq-demo-*/daemon.out", "gpuq-demo-*/journal.db"])
def test_ctrl_c_while_the_daemon_starts_leaves_nothing_behind(place: Path, sign: str) -> None:
    """SIGINT when the home is there, and when the daemon does not answer yet, is cleaned up after as well."""
    demo = start_demo(place)
    eventually(lambda: list(place.glob(sign)), "the demo has come that far")
    demo.send_signal(signal.SIGINT)
    text, _ = demo.communicate(timeout=WITHIN_S)
    assert demo.returncode == 130, text
    assert_nothing_is_left(place)


def test_termination_leaves_nothing_behind(place: Path) -> None:
    """SIGTERM in the middle cleans up as Ctrl-C does."""
    demo = start_demo(place)
    read_until(demo, " runs on ")
    demo.send_signal(signal.SIGTERM)
    text, _ = demo.communicate(timeout=WITHIN_S)
    assert demo.returncode == 130, text
    assert_nothing_is_left(place)


def test_no_port_is_open_while_it_runs(place: Path) -> None:
    """With daemon, agent and jobs running, none of their descriptors is an internet socket."""
    demo = start_demo(place)
    read_until(demo, " runs on ")
    pids = processes_of(place)
    assert len(pids) > 5
    kinds = {kind for pid in pids for kind in _sockets_of(pid)}
    assert kinds == {"unix"}
    demo.send_signal(signal.SIGINT)
    demo.communicate(timeout=WITHIN_S)
    assert_nothing_is_left(place)


def _sockets_of(pid: int) -> set[str]:
    """`unix` or the table of /proc/PID/net that names a socket of the process."""
    try:
        links = [os.readlink(entry) for entry in Path("/proc", str(pid), "fd").iterdir()]
        known = [name for name in TABLES if Path("/proc", str(pid), "net", name).exists()]
        tables = {name: Path("/proc", str(pid), "net", name).read_text() for name in known}
    except OSError:
        return set()  # it has ended
    inodes = [link[len("socket:[") : -1] for link in links if link.startswith("socket:[")]
    return {name for name, rows in tables.items() for inode in inodes if re.search(rf"\b{inode}\b", rows)}


def test_demo_survives_kill_9_of_its_daemon(place: Path) -> None:
    """With the daemon killed while jobs run and wait, the demo starts another and every job still ends as meant."""
    demo = start_demo(place)
    read_until(demo, " runs on ")
    (home,) = place.iterdir()
    daemon = Daemon(Paths(str(home), str(home / "gpuq.toml"), True, str(home / "gpuq.sock")))
    os.kill(daemon.get("/v1/status")["pid"], signal.SIGKILL)
    text, _ = demo.communicate(timeout=WITHIN_S)
    assert demo.returncode == 0, text
    assert "The daemon was started again once; no job was lost." in text
    assert "21 jobs: 18 completed" in text
    assert_nothing_is_left(place)
