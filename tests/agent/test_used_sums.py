"""What an attempt uses of its GPUs: means over the samples, kept in the spool, told when it has ended."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuq.agent import used as used_module
from gpuq.agent.used import FILE, Used, Uses
from tests.agent.driver import AgentDriver, eventually

MODEL = {"name": "A100", "memory_mib": 40960, "power_limit_w": 400, "compute_capability": "8.0"}


def sample(uuid: str = "G0", **fields: Any) -> dict[str, Any]:
    """A sample with nothing known but these fields."""
    nothing = dict.fromkeys(("utilization", "power_w", "memory_used_mib", "foreign"))
    return {**nothing, "uuid": uuid, **fields}


def test_means_and_peak(tmp_path: Path) -> None:
    """Utilisation and draw are means per GPU over all samples, memory is the most that one GPU ever held."""
    used = Used(str(tmp_path))
    used.add([sample(utilization=0.2, power_w=100, memory_used_mib=10), sample(utilization=0.4, power_w=200)])
    used.add([sample(utilization=0.6, power_w=300.0, memory_used_mib=30), sample(memory_used_mib=20)])
    assert used.told() == {"utilization": 0.4, "power_w": 200.0, "memory_mib": 30, "samples": 2}


def test_unknown_is_never_zero(tmp_path: Path) -> None:
    """What was never read stays null, what is no measurement is left out, and without any reading nothing is told."""
    used = Used(str(tmp_path))
    used.add([sample(), sample(power_w=float("nan"), utilization=True)])
    assert used.told() is None
    used.add([sample(memory_used_mib=512)])
    assert used.told() == {"utilization": None, "power_w": None, "memory_mib": 512, "samples": 1}


def test_strangers_do_not_count(tmp_path: Path) -> None:
    """A GPU that a process outside gpuq uses as well tells nothing; unknown processes do not matter."""
    used = Used(str(tmp_path))
    used.add([sample(utilization=1.0, foreign=True), sample(utilization=0.5, foreign=None)])
    used.add([sample(utilization=1.0, foreign=True)])
    assert used.told() == {"utilization": 0.5, "power_w": None, "memory_mib": None, "samples": 1}


def test_sums_outlive_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one goes on with what was saved; a damaged file counts as none, a full disk costs nothing told."""
    first = Used(str(tmp_path))
    first.add([sample(utilization=0.2)])
    first.save()
    second = Used(str(tmp_path))
    second.add([sample(utilization=0.6)])
    assert second.told() == {"utilization": 0.4, "power_w": None, "memory_mib": None, "samples": 2}
    monkeypatch.setattr(used_module.spool, "write_json", _full)
    second.save()
    assert (second.told() or {})["samples"] == 2
    (tmp_path / FILE).write_text('{"samples": "many"}')
    assert Used(str(tmp_path)).told() is None


def _full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_samples_go_to_the_attempts_that_hold_the_gpus(tmp_path: Path) -> None:
    """Each attempt gets the samples of its own GPUs, and forgetting one leaves the others."""
    uses = Uses(lambda attempt: str(tmp_path / attempt))
    samples = [sample("G0", utilization=0.1), sample("G1", utilization=0.3), sample("G2", utilization=0.9)]
    uses.take(samples, {"a": ["G0", "G1"], "b": ["G2"], "cpu": [], "gone": ["G7"]})
    assert uses.told("a")["used"]["utilization"] == 0.2
    assert uses.told("b")["used"]["utilization"] == 0.9
    assert (uses.told("cpu"), uses.told("gone")) == ({}, {})
    uses.forget("a")
    assert uses.told("a") == {}


@pytest.mark.e2e
def test_an_ended_attempt_tells_what_it_used(start_agent: Callable[..., AgentDriver], tmp_path: Path) -> None:
    """Readings before and after a new agent are in the report of the end; one without GPUs has no such field."""
    first = start_agent(simulate=[MODEL])
    uuid = first.ready()["gpus"][0]["uuid"]
    steered = first.spool / "simulated.new"
    steered.write_text(json.dumps({"0": {"utilization": 0.75, "power_w": 250, "memory_used_mib": 2048}}))
    steered.rename(first.spool / "simulated.json")
    wait = f"until [ -e {tmp_path / 'go'} ]; do sleep 0.05; done"
    run, plain = first.start(wait, gpus=[uuid]), first.start("true")
    run.running()
    assert "used" not in plain.ended()
    first.forget()
    for _ in range(3):
        first.wait_for(lambda frame: frame["type"] == "samples", "samples")
        first.forget()
    first.close()
    kept = json.loads((first.directory(run.attempt) / FILE).read_text())["samples"]
    assert kept >= 1

    second = start_agent(simulate=[MODEL])
    second.phase_at_start(run.attempt, "running")
    eventually(lambda: second.read(0.1) or any(f["type"] == "samples" for f in second.frames), "samples")
    (tmp_path / "go").touch()
    used = second.phase(run.attempt, "ended")["used"]
    assert used["samples"] > kept
    assert (used["utilization"], used["power_w"], used["memory_mib"]) == (0.75, 250.0, 2048)
