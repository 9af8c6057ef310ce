"""Two jobs on the same GPUs."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest

from gpuq.learn.interference import prior_speed
from gpuq.sim.cluster import parse_cluster
from gpuq.sim.experiment import prepare, simulate
from gpuq.sim.picture import rows_of
from gpuq.sim.sharing import utilisation_of, weight_of
from gpuq.sim.trace import TraceJob, read_shipped
from gpuq.sim.world import SimJob, World


def test_speeds_of_partners() -> None:
    """Light ones run as if alone, two busy ones at 0.62; nothing leaves 0.3 to 1."""
    assert prior_speed(0.1, 0.2) == 1.0
    assert prior_speed(1.0, 1.0) == pytest.approx(0.62)
    assert (weight_of(0.3), weight_of(0.5), weight_of(0.9)) == (0, 1, 2)


def test_utilisation_follows_the_model_or_the_seed() -> None:
    """Equal models are equally busy with any seed; jobs without one differ and repeat."""
    assert utilisation_of("1", "LM|10", 0) == utilisation_of("2", "LM|10", 5)
    drawn = [utilisation_of(str(number), "", 3) for number in range(50)]
    assert drawn == [utilisation_of(str(number), "", 3) for number in range(50)]
    assert len(set(drawn)) > 5


class Join:
    """Everybody joins the job that runs."""

    name = "join"

    def schedule(self, world: World) -> None:
        for job in list(world.waiting.values()):
            host = next((each for each in world.running.values() if each.partner is None), None)
            if host is not None and host.placement is not None:
                world.start(job, host.placement, partner=host)
            elif not world.running:
                world.start(job, ((0, 1),))

    def wake_s(self, world: World) -> float:
        return inf


def test_progress_is_exact_when_partners_come_and_go() -> None:
    """Job a is alone, with b at 0.62, alone, with c, and c ends alone; computed by hand."""
    traced = [TraceJob(name, at_s, run_s, 1) for name, at_s, run_s in (("a", 0, 200), ("b", 50, 62), ("c", 160, 62))]
    jobs = [SimJob(job, order, job.duration_s, job.duration_s, (1.0,)) for order, job in enumerate(traced)]
    world = World(parse_cluster("V100:1"), jobs, keep_runs=True, sharing=True)
    world.run(Join())
    # a: 50 alone, 62 in 100 s with b, 10 alone, so 78 are left at 160 s; c needs 100 s with it, and a does 62 in them
    assert {job.id: job.end_s for job in world.ended} == pytest.approx({"b": 150.0, "c": 260.0, "a": 276.0})
    assert [(run.job, run.partner) for run in world.runs or ()] == [
        ("a", ""), ("b", "a"), ("a", "b"), ("a", ""), ("c", "a"), ("a", "c"), ("a", "")
    ]  # fmt: skip
    assert world.board.free == [1]


def test_lucid_shares_only_where_it_may() -> None:
    """With sharing the mean completion time falls and stays above its bound; never are three on a GPU."""
    cluster = parse_cluster("V100:8")
    alone, shared = (prepare(read_shipped("small"), cluster, 0.9, None, sharing) for sharing in (False, True))
    plain, packed = simulate(alone, "lucid", keep_runs=True), simulate(shared, "lucid", keep_runs=True, energy=True)
    assert not any(run.partner for run in plain.runs)
    assert plain.row.mean_jct_s == simulate(alone, "saf").row.mean_jct_s
    assert any(run.partner for run in packed.runs)
    assert shared.lower_bound_s <= packed.row.mean_jct_s < plain.row.mean_jct_s
    rows: dict[int, list[tuple[float, float, frozenset[str]]]] = {}
    for row, run in rows_of(cluster, packed.runs):
        rows.setdefault(row, []).append((run.start_s, run.end_s, frozenset((run.job, run.partner))))
    for spans in rows.values():
        distinct = sorted(set(spans), key=lambda span: span[:2])
        assert all(first[1] <= second[0] + 1e-3 for first, second in pairwise(distinct))
