"""Run times that were recorded on a known GPU type, replayed on another."""

from __future__ import annotations

import pytest

from gpuq.hardware.catalogue import relative_speed
from gpuq.sim.cluster import parse_cluster
from gpuq.sim.experiment import prepare
from gpuq.sim.history import from_history
from gpuq.sim.sacct import parse_sacct


def test_an_export_that_names_types_is_scaled_to_the_fastest_type() -> None:
    """One hour on an A100 is longer on V100s by the catalogue; jobs without a type or with two keep their hour."""
    tres = ("gres/gpu=2,gres/gpu:a100=2", "gres/gpu=2", "gres/gpu:a100=1,gres/gpu:v100=1", "gres/gpu:strange=2")
    rows = [f"{at}|{at}|3600|{each}|100" for at, each in enumerate(tres, 1)]
    trace = parse_sacct(["JobIDRaw|Submit|ElapsedRaw|AllocTRES|TimelimitRaw", *rows], "week")
    setting = prepare(trace, parse_cluster("V100:8"), None)
    factor = (relative_speed("a100") or 0.0) / (relative_speed("V100") or 1.0)
    assert factor > 1
    assert [job.duration_s for job in setting.trace.jobs] == pytest.approx([3600 * factor, 3600, 3600, 3600])
    assert setting.trace.jobs[0].limit_s == pytest.approx(6000 * factor)
    assert setting.trace.scaled == 1


def test_gpuqs_own_history_is_scaled_by_the_gpus_of_each_job() -> None:
    """A job of two V100s is shorter on A100s; one on GPUs of two types keeps its run time."""
    kinds = (("V100", "V100"), ("V100", "A100"))
    jobs = [
        {
            "id": str(at), "submitted_at": float(at), "started_at": 9.0, "elapsed_s": 600.0,
            "gpus": [{"type": kind} for kind in each],
        }
        for at, each in enumerate(kinds)
    ]  # fmt: skip
    setting = prepare(from_history(jobs), parse_cluster("A100:8"), None)
    factor = (relative_speed("V100") or 0.0) / (relative_speed("A100") or 1.0)
    assert [job.duration_s for job in setting.trace.jobs] == pytest.approx([600 * factor, 600])
    assert setting.trace.scaled == 1
