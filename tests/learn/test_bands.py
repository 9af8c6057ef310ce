"""How often reality fell inside the bands that were predicted."""

from __future__ import annotations

from gpuq.learn.bands import Coverage, Outcome, by_group, coverage

BANDS = (10.0, 25.0, 50.0, 75.0, 90.0)


def outcomes(group: str, *runs_s: float) -> list[Outcome]:
    """Jobs of one group with the same prediction."""
    return [Outcome((group,), BANDS, run_s) for run_s in runs_s]


def test_counts() -> None:
    """Edges are inside; what is outside the 90% band is shorter or longer."""
    assert coverage(outcomes("a", 9.0, 10.0, 25.0, 60.0, 75.0, 90.0, 91.0, 1000.0)) == Coverage(8, 3, 5, 1, 2)
    assert coverage(outcomes("a", 25.0, 9.0)).share(1) == 0.5


def test_nothing_is_no_share() -> None:
    """Without jobs a share is unknown, not 0."""
    assert coverage([]).share(0) is None


def test_groups_with_most_jobs_come_first() -> None:
    """Then by name."""
    found = by_group([*outcomes("b", 50.0), *outcomes("a", 50.0), *outcomes("c", 50.0, 1.0)])
    assert [(group, counts.jobs, counts.in_half) for group, counts in found] == [
        (("c",), 2, 1), (("a",), 1, 1), (("b",), 1, 1),
    ]  # fmt: skip
