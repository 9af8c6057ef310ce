"""Jobs as lines: squeue's plain columns, the terminal's tables, one job in full. Imports units and render.

One thing to know: pure functions of the daemon's job objects and `now`; what is unknown prints as `-`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from gpuq.cli.render.fields import draw_text, gpus_text, progress_text, time_text, used_gpu_text, who_name
from gpuq.cli.render.table import Cell, Column, styled, table
from gpuq.units import format_clock, format_duration, format_rough_duration

Job = dict[str, Any]

RUNNING: Final = ("CONFIGURING", "RUNNING", "COMPLETING")
NO_JOBS: Final = "no jobs; try: gpuq submit --gpus 1 -- python train.py"
_STYLE: Final = {"PENDING": "waiting", "CONFIGURING": "running", "RUNNING": "running", "COMPLETING": "running",
                 "COMPLETED": ""}  # fmt: skip
_BAR: Final = " ▏▎▍▌▋▊▉"
_RUNNING_COLUMNS: Final = (
    Column("ID", right=True), Column("NAME", shrinks=True), Column("ST"), Column("GPUS"), Column("NODE"),
    Column("ELAPSED / LIMIT", right=True), Column("USE"), Column("EXPECTED END"),
)  # fmt: skip
_WAITING_COLUMNS: Final = (
    Column("ID", right=True), Column("NAME", shrinks=True), Column("ST"), Column("GPUS"),
    Column("WHY IT WAITS", wraps=True), Column("STARTS"),
)  # fmt: skip
_ENDED_COLUMNS: Final = (
    Column("ID", right=True), Column("NAME", shrinks=True), Column("ST"), Column("GPUS"), Column("NODE"),
    Column("ELAPSED", right=True), Column("EXIT", right=True), Column("ENDED"), Column("REASON", wraps=True),
)  # fmt: skip


def collapsed(jobs: Iterable[Job]) -> list[Job]:
    """The jobs, with the waiting tasks of each array (of one reason) put together as `45_[4-12%3]`."""
    result: list[Job] = []
    groups: dict[tuple[Any, ...], Job] = {}
    for job in jobs:
        if job.get("state") != "PENDING" or job.get("task") is None:
            result.append(job)
            continue
        key = (job.get("array"), job.get("reason"), job.get("held"))
        group = groups.get(key)
        if group is None:
            group = groups[key] = {**job, "tasks_together": []}
            result.append(group)
        group["tasks_together"].append(int(job["task"]))
    for group in groups.values():
        tasks = group["tasks_together"]
        if len(tasks) > 1:
            limit = f"%{group['array_limit']}" if group.get("array_limit") else ""
            group["id"] = f"{group['array']}_[{spans(tasks)}{limit}]"
    return result


def spans(numbers: Sequence[int]) -> str:
    """`1-3,5` for 1, 2, 3, 5."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def terminal_view(
    jobs: list[Job], summary: dict[str, Any] | None, use: dict[str, float], *, own: str, now: float, colour: bool,
    width: int,
) -> list[str]:  # fmt: skip
    """The tables of running, waiting and ended jobs under one line that sums up."""
    running = [job for job in jobs if job["state"] in RUNNING]
    waiting = collapsed(job for job in jobs if job["state"] == "PENDING")
    ended = [job for job in jobs if job["state"] not in RUNNING and job["state"] != "PENDING"]
    lines = [summary_line(summary, colour, width)] if summary else []
    rows: list[list[Cell]]
    if running:
        rows = [_running_row(job, use, own, now) for job in running]
        lines += ["", *table(_RUNNING_COLUMNS, rows, colour=colour, width=width, indent=1)]
    if waiting:
        rows = [_waiting_row(job, own, now) for job in waiting]
        lines += ["", *table(_WAITING_COLUMNS, rows, colour=colour, width=width, indent=1)]
    if ended:
        lines += ["", *ended_table(ended, own=own, now=now, colour=colour, width=width)]
    return lines if jobs else [*lines, NO_JOBS]


def summary_line(summary: dict[str, Any], colour: bool, width: int) -> str:
    """`2 running · 3 waiting` on the left, GPUs and Impact Factor on the right."""
    counts = summary.get("counts") or {}
    running = sum(counts.get(state, 0) for state in RUNNING)
    parts = [(f"{running} running", "running"), (f"{counts.get('PENDING', 0)} waiting", "waiting")]
    if summary.get("failed_today"):
        parts.append((f"{summary['failed_today']} failed today", "trouble"))
    right = f"{_number(summary.get('gpus_busy'))} of {_number(summary.get('gpus_total'))} GPUs busy"
    if summary.get("impact_factor_today") is not None:
        right += f" · Impact Factor {summary['impact_factor_today']:.2f} today"
    left = " · ".join(text for text, _ in parts)
    gap = max(3, width - 4 - len(left) - len(right))
    shown = " · ".join(styled(text, style if not text.startswith("0 ") else "", colour) for text, style in parts)
    return f"{shown}{' ' * gap}{right}"


def _number(value: Any) -> str:
    return "-" if value is None else str(value)


def _running_row(job: Job, use: dict[str, float], own: str, now: float) -> list[Cell]:
    elapsed = f"{format_duration(job.get('elapsed_s'))} / {format_duration(job.get('time_limit_s'))}"
    style = "trouble" if job.get("stopping") else _STYLE[job["state"]]
    end = job.get("expected_end_at")
    return [
        Cell(job["id"]), Cell(who_name(job, own)), Cell(job["code"], style), Cell(gpus_text(job)),
        Cell(job.get("node") or "-"), Cell(elapsed), Cell(use_bar(use.get(job["id"]))),
        Cell(f"~{format_clock(end, now)}" if end is not None else "-"),
    ]  # fmt: skip


