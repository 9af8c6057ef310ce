"""GPU samples on their way through the agent: owners, foreign processes, and a sampler that hangs or dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuq.agent import gpufeed, processes
from tests.agent.driver import AgentDriver, eventually

pytestmark = pytest.mark.e2e

MODEL = {
    "name": "A100", "memory_mib": 40960, "power_limit_w": 400, "bandwidth_gbps": 1555, "compute_capability": "8.0",
}  # fmt: skip
StartAgent = Callable[..., AgentDriver]


def show_processes(agent: AgentDriver, entries: list[dict[str, Any]] | None) -> None:
    """Have the simulated GPU 0 show these processes."""
    temporary = agent.spool / "state.new"
    temporary.write_text(json.dumps({"0": {"processes": entries}}))
    temporary.rename(agent.spool / "simulated.json")


def sample_with(agent: AgentDriver, matches: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
    """The first sample of GPU 0 that matches."""

    def right(frame: dict[str, Any]) -> bool:
        return frame["type"] == "samples" and matches(frame["gpus"][0])

    found: dict[str, Any] = agent.wait_for(right, what)["gpus"][0]
    return found


def test_processes_get_their_attempt(start_agent: StartAgent) -> None:
    """A job's grandchild on a GPU is the attempt's; a stranger above the threshold makes the GPU foreign."""
    agent = start_agent(simulate=[MODEL])
    assert len(agent.ready()["gpus"]) == 1
    run = agent.start("(setsid sleep 331 & echo $!); echo $$; sleep 100")
    child, main = run.pids(2)
    show_processes(agent, [{"pid": child, "memory_mib": 9000, "kind": "compute"}])
    gpu = sample_with(agent, lambda g: bool(g["processes"]), "a process")
    assert gpu["processes"][0]["attempt"] == run.attempt
    assert gpu["foreign"] is False
    show_processes(agent, None)
    assert sample_with(agent, lambda g: g["processes"] is None, "unknown processes")["foreign"] is None
    strangers = [
        {"pid": main, "memory_mib": 10, "kind": "compute"},
        {"pid": os.getpid(), "memory_mib": 9000, "kind": "compute"},
    ]
    show_processes(agent, strangers)
    gpu = sample_with(agent, lambda g: len(g["processes"] or ()) == 2, "two processes")
    assert [entry["attempt"] for entry in gpu["processes"]] == [run.attempt, None]
    assert gpu["foreign"] is True


@pytest.mark.parametrize(
    ("entries", "foreign"),
    [
        ([], False),
        ([{"memory_mib": 150, "kind": "graphics"}], False),
        ([{"memory_mib": 150, "kind": "compute"}], False),
        ([{"memory_mib": 301, "kind": "graphics"}], True),
        ([{"memory_mib": 301, "kind": "compute"}], True),
        ([{"memory_mib": None, "kind": "compute"}], None),
        ([{"memory_mib": None, "kind": "graphics"}], False),
    ],
)
def test_foreign_threshold(entries: list[dict[str, Any]], foreign: bool | None) -> None:
    """Small and graphics processes are below the threshold of 300 MiB; unknown stays unknown; our own never count."""
    ours = {"memory_mib": 9000, "kind": "compute", "attempt": "ours"}
    strangers = [{**entry, "attempt": None} for entry in entries]
    assert gpufeed.is_foreign([ours, *strangers], 300.0) is foreign


def test_sampler_is_started_again(start_agent: StartAgent) -> None:
    """A killed sampler is replaced and the inventory comes again; jobs are untouched."""
    agent = start_agent(simulate=[MODEL])
    known = agent.ready()["gpus"]
    pids = Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children").read_text().split()
    sampler = [int(pid) for pid in pids if b"sampler" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
    agent.forget()
    os.kill(sampler[0], signal.SIGKILL)
    frame = agent.wait_for(lambda f: f["type"] == "inventory", "a new inventory")
    assert [gpu["uuid"] for gpu in frame["gpus"]] == [gpu["uuid"] for gpu in known]
    assert agent.start("exit 3").ended()["exit_code"] == 3


@pytest.fixture
def silent_feed(monkeypatch: pytest.MonkeyPatch) -> gpufeed.GpuFeed:
    """A feed whose sampler tells one inventory and then nothing; limits are short."""
    inventory = {"type": "inventory", "gpus": [{"uuid": "GPU-1", "usable": True, "reason": None}], "driver": {}}
    code = f"import time; print({json.dumps(json.dumps(inventory))}, flush=True); time.sleep(60)"
    monkeypatch.setattr(gpufeed, "command", lambda verb, isolated: ["/usr/bin/env", "python3", "-c", code])
    monkeypatch.setattr(gpufeed, "SILENCE_S", 0.3)
    monkeypatch.setattr(gpufeed, "DEATH_S", 0.3)
    monkeypatch.setattr(gpufeed, "RESPAWN_S", (0.05,))
    feed = gpufeed.GpuFeed({}, 300.0)
    eventually(lambda: feed.read(dict) and feed.known, "the first inventory")
    return feed


def bury(process: subprocess.Popen[bytes] | None) -> None:
    """End a sampler that a test has taken out of its feed."""
    assert process is not None
    subprocess.Popen.kill(process)
    process.wait()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        stream.close()


def test_silent_sampler_is_killed_and_replaced(silent_feed: gpufeed.GpuFeed) -> None:
    """A sampler that says nothing for too long is killed, and another one is started."""
    first = silent_feed._process
    assert first is not None
    eventually(lambda: silent_feed.tick() or silent_feed._process not in (first, None), "another sampler")
    assert first.returncode == -signal.SIGKILL
    bury(silent_feed._process)


def test_unkillable_sampler_makes_gpus_unusable(silent_feed: gpufeed.GpuFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a hanging sampler cannot even be killed, every GPU is reported unusable, once, and nothing blocks."""
    stuck = silent_feed._process
    assert stuck is not None
    monkeypatch.setattr(stuck, "kill", lambda: None)
    frames = eventually(silent_feed.tick, "the bad news")
    assert [(gpu["usable"], gpu["reason"]) for gpu in frames[0]["gpus"]] == [(False, "NVML is stuck")]
    assert silent_feed.tick() == []
    assert silent_feed._process is stuck
    bury(stuck)


def test_owners_of_marked_processes() -> None:
    """A process that left its shim's tree is found by its marker, if the attempt is one of ours."""
    attempt = "00000000-0000-4000-8000-00000000abcd"
    child = subprocess.Popen(["/bin/sleep", "60"], env={"GPUQ_ATTEMPT_ID": attempt})
    try:
        eventually(lambda: processes.marker_of(child.pid) == attempt, "the marker")
        assert processes.owners([child.pid, 1], {999999999: attempt}) == {child.pid: attempt}
        assert processes.owners([child.pid], {999999999: "other"}) == {}
        assert processes.owners([child.pid], {os.getpid(): "mine"}) == {child.pid: "mine"}
    finally:
        child.kill()
        child.wait()
