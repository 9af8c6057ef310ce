"""sacct exports and gpuq's own history as traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuq.sim.history import from_history
from gpuq.sim.predictions import predict_all
from gpuq.sim.sacct import is_sacct, parse_sacct, read_file
from gpuq.sim.trace import TraceError

HEAD = "JobIDRaw|Submit|Start|End|ElapsedRaw|AllocTRES|User|JobName|State|Timelimit"
DAY = "2026-05-01T"


def row(id_: str = "7", *, start: str = DAY + "08:01:00", elapsed: str = "600", tres: str = "cpu=4,gres/gpu=2",
        state: str = "COMPLETED", limit: str = "02:00:00", submit: str = DAY + "08:00:00") -> str:  # fmt: skip
    return f"{id_}|{submit}|{start}|Unknown|{elapsed}|{tres}|anna|train|{state}|{limit}"


def test_a_job_keeps_what_policies_may_know() -> None:
    """GPUs, run time, user, name and the owner's estimate; submissions count from the first."""
    found = parse_sacct([HEAD, row("8", submit=DAY + "08:00:30"), row("7")], "t")
    assert [(job.id, job.submit_s) for job in found.jobs] == [("7", 0.0), ("8", 30.0)]
    job = found.jobs[0]
    assert (job.gpus, job.duration_s, job.user, job.name, job.limit_s) == (2, 600.0, "anna", "train", 7200.0)
    assert predict_all(found.jobs, "helios", 0)[0].limit_s == 7200.0


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("billing=8,cpu=8,gres/gpu=4,mem=32G", 4),
        ("gres/gpu:a100=2,gres/gpu:v100=1", 3),
        ("gres/gpu=2,gres/gpu:a100=2", 2),
        ("gres/gpu:nvidia_a100-sxm4-80gb=8,node=1", 8),
    ],
)
def test_gpus_are_counted_once(tres: str, gpus: int) -> None:
    """A total beside a count by type is not added to it."""
    assert parse_sacct([HEAD, row(tres=tres)], "t").jobs[0].gpus == gpus


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (row(tres="cpu=4"), "of jobs without GPUs"),
        (row(start="None", state="CANCELLED by 1000"), "of jobs that never started"),
        (row(state="RUNNING"), "of jobs that have not ended"),
        (row(elapsed="0"), "without run time"),
        (row(submit="soon"), "without a time of submission"),
        ("7|x", "with other columns"),
    ],
)
def test_what_cannot_be_replayed_is_counted_by_reason(line: str, reason: str) -> None:
    """Nothing is left out silently but the steps of jobs."""
    found = parse_sacct([HEAD, row(), line, row("7.batch"), row("7.extern"), row("7.0")], "t")
    assert len(found.jobs) == 1
    assert found.left_out == {reason: 1}


def test_other_spellings_of_times() -> None:
    """Elapsed and TimelimitRaw do as well; without both, end minus start; no limit is no estimate."""
    days = parse_sacct(["JobID|Submit|Elapsed|ReqTRES|TimelimitRaw", f"7|{DAY}08:00:00|1-02:00:00|gres/gpu=1|90"], "t")
    assert (days.jobs[0].duration_s, days.jobs[0].limit_s) == (93600.0, 5400.0)
    span = parse_sacct(["JobID|Submit|Start|End|ReqTRES", "7|100|160|400|gres/gpu=1"], "t")
    assert span.jobs[0].duration_s == 240.0
    assert parse_sacct([HEAD, row(limit="UNLIMITED")], "t").jobs[0].limit_s is None


def test_a_file_is_told_apart_by_its_first_line(tmp_path: Path) -> None:
    """An export and a normalised CSV are both read; an export that lacks columns is refused with their names."""
    export, plain = tmp_path / "week.txt", tmp_path / "jobs.csv"
    export.write_text(f"{HEAD}\n{row()}\n")
    plain.write_text("submit_s,duration_s,gpus\n0,10,1\n")
    assert read_file(export).jobs[0].user == "anna"
    assert read_file(plain).jobs[0].duration_s == 10.0
    assert not is_sacct("job_id,submit_s")
    export.write_text("JobID|User\n7|anna\n")
    with pytest.raises(TraceError, match="no column Submit, AllocTRES, ElapsedRaw"):
        read_file(export)
    with pytest.raises(TraceError, match="1 of jobs without GPUs"):
        parse_sacct([HEAD, row(tres="cpu=1")], "t")


def ended(**changed: Any) -> dict[str, Any]:
    return {
        "id": "1", "submitted_at": 1000.0, "begin_at": None, "started_at": 1010.0, "elapsed_s": 50.0, "user": "anna",
        "name": "train", "gpus": [{"uuid": "GPU-1"}], "time_limit_s": 3600.0, **changed,
    }  # fmt: skip


def test_history_becomes_a_trace() -> None:
    """Run jobs with GPUs are kept, a later begin is the submission, the rest is counted by reason."""
    found = from_history([
        ended(), ended(id="2", begin_at=1100.0), ended(id="3", gpus=[]), ended(id="4", started_at=None),
        ended(id="5", elapsed_s=None),
    ])  # fmt: skip
    assert [(job.id, job.submit_s, job.duration_s) for job in found.jobs] == [("1", 0.0, 50.0), ("2", 100.0, 50.0)]
    assert found.jobs[0].limit_s == 3600.0
    assert found.left_out == {
        "of jobs without GPUs": 1, "of jobs that never started": 1, "without run time": 1
    }  # fmt: skip