def _waiting_row(job: Job, own: str, now: float) -> list[Cell]:
    why = job.get("message") or job.get("reason") or "-"
    start = job.get("expected_start_at")
    starts = f"~{format_clock(start, now)}" if start is not None else "-"
    if start is not None and job.get("node"):
        starts += f" on {job['node']}"
    held = "trouble" if job.get("held") else "waiting"
    return [
        Cell(job["id"]), Cell(who_name(job, own)), Cell(job["code"], held), Cell(gpus_text(job)), Cell(why),
        Cell(starts),
    ]  # fmt: skip


def ended_table(jobs: list[Job], *, own: str, now: float, colour: bool, width: int | None) -> list[str]:
    """The table of ended jobs."""
    rows = []
    for job in jobs:
        style = _STYLE.get(job["state"], "trouble")
        ended = job.get("ended_at")
        elapsed = job.get("run_s") if job.get("run_s") is not None else job.get("elapsed_s")
        rows.append([
            Cell(job["id"]), Cell(who_name(job, own)), Cell(job["code"], style), Cell(gpus_text(job)),
            Cell(job.get("node") or "-"), Cell(format_duration(elapsed)), Cell(exit_text(job)),
            Cell(format_clock(ended, now) if ended is not None else "-"), Cell(reason_text(job)),
        ])  # fmt: skip
    return table(_ENDED_COLUMNS, rows, colour=colour, width=width, indent=1)


def exit_text(job: Job) -> str:
    """`0`, `1`, `TERM` for a signal, `-` when nobody saw the end."""
    if job.get("exit_signal"):
        from gpuq.units import signal_name

        return signal_name(int(job["exit_signal"])).removeprefix("SIG")
    return "-" if job.get("exit_code") is None else str(job["exit_code"])


def reason_text(job: Job) -> str:
    """Why it ended as it did; nothing for a plain success."""
    if job.get("message"):
        return str(job["message"])
    reason = job.get("reason")
    return "" if reason in (None, "None") else str(reason)


def use_bar(share: float | None) -> str:
    """`████▌ 91%` for 0.91; `-` when unknown."""
    if share is None:
        return "-"
    eighths = max(0, min(40, round(share * 40)))
    bar = "█" * (eighths // 8) + (_BAR[eighths % 8] if eighths % 8 else "")
    return f"{bar:<5} {round(share * 100):>3}%"


def job_in_full(job: Job, now: float) -> list[str]:
    """Everything known of one job, as aligned `name  value` lines."""
    facts = [(name, value) for name, value in _facts(job, now) if value not in (None, "", "-")]
    return table((Column(""), Column("")), [[Cell(name), Cell(str(value))] for name, value in facts], heads=False)


def _facts(job: Job, now: float) -> list[tuple[str, Any]]:
    asked = f"{gpus_text(job)} GPU" if job.get("gpus_asked") else "none"
    held = ", ".join(f"#{gpu['index']} {gpu['type']} ({gpu['uuid']})" for gpu in job.get("gpus") or ())
    memory = (
        ("GPU memory", "gpu_memory_mib"), ("memory", "memory_mib"), ("largest memory", "max_rss_mib"),
        ("largest GPU memory", "used_memory_mib"),
    )  # fmt: skip
    from gpuq.units import format_bytes, format_mib

    facts: list[tuple[str, Any]] = [
        ("job", job["id"]), ("name", job.get("name")), ("user", job.get("user")),
        ("state", f"{job['state']} ({job['code']})"), ("reason", reason_text(job)), ("stopping", job.get("stopping")),
        ("command", job.get("command")), ("directory", job.get("cwd")), ("GPUs asked", asked),
        ("node", job.get("node")),
        ("GPUs", held), ("CPUs", job.get("cpus")),
        *((name, format_mib(job[key]) if job.get(key) is not None else None) for name, key in memory),
        ("submitted", time_text(job.get("submitted_at"))), ("begin", time_text(job.get("begin_at"))),
        ("started", time_text(job.get("started_at"))), ("ended", time_text(job.get("ended_at"))),
        ("progress", progress_text(job)),
        ("elapsed", format_duration(job.get("elapsed_s"))), ("time limit", format_duration(job.get("time_limit_s"))),
    ]  # fmt: skip
    for name, key in (("expected start", "expected_start_at"), ("expected end", "expected_end_at")):
        if job.get(key) is not None:
            away = f"in {format_rough_duration(job[key] - now)}" if job[key] > now else "overdue"
            facts.append((name, f"~{format_clock(job[key], now)} ({away})"))
    dropped = job.get("log_dropped_bytes")
    return [
        *facts, ("GPU use", used_gpu_text(job)), ("draw per GPU", draw_text(job)),
        ("exit code", exit_text(job)), ("CPU time", format_duration(job.get("cpu_s"))),
        ("priority", job.get("priority")), ("restarts", job.get("restarts")),
        ("stopped for others", job.get("evictions")), ("attempt", job.get("attempt_number")),
        ("depends on", job.get("dependency")), ("output", job.get("stdout")), ("error output", job.get("stderr")),
        ("log left out", format_bytes(dropped) if dropped else None), ("comment", job.get("comment")),
        ("impact", f"{job['impact']:.2f}" if job.get("impact") is not None else None),
    ]  # fmt: skip
