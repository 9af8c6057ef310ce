"""Energy of simulated runs, and machines that sleep."""

from __future__ import annotations

import pytest

from gpuq.errors import UserError
from gpuq.sim.cluster import parse_cluster
from gpuq.sim.experiment import prepare, simulate
from gpuq.sim.power import ASLEEP_W, HOST_BUSY_W, HOST_IDLE_W, draw_of, energy_joules
from gpuq.sim.trace import Trace, TraceJob, read_shipped
from gpuq.sim.world import Run, Sleep

CLUSTER = parse_cluster("A100:4", 2)


def test_draws_come_from_the_catalogue() -> None:
    """An A100 (400 W, 53 W idle) holds at 0.57 TDP; one without an idle figure idles at 0.13; a K80 is unknown."""
    assert draw_of("A100") == pytest.approx((228.0, 53.0))
    assert draw_of("A40").idle_w == pytest.approx(39.0)
    with pytest.raises(UserError, match="K80"):
        draw_of("K80")


def test_energy_by_hand() -> None:
    """Two machines of two GPUs; one GPU is held for 1,000 s of 2,000, the other machine for the rest."""
    busy, idle = draw_of("A100")
    runs = [Run("a", ((0, 1),), 0.0, 1000.0), Run("b", ((1, 2),), 1000.0, 2000.0)]
    held_s = 1000.0 + 2000.0
    awake = 2000.0 * 4 * HOST_IDLE_W + held_s * (busy + HOST_BUSY_W) + (8000.0 - held_s) * idle
    assert energy_joules(CLUSTER, runs, None) == pytest.approx(awake)
    slept_s = (1000.0 - 600.0) * 2  # each machine idles 1,000 s and is awake for the first 600 of them
    saved = slept_s * (2 * HOST_IDLE_W + 2 * idle - ASLEEP_W)
    assert energy_joules(CLUSTER, runs, Sleep(after_s=600.0)) == pytest.approx(awake - saved)
    assert energy_joules(CLUSTER, [], None) == 0.0


def test_the_first_job_on_a_sleeping_machine_waits_for_it() -> None:
    """At 0 machines are awake; after 10 idle minutes a job needs 180 s more, and the next one there none."""
    jobs = tuple(TraceJob(str(number), at_s, 100.0, 1) for number, at_s in enumerate((0.0, 500.0, 2000.0, 2050.0)))
    setting = prepare(Trace("t", jobs, {}), parse_cluster("A100:2"), None)
    found = simulate(setting, "sleep_easy", keep_runs=True, energy=True)
    assert [run.end_s - run.start_s for run in found.runs] == pytest.approx([100.0, 100.0, 100.0, 280.0])
    plain = simulate(setting, "easy", energy=True)
    assert plain.runs == ()
    assert (found.row.energy_joules or 0.0) < (plain.row.energy_joules or 0.0)


def test_sleep_saves_where_machines_idle() -> None:
    """At a low load sleeping machines save energy and cost little time; without the wish there is no figure."""
    setting = prepare(read_shipped("small"), parse_cluster("A100:32"), 0.3)
    asleep, awake = (simulate(setting, name, energy=True).row for name in ("sleep_easy", "easy"))
    assert (asleep.energy_joules or 0.0) < 0.85 * (awake.energy_joules or 0.0)
    assert asleep.mean_jct_s < 1.1 * awake.mean_jct_s
    assert simulate(setting, "easy").row.energy_joules is None
