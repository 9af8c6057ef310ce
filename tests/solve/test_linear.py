"""Shares of GPU types: programs whose solutions are known."""

from __future__ import annotations

import pytest

from gpuq.solve.linear import ShareGroup, max_min_shares

pytest.importorskip("ortools")


def test_equal_jobs_share_one_gpu() -> None:
    """Four jobs on one GPU have a quarter of the time each."""
    rows = max_min_shares([ShareGroup(4, 1, (1.0,), 1.0)], [1])
    assert rows == [pytest.approx((0.25,), abs=1e-6)]


def test_the_job_that_gains_most_has_the_fast_gpu() -> None:
    """One job is ten times as fast on the first type, the other no faster: each gets its own."""
    groups = [ShareGroup(1, 1, (10.0, 1.0), 5.5), ShareGroup(1, 1, (1.0, 1.0), 1.0)]
    rows = max_min_shares(groups, [1, 1])
    assert rows[0] == pytest.approx((1.0, 0.0), abs=1e-4)
    assert rows[1] == pytest.approx((0.0, 1.0), abs=1e-4)


def test_work_left_in_place_of_fairness_is_the_makespan() -> None:
    """Two jobs of 300 and 100 s on one GPU end together after 400 s: three quarters and one quarter."""
    rows = max_min_shares([ShareGroup(1, 1, (1.0,), 300.0), ShareGroup(1, 1, (1.0,), 100.0)], [1])
    assert [row[0] for row in rows] == pytest.approx([0.75, 0.25], abs=1e-4)


def test_no_share_goes_where_a_job_cannot_run_and_none_exceeds_capacity() -> None:
    """A two-GPU job that runs on one type only, beside jobs that take either."""
    groups = [ShareGroup(1, 2, (0.0, 1.0), 0.5), ShareGroup(3, 1, (2.0, 1.0), 1.5)]
    rows = max_min_shares(groups, [1, 2])
    assert rows[0][0] == 0.0
    for type_, gpus in enumerate((1, 2)):
        assert sum(group.jobs * group.gpus * row[type_] for group, row in zip(groups, rows, strict=True)) <= gpus + 1e-6
    assert all(sum(row) <= 1.0 + 1e-6 for row in rows)


def test_what_fairness_leaves_free_is_given_away() -> None:
    """The slow job is bound by its speed; the other takes all that is left of the two GPUs."""
    rows = max_min_shares([ShareGroup(1, 1, (1.0,), 10.0), ShareGroup(1, 1, (1.0,), 1.0)], [2])
    assert [row[0] for row in rows] == pytest.approx([1.0, 1.0], abs=1e-4)
