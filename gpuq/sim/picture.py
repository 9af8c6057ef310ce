"""Who ran where and when, and how completion times are distributed, as one HTML page. Imports the rest of sim.

One chart per policy on one time axis: a row per GPU, a bar per stay of a job. Below them the share of jobs that had
completed within a given time, one line per policy, on a logarithmic axis.

One thing to know: the page is plain SVG without scripts or links, so it can be mailed and opens anywhere. A world only
counts GPUs per node; the rows are filled here, each stay on the GPUs of its node that are free longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log10
from typing import Final

from gpuq.sim.cluster import Cluster
from gpuq.sim.experiment import Outcome, Setting
from gpuq.sim.world import Run
from gpuq.units import format_rough_duration

_WIDTH: Final = 1100
_LEFT: Final = 110  # for names of nodes
_COLOURS: Final = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377")
_LINES: Final = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#555555", "#000000")
_MOST_TICKS: Final = 10
_HOUR_S: Final = 3600.0
_DAY_S: Final = 86400.0
_STEPS_S: Final = (
    60.0, 600.0, 1800.0, _HOUR_S, 2 * _HOUR_S, 6 * _HOUR_S, 12 * _HOUR_S, _DAY_S, 2 * _DAY_S, 5 * _DAY_S, 10 * _DAY_S,
    20 * _DAY_S, 50 * _DAY_S, 100 * _DAY_S, 365 * _DAY_S,
)  # fmt: skip
_MARKS_S: Final = (
    1.0, 10.0, 60.0, 600.0, _HOUR_S, 6 * _HOUR_S, _DAY_S, 7 * _DAY_S, 30 * _DAY_S, 365 * _DAY_S,
)  # fmt: skip


def page(setting: Setting, outcomes: Sequence[Outcome]) -> str:
    """The whole document; charts only of outcomes whose runs were kept."""
    drawn = [outcome for outcome in outcomes if outcome.runs]
    until_s = max((run.end_s for outcome in drawn for run in outcome.runs), default=1.0)
    charts = "\n".join(_chart(setting.cluster, outcome, until_s) for outcome in drawn)
    title = f"{escape(setting.trace.name)}: {len(setting.trace.jobs):,} jobs"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f"<title>gpuq simulate: {title}</title>"
        "<style>body{font:14px sans-serif;margin:2em;color:#222}text{font:11px sans-serif;fill:#444}</style></head>"
        f"<body><h1>{title}</h1><p>Each row is a GPU, each bar a job on it, white an idle GPU; colours only tell "
        "neighbours apart, and the pointer on a bar shows which job it is. JCT: from submission to completion. "
        "Impact Factor: shortest run times over JCTs, 1 when nobody waited.</p>"
        f"{charts}<h2>How many jobs were done within which time</h2>"
        "<p>Further up and further left is better. The time axis is logarithmic.</p>"
        f"{_distribution(drawn)}</body></html>\n"
    )


def rows_of(cluster: Cluster, runs: Sequence[Run]) -> list[tuple[int, Run]]:
    """(row, run) for every GPU of every run. Rows are numbered node by node."""
    first: list[int] = []
    total = 0
    for gpus in cluster.node_gpus:
        first.append(total)
        total += gpus
    free_at_s = [0.0] * total
    found: list[tuple[int, Run]] = []
    taken: dict[tuple[str, float], list[int]] = {}  # rows by job and start, for its partner
    for run in sorted(runs, key=lambda run: (run.start_s, run.end_s)):
        shared = taken.get((run.partner, run.start_s))
        if shared is not None:
            found += [(row, run) for row in shared]
            continue
        mine = taken[run.job, run.start_s] = []
        for node, count in run.placement:
            rows = range(first[node], first[node] + cluster.node_gpus[node])
            for row in sorted(rows, key=lambda row: (free_at_s[row], row))[:count]:
                free_at_s[row] = run.end_s
                found.append((row, run))
                mine.append(row)
    return found


def _chart(cluster: Cluster, outcome: Outcome, until_s: float) -> str:
    height = max(3, min(14, 900 // cluster.gpus))
    scale = (_WIDTH - _LEFT) / until_s
    parts: list[str] = []
    row = 0
    for node, gpus in enumerate(cluster.node_gpus):
        name = f"{cluster.types[cluster.node_types[node]]} node {node + 1}"
        parts.append(f'<text x="0" y="{row * height + 11}">{escape(name)}</text>')
        parts.append(f'<line x1="0" x2="{_WIDTH}" y1="{row * height}" y2="{row * height}" stroke="#ccc"/>')
        row += gpus
    for number, run in rows_of(cluster, outcome.runs):
        colour = _COLOURS[sum(run.job.encode()) % len(_COLOURS)]
        width = max((run.end_s - run.start_s) * scale, 0.3)
        parts.append(
            f'<rect x="{_LEFT + run.start_s * scale:.1f}" y="{number * height}" width="{width:.1f}" '
            f'height="{height - 0.5}" fill="{colour}"><title>job {escape(run.job)}: '
            f"{format_rough_duration(run.start_s)} to {format_rough_duration(run.end_s)}</title></rect>"
        )
    bottom = cluster.gpus * height
    step_s = next((each for each in _STEPS_S if until_s / each <= _MOST_TICKS), until_s)
    for tick in range(int(until_s / step_s) + 1):
        x = _LEFT + tick * step_s * scale
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}" stroke="#888"/>')
        parts.append(f'<text x="{x:.0f}" y="{bottom + 16}" text-anchor="middle">{_short(tick * step_s)}</text>')
    parts.append(f'<text x="{_WIDTH}" y="{bottom + 32}" text-anchor="end">time since the first submission</text>')
    mean = format_rough_duration(outcome.row.mean_jct_s)
    return (
        f"<h2>{escape(outcome.row.policy)}: mean JCT {mean}, Impact Factor {outcome.row.impact_factor:.2f}</h2>"
        f"{_svg(bottom + 38, parts)}"
    )


def _distribution(outcomes: Sequence[Outcome]) -> str:
    height, left = 300, 50
    low = log10(max(1.0, min(outcome.jct_s[0] for outcome in outcomes)))
    high = log10(max(outcome.jct_s[-1] for outcome in outcomes) + 10)
    scale = (_WIDTH - left - 160) / (high - low)
    parts = [
        f'<line x1="{left + (log10(mark_s) - low) * scale:.0f}" x2="{left + (log10(mark_s) - low) * scale:.0f}" y1="0" '
        f'y2="{height}" stroke="#eee"/><text x="{left + (log10(mark_s) - low) * scale:.0f}" y="{height + 16}" '
        f'text-anchor="middle">{_short(mark_s)}</text>'
        for mark_s in _MARKS_S
        if low <= log10(mark_s) <= high
    ]
    parts.append(f'<text x="{_WIDTH - 160}" y="{height + 32}" text-anchor="end">from submission to completion</text>')
    parts += [
        f'<text x="0" y="{height - share * height / 100 + 11:.0f}">{share}%</text>'
        f'<line x1="{left}" x2="{_WIDTH - 160}" y1="{height - share * height / 100:.0f}" '
        f'y2="{height - share * height / 100:.0f}" stroke="#ddd"/>'
        for share in (0, 25, 50, 75, 100)
    ]
    for number, outcome in enumerate(outcomes):
        colour = _LINES[number % len(_LINES)]
        step = max(1, len(outcome.jct_s) // 400)
        points = " ".join(
            f"{left + (log10(max(value, 1.0)) - low) * scale:.1f},{height - height * (at + 1) / len(outcome.jct_s):.1f}"
            for at, value in enumerate(outcome.jct_s)
            if at % step == 0 or at == len(outcome.jct_s) - 1
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        name = escape(outcome.row.policy)
        parts.append(f'<text x="{_WIDTH - 150}" y="{20 + 16 * number}" style="fill:{colour}">{name}</text>')
    return _svg(height + 38, parts)


def _svg(height: int, parts: list[str]) -> str:
    """The parts as one drawing, as wide as the window up to its own width."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'style="width:100%;max-width:{_WIDTH}px">{"".join(parts)}</svg>'
    )


def _short(seconds: float) -> str:
    """A round time in its largest unit."""
    for unit, unit_s in (("d", _DAY_S), ("h", _HOUR_S), ("min", 60.0)):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds else "0"
