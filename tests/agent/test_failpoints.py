"""Failpoints: their syntax, that a scenario reaches each of them, and what a crash at each one leads to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuq.agent import failpoints
from tests.agent.driver import AgentDriver, Run, eventually

pytestmark = pytest.mark.e2e

StartAgent = Callable[..., AgentDriver]
BEFORE_THE_REPORT = [point for point in failpoints.ALL if "report" not in point and "release" not in point]
BY_ITSELF = ("ended", "lost", "fenced")


def faults(tmp_path: Path, text: str) -> dict[str, str]:
    """Environment that arms failpoints, each to fire once over all processes."""
    (tmp_path / "faults").mkdir(exist_ok=True)
    return {"GPUQ_FAILPOINTS": text, "GPUQ_FAILPOINTS_DIR": str(tmp_path / "faults")}


def test_syntax() -> None:
    """Actions, arguments and hit numbers are read; what is not understood is refused with its text."""
    parsed = failpoints.parse("shim.after_claim=kill, agent.after_spec=delay:20@3")
    assert parsed == {
        "shim.after_claim": failpoints.Fault("kill", "", 0),
        "agent.after_spec": failpoints.Fault("delay", "20", 3),
    }
    assert failpoints.parse("") == {}
    for bad in ("shim.nowhere=kill", "shim.after_claim", "shim.after_claim=explode", "shim.after_claim=kill@x"):
        with pytest.raises(ValueError, match=bad):
            failpoints.parse(bad)


@pytest.mark.parametrize(("hit", "expected"), [("", "1 0"), ("@2", "2 0")])
def test_fires_once_over_processes(tmp_path: Path, hit: str, expected: str) -> None:
    """With a directory the N-th hit of any process fires, once."""
    code = "from gpuq.agent.failpoints import reach; reach('shim.after_claim')"
    environment = {**os.environ, **faults(tmp_path, f"shim.after_claim=exit{hit}")}
    fired, quiet = (int(word) for word in expected.split())
    codes = [subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode for _ in range(3)]
    assert codes.index(3) + 1 == fired
    assert codes.count(3) == 1
    assert codes[-1] == quiet


def test_error_actions(tmp_path: Path) -> None:
    """`enospc` and `eio` raise the matching OSError."""
    code = (
        "import errno\nfrom gpuq.agent.failpoints import reach\n"
        "for point, number in (('shim.after_claim', errno.ENOSPC), ('shim.after_fork', errno.EIO)):\n"
        "    try: reach(point)\n"
        "    except OSError as error: assert error.errno == number\n"
        "    else: raise SystemExit(1)\n"
    )
    environment = {**os.environ, "GPUQ_FAILPOINTS": "shim.after_claim=enospc,shim.after_fork=eio"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_every_point_is_reached(start_agent: StartAgent, tmp_path: Path) -> None:
    """One job that resists a stop passes every point there is."""
    agent = start_agent(environment=faults(tmp_path, ",".join(f"{point}=delay:0" for point in failpoints.ALL)))
    run = agent.start("trap '' TERM; echo $$; while :; do sleep 0.1; done")
    run.pids(1)
    run.stop(grace_s=0.1)
    run.ended()
    agent.send(type="release", attempt=run.attempt)
    agent.phase(run.attempt, "absent")
    reached = {path.name for path in (tmp_path / "faults").iterdir() if ".hit" not in path.name}
    assert reached == set(failpoints.ALL)


def survivor(start_agent: StartAgent, tmp_path: Path, text: str) -> tuple[AgentDriver, Run, dict[str, Any]]:
    """Run a job that gets a stop under a fault, playing a daemon that starts dead agents again and repeats itself."""
    environment = faults(tmp_path, text)
    agent = start_agent(environment=environment)
    run = agent.start(f"echo start >> {tmp_path / 'evidence'}; trap '' TERM; echo $$; while :; do sleep 0.1; done")
    stops_sent = 0

    def outcome() -> Any:
        nonlocal agent, stops_sent
        if agent.process.poll() is not None:
            agent = start_agent(environment=environment)
            agent.send(type="start", attempt=run.attempt, spec=run.spec)
            stops_sent = 0
        evidence = tmp_path / "evidence"
        started = evidence.exists() and evidence.stat().st_size > 0
        if started and stops_sent == 0:
            stops_sent = 1
            agent.send(type="stop", attempt=run.attempt, reason="cancel", grace_s=0.2)
        frame = agent.last(run.attempt)
        return frame if frame is not None and frame["phase"] in BY_ITSELF else None

    return agent, run, eventually(outcome, f"an end under {text}", 30)


@pytest.mark.parametrize(
    "point", [point for point in failpoints.ALL if "report" not in point and "release" not in point]
)
def test_crash_at_each_point(start_agent: StartAgent, tmp_path: Path, point: str) -> None:
    """A kill at any point before the report: the program starts at most once, ends, and the verdict is honest."""
    _, run, frame = survivor(start_agent, tmp_path, f"{point}=kill")
    starts = (tmp_path / "evidence").read_text().count("start") if (tmp_path / "evidence").exists() else 0
    assert (tmp_path / "faults" / point).exists()
    assert starts <= 1
    if frame["phase"] == "ended" and frame["status"] == "signaled" and point != "shim.before_exec":
        assert starts == 1
    if point.startswith(("agent.", "forker.")):
        assert (frame["phase"], starts) == ("ended", 1)
    elif point in ("shim.before_claim", "shim.after_exit_record"):
        assert frame["phase"] == "ended"
    elif point != "shim.before_exec":
        assert frame["phase"] == "lost"
    marker = f"GPUQ_ATTEMPT_ID={run.attempt}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            assert marker not in path.read_bytes()
        except OSError:
            continue


@pytest.mark.parametrize("point", ["agent.before_report_ended", "agent.before_release", "agent.after_release"])
def test_crash_around_the_report(start_agent: StartAgent, tmp_path: Path, point: str) -> None:
    """A kill while the end is reported or released: the next agent reports the same end, or nothing is left."""
    environment = faults(tmp_path, f"{point}=kill")
    first = start_agent(environment=environment)
    run = first.start("exit 21")
    if point != "agent.before_report_ended":
        run.ended()
        first.send(type="release", attempt=run.attempt)
    first.process.wait(timeout=20)
    second = start_agent(environment=environment)
    if point == "agent.after_release":
        assert second.ready()["attempts"] == []
        return
    assert second.phase_at_start(run.attempt, "ended")["exit_code"] == 21
    second.send(type="release", attempt=run.attempt)
    second.phase(run.attempt, "absent")


@pytest.mark.parametrize("point", ["agent.before_mkdir", "agent.after_spec"])
def test_full_spool_is_reported(start_agent: StartAgent, tmp_path: Path, point: str) -> None:
    """A spool without space gives `not_started` with the reason; the next attempt is unaffected."""
    agent = start_agent(environment=faults(tmp_path, f"{point}=enospc"))
    record = agent.start("true").ended()
    assert record["status"] == "not_started"
    assert "space" in record["error"]
    assert agent.start("exit 1").ended()["exit_code"] == 1


def test_full_disk_delays_the_exit_record(start_agent: StartAgent, tmp_path: Path) -> None:
    """An exit record that meets a full disk is written when there is space, with the right code."""
    agent = start_agent(environment=faults(tmp_path, "shim.before_exit_record=enospc"))
    assert agent.start("exit 17").ended()["exit_code"] == 17


@pytest.mark.parametrize("point", ["shim.before_claim", "forker.before_fork", "forker.after_fork"])
def test_shim_that_cannot_claim_is_tried_again(start_agent: StartAgent, tmp_path: Path, point: str) -> None:
    """An error before the claim costs another try and nothing else."""
    agent = start_agent(environment=faults(tmp_path, f"{point}=eio"))
    assert agent.start("exit 18").ended()["exit_code"] == 18


def test_attempt_that_no_shim_can_claim_is_given_up(start_agent: StartAgent) -> None:
    """After ten shims that failed before the claim the attempt is fenced and ends as not started."""
    agent = start_agent(environment={"GPUQ_FAILPOINTS": "shim.before_claim=exit"})
    run = agent.start("true")
    record = run.ended()
    assert record["status"] == "not_started"
    assert "guard" in record["error"]
