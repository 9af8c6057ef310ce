"""gpuq on each Python that it promises: the package on 3.10 to 3.13, the agent of a node on 3.8 too.

May import: the harness, the agent's driver, the interpreters. One thing to know: the Python that runs the tests is
left out, since all other tests are about it; which others are tried is what this machine has.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.agent.driver import AgentDriver, alive, eventually
from tests.compat.interpreters import ROOT, installed, others
from tests.e2e.harness import Queue, command_line

pytestmark = pytest.mark.e2e

PACKAGE = others((3, minor) for minor in range(10, 14))
AGENT_ONLY = others((3, minor) for minor in range(8, 10))

IMPORT_ALL = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"


def _module_names(top: str) -> list[str]:
    """All modules below a directory of the checkout."""
    found = []
    for path in sorted((ROOT / top).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def _import_without_warnings(python: Path, names: list[str]) -> None:
    """Import the modules in one process, where each warning is an error."""
    done = subprocess.run(
        [python, "-W", "error", "-c", IMPORT_ALL, *names], cwd=ROOT, env={"LANG": "C.UTF-8"}, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture(scope="module")
def environments() -> dict[str, Path]:
    """The other Pythons, each with gpuq installed; two are made at a time, as that takes most of a first run."""
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(PACKAGE, pool.map(installed, PACKAGE, PACKAGE.values()), strict=True))


@pytest.fixture(params=PACKAGE)
def python(request: pytest.FixtureRequest, environments: dict[str, Path]) -> Path:
    """Another Python, with gpuq installed."""
    return environments[request.param]


@pytest.fixture
def queue(python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    """A running queue of that Python: the harness, daemon and agent start what `sys.executable` says."""
    monkeypatch.setattr(sys, "executable", str(python))
    queue = Queue(tmp_path)
    try:
        yield queue.start()
    finally:
        queue.close()


@pytest.fixture(params=AGENT_ONLY)
def old_python(request: pytest.FixtureRequest) -> Path:
    """A Python on which the agent alone must work; nothing is installed for it."""
    return AGENT_ONLY[request.param]


@pytest.fixture
def old_agent(old_python: Path, tmp_path: Path) -> Iterator[AgentDriver]:
    """An agent of that Python with one simulated GPU."""
    agent = AgentDriver(tmp_path / "spool", str(old_python), simulate=[{"name": "A100", "memory_mib": 40960}])
    try:
        yield agent
    finally:
        agent.close()
        agent.clean()


def test_every_module_imports_without_a_warning(python: Path) -> None:
    """All of gpuq imports on this Python with what an ordinary installation brings."""
    names = _module_names("gpuq")
    assert {"gpuq", "gpuq.daemon.main", "gpuq.cli.app", "gpuq.agent.shim"} <= set(names)
    _import_without_warnings(python, names)


def test_the_installed_command_shows_its_help(python: Path, tmp_path: Path) -> None:
    """The `gpuq` that pip puts beside the interpreter runs."""
    done = subprocess.run(
        [python.parent / "gpuq", "--help"], cwd=tmp_path, env={"HOME": str(tmp_path), "LANG": "C.UTF-8"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "submit" in done.stdout


def test_a_job_runs_through_daemon_and_agent(queue: Queue, python: Path) -> None:
    """Submitted, waited for and read by the command line, with GPUs, to its own exit code, on this Python alone."""
    command = "echo gpus=$CUDA_VISIBLE_DEVICES; exit 3"
    id_ = queue.gpuq("submit", "--gpus", "2", "--", "bash", "-c", command).id
    queue.gpuq("wait", id_, code=3)
    assert queue.gpuq("logs", id_).text.count("GPU-") == 2
    (job,) = queue.gpuq("status", "--all", "--json").document["jobs"]
    assert (job["state"], job["exit_code"]) == ("FAILED", 3)
    assert all(command_line(pid)[0] == str(python) for pid in (queue.pid, queue.agent()))


def test_a_stopped_daemon_finds_its_jobs_again(queue: Queue) -> None:
    """The journal is written and read back, and the next agent adopts what runs, on this Python."""
    id_ = queue.submit("echo $$; until test -e go; do sleep 0.05; done; exit 5")
    (pid,) = queue.printed_pids(id_, 1)
    assert queue.stop() == 0
    queue.start()
    queue.node_ready()
    assert alive(pid)
    (queue.work / "go").touch()
    assert queue.ended(id_)["exit_code"] == 5


def test_the_agent_imports_without_a_warning(old_python: Path) -> None:
    """Every file of the agent compiles and imports on this Python, with the standard library alone."""
    names = _module_names("gpuq/agent")
    assert {"gpuq.agent", "gpuq.agent.shim"} <= set(names)
    _import_without_warnings(old_python, names)


def test_the_agent_runs_and_ends_jobs(old_agent: AgentDriver) -> None:
    """An exit code, and the end of a job that ignores TERM and of what left its session, on this Python."""
    (gpu,) = old_agent.ready()["gpus"]
    run = old_agent.start("echo $CUDA_VISIBLE_DEVICES; exit 8", gpus=[gpu["uuid"]], visible="index")
    assert run.ended()["exit_code"] == 8
    assert run.output() == "0\n"
    stubborn = old_agent.start("trap '' TERM; setsid sleep 321 & echo $!; echo $$; while :; do sleep 0.1; done")
    pids = stubborn.pids(2)
    stubborn.stop(grace_s=0.2)
    assert stubborn.ended()["reason"] == "cancel"
    eventually(lambda: not any(map(alive, pids)), "all processes of the job have ended")
    assert old_agent.stderr() == ""
