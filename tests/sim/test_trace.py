"""Reading traces, and refusing what is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuq.sim.trace import TraceError, load_of, parse_trace, read_shipped, read_trace, scaled_to_load

HEAD = "job_id,user,submit_s,duration_s,gpus,gpu_type,gpu_fraction,cpus,mem_mb,model,batch_size,status"


def trace(*rows: str) -> list[str]:
    return [HEAD, *rows]


def row(submit_s: object, duration_s: object, gpus: object) -> str:
    return f"1,,{submit_s},{duration_s},{gpus},,,,,,,"


def test_jobs_come_in_order_of_submission() -> None:
    """An unsorted trace is sorted."""
    found = parse_trace(trace(row(50, 10, 1), row(20, 30, 2)), "t")
    assert [(job.submit_s, job.gpus) for job in found.jobs] == [(20.0, 2), (50.0, 1)]


@pytest.mark.parametrize(
    ("submit_s", "duration_s", "gpus", "reason"),
    [
        (-1, 10, 1, "submitted before time zero"),
        (0, 0, 1, "without run time"),
        (0, -5, 1, "without run time"),
        (0, 1e12, 1, "longer than ten years"),
        (0, "inf", 1, "without duration_s"),
        (0, "", 1, "without duration_s"),
        (0, "soon", 1, "with a duration_s that is no number"),
        (0, 10, 0, "without whole GPUs"),
        (0, 10, 1.5, "without whole GPUs"),
        (0, 10, 10**6, "with more than 100,000 GPUs"),
    ],
)
def test_a_row_that_cannot_run_is_counted_under_its_reason(
    submit_s: object, duration_s: object, gpus: object, reason: str
) -> None:
    """Nothing is left out silently."""
    found = parse_trace(trace(row(0, 10, 1), row(submit_s, duration_s, gpus)), "t")
    assert len(found.jobs) == 1
    assert found.left_out == {reason: 1}


def test_missing_columns_are_named() -> None:
    """A file that is no trace is refused with the columns it lacks."""
    with pytest.raises(TraceError, match="duration_s, gpus"):
        parse_trace(["job_id,submit_s", "1,0"], "t")


def test_a_trace_of_nothing_is_refused() -> None:
    """Without a single job there is nothing to simulate, and the reasons are told."""
    with pytest.raises(TraceError, match="1 without run time"):
        parse_trace(trace(row(0, 0, 1)), "t")


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    """The path is named."""
    with pytest.raises(TraceError, match=r"gone\.csv"):
        read_trace(tmp_path / "gone.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(TraceError, match="not UTF-8"):
        read_trace(tmp_path / "binary.csv")


def test_scaling_gives_the_load_asked_for() -> None:
    """GPU time over GPUs times span is what was asked, and the order stays."""
    found = scaled_to_load(read_shipped("small"), 8, 0.9)
    assert load_of(found, 8) == pytest.approx(0.9)
    assert list(found.jobs) == sorted(found.jobs, key=lambda job: job.submit_s)


def test_names_and_estimates_are_read_where_they_are() -> None:
    """The columns name and limit_s may follow; a limit that is no number is none."""
    found = parse_trace(["submit_s,duration_s,gpus,user,name,limit_s", "0,10,1,anna,train,60", "1,10,1,ben,,soon"], "t")
    assert [(job.user, job.name, job.limit_s) for job in found.jobs] == [("anna", "train", 60.0), ("ben", "", None)]
