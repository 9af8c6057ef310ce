"""Who ran where and when, and how completion times are distributed, as one HTML page. Imports the rest of sim.

One chart per policy on one time axis: a row per GPU, a bar per stay of a job. Below them the share of jobs that had
completed within a given time, one line per policy, on a logarithmic axis.

One thing to know: the page is plain SVG without scripts or links, so it can be mailed and opens anywhere. A world only
counts GPUs per node; the rows are filled here, each stay on the GPUs of its node that are free longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import floor, log10
from typing import Final

from gpuq.sim.cluster import Cluster
from gpuq.sim.experiment import Outcome, Setting
from gpuq.sim.world import Run

_WIDTH: Final = 1100
_LEFT: Final = 110  # for names of nodes
_COLOURS: Final = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377")
_LINES: Final = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#555555", "#000000")
_TICKS: Final = 8


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
        f"<body><h1>{title}</h1><p>Each row is a GPU, each bar a job on it; colours only tell neighbours apart. "
        "The axis is the time since the first submission. JCT: from submission to completion. "
        "Impact Factor: shortest run times over JCTs, 1 when nobody waited.</p>"
        f"{charts}<h2>Share of jobs with at most this JCT (logarithmic axis)</h2>{_distribution(drawn)}</body></html>\n"
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
            f'height="{height - 0.5}" fill="{colour}"><title>job {escape(run.job)}: {_hours(run.start_s)} to '
            f"{_hours(run.end_s)}</title></rect>"
        )
    bottom = cluster.gpus * height
    for tick in range(_TICKS + 1):
        at_s = until_s * tick / _TICKS
        anchor = "end" if tick == _TICKS else "start"
        parts.append(
            f'<text x="{_LEFT + at_s * scale:.0f}" y="{bottom + 14}" text-anchor="{anchor}">{_hours(at_s)}</text>'
        )
    mean = _hours(outcome.row.mean_jct_s)
    return (
        f"<h2>{escape(outcome.row.policy)}: mean JCT {mean}, Impact Factor {outcome.row.impact_factor:.2f}</h2>"
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{bottom + 20}">{"".join(parts)}</svg>'
    )


def _distribution(outcomes: Sequence[Outcome]) -> str:
    height, left = 300, 50
    low = floor(log10(max(1.0, min(outcome.jct_s[0] for outcome in outcomes))))
    high = log10(max(outcome.jct_s[-1] for outcome in outcomes) + 10)
    scale = (_WIDTH - left - 160) / (high - low)
    parts = [
        f'<text x="{left + (power - low) * scale:.0f}" y="{height + 14}">{_hours(10.0**power)}</text>'
        for power in range(low, int(high) + 1)
    ]
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
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height + 20}">{"".join(parts)}</svg>'


def _hours(seconds: float) -> str:
    if seconds < 3600:
        return f"{seconds:.0f} s"
    return f"{seconds / 3600:.0f} h" if seconds < 360000 else f"{seconds / 86400:.0f} d"
