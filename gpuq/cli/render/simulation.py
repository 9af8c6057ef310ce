"""The table of `gpuq simulate`. Imports render.table and units.

One thing to know: every figure is the mean over the seeds, and the bound stands in the note, so that a reader sees how
much any policy could still gain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuq.cli.render.table import Cell, Column, table
from gpuq.units import format_rough_duration

if TYPE_CHECKING:
    from gpuq.sim.experiment import Row, Setting

_COLUMNS = (
    Column("POLICY"), Column("MEAN JCT", right=True), Column("MEDIAN", right=True), Column("P99", right=True),
    Column("x BOUND", right=True), Column("WORST SLOW-DOWN", right=True), Column("IMPACT FACTOR", right=True),
    Column("RESTARTS", right=True),
)  # fmt: skip


def lines(
    setting: Setting, rows: list[Row], colour: bool, predictions: str, preemptible: float | None = None
) -> list[str]:
    """Best mean first, then what was simulated."""
    by_policy: dict[str, list[Row]] = {}
    for row in rows:
        by_policy.setdefault(row.policy, []).append(row)
    ranked = sorted(by_policy.values(), key=lambda of_one: _mean([row.mean_jct_s for row in of_one]))
    cells = [_cells(of_one) for of_one in ranked]
    columns = _COLUMNS if rows[0].energy_joules is None else (*_COLUMNS, Column("ENERGY", right=True))
    return [*table(columns, cells, colour=colour), "", *_notes(setting, rows, predictions, preemptible)]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _cells(rows: list[Row]) -> list[Cell]:
    mean_s = _mean([row.mean_jct_s for row in rows])
    cells = [
        Cell(rows[0].policy, "head"),
        Cell(format_rough_duration(mean_s)),
        Cell(format_rough_duration(_mean([row.p50_jct_s for row in rows]))),
        Cell(format_rough_duration(_mean([row.p99_jct_s for row in rows]))),
        Cell(f"{mean_s / rows[0].lower_bound_s:.2f}"),
        Cell(f"{_mean([row.max_slowdown for row in rows]):,.0f}"),
        Cell(f"{_mean([row.impact_factor for row in rows]):.3f}"),
        Cell(f"{_mean([float(row.restarts) for row in rows]):,.0f}"),
    ]
    energy = [row.energy_joules for row in rows if row.energy_joules is not None]
    return [*cells, Cell(f"{_mean(energy) / 3.6e6:,.0f} kWh")] if energy else cells


def _notes(setting: Setting, rows: list[Row], predictions: str, preemptible: float | None) -> list[str]:
    trace, cluster = setting.trace, setting.cluster
    gpus = ", ".join(f"{cluster.gpus_of(type_)} x {name}" for type_, name in enumerate(cluster.types))
    load = "all at once" if setting.load is None else f"load {setting.load:.2f}"
    seeds = len({row.seed for row in rows})
    found = [
        f"{len(trace.jobs):,} jobs of {trace.name} on {gpus}; {load}; {predictions} predictions, "
        f"{seeds} seed{'' if seeds == 1 else 's'}.",
        f"No schedule has a mean JCT below {format_rough_duration(setting.lower_bound_s)}.",
        "JCT: from submission to completion. x BOUND: mean JCT over that bound. SLOW-DOWN: JCT over the job's "
        "shortest run time, 10 min at least.",
        "IMPACT FACTOR: sum of shortest run times over sum of JCTs; 1: nobody waited or ran on a slower GPU.",
    ]
    if trace.scaled:
        found.append(
            f"Run times of {trace.scaled:,} jobs are scaled from the GPU type they ran on to the fastest of these GPUs."
        )
    stoppable = sum(job.preemptible for job in trace.jobs)
    if preemptible is not None:
        stoppable = round(preemptible * len(trace.jobs))
    if stoppable < len(trace.jobs):
        found.append(f"{stoppable:,} of these jobs may be stopped once they run; the others stay to their end.")
    if setting.dropped:
        found.append(f"{setting.dropped:,} jobs fit on no set of these GPUs and are left out.")
    found += [f"{count:,} rows {reason} are left out." for reason, count in sorted(trace.left_out.items())]
    return found
