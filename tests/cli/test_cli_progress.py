"""gpuq progress."""

from __future__ import annotations

from typing import Any

import pytest
from cli_cases import WHY, job
from fake_daemon import FakeDaemon


@pytest.mark.parametrize(("text", "fraction"), [("0.42", 0.42), ("42%", 0.42), ("1", 1.0), ("0", 0.0)])
def test_a_job_reports_its_progress(
    fake: FakeDaemon, gpuq: Any, monkeypatch: pytest.MonkeyPatch, text: str, fraction: float
) -> None:
    """The job it runs in is named by its environment; nothing is printed."""
    monkeypatch.setenv("GPUQ_JOB_ID", "45_3")
    fake.answer("POST", "/v1/progress", {"id": "45_3", "fraction": fraction, "kept": True})
    ran = gpuq("progress", text)
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert fake.bodies("/v1/progress") == [{"id": "45_3", "fraction": pytest.approx(fraction)}]
    assert gpuq("progress", text, "--json").json["kept"] is True


@pytest.mark.parametrize(
    ("text", "inside", "message"),
    [
        ("half", True, "'half' is not a number"),
        ("1.5", True, "Progress goes from 0 to 1, not to 1.5"),
        ("nan", True, "Progress goes from 0 to 1, not to nan"),
        ("0.5", False, "inside a job"),
    ],
)
def test_wrong_input_is_said(
    fake: FakeDaemon, gpuq: Any, monkeypatch: pytest.MonkeyPatch, text: str, inside: bool, message: str
) -> None:
    """A word, a number out of range, and a call outside a job are usage errors; nothing is sent."""
    if inside:
        monkeypatch.setenv("GPUQ_JOB_ID", "45")
    ran = gpuq("progress", text)
    assert ran.code == 2
    assert message in ran.err
    assert fake.asked == []


def test_progress_is_shown(fake: FakeDaemon, gpuq: Any) -> None:
    """By show, by status -l, and by why."""
    reported = job("41", progress=0.42)
    fake.answer("GET", "/v1/jobs/41", {"job": reported})
    fake.answer("GET", "/v1/jobs", {"jobs": [reported], "more": 0})
    fake.answer("GET", "/v1/jobs/41/why", {"why": {**WHY, "id": "41", "state": "RUNNING", "progress": 0.42}})
    assert "42%" in gpuq("show", "41").out
    assert "PROGRESS" in gpuq("status", "-l").out
    assert "42%" in gpuq("why", "41").out
