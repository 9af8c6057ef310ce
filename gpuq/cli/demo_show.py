"""What `gpuq demo` shows: progress while it runs, and the account at the end. Imports units and render.

One thing to know: everything but Progress is a pure function of the daemon's job and GPU objects.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from gpuq.cli import output
from gpuq.cli.render.table import Cell, Column, styled, table

if TYPE_CHECKING:
    from rich.live import Live

Job = dict[str, Any]

RUNNING: Final = ("CONFIGURING", "RUNNING", "COMPLETING")
_COLUMNS: Final = (
    Column("ID", right=True), Column("NAME", shrinks=True), Column("GPUS", right=True), Column("WHERE"),
    Column("STATE"), Column("EXIT", right=True), Column("WAITED", right=True), Column("RAN", right=True),
)  # fmt: skip
_GPU_COLUMNS: Final = (Column("GPU", right=True), Column("TYPE"), Column("HOLDS"))
_ACTIVE_COLUMNS: Final = (
    Column("ID", right=True), Column("NAME"), Column("STATE"), Column("WHERE OR WHY", shrinks=True),
)  # fmt: skip


class Progress:
    """On a terminal a picture that is redrawn, elsewhere one line for each change. Use with `with`."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._live: Live | None = None
        if output.coloured() and output.on_terminal():
            from rich.live import Live

            self._live = Live(transient=True, auto_refresh=False)

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """A remark that stays."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            output.write(text)

    def show(self, jobs: list[Job], gpus: list[dict[str, Any]], passed_s: float) -> None:
        """Show the present."""
        if self._live is None:
            self._say_changes(jobs, passed_s)
            sys.stdout.flush()
            return
        from rich.text import Text

        lines = picture(jobs, gpus, passed_s, output.width())
        self._live.update(Text.from_ansi("\n".join(lines)), refresh=True)

    def _say_changes(self, jobs: list[Job], passed_s: float) -> None:
        for job in jobs:
            if job["state"] in ("CONFIGURING", "COMPLETING"):
                continue  # in between
            if self._states.get(job["id"], "PENDING") != job["state"]:
                output.write(f"{passed_s:5.1f} s  {change_text(job)}")
            self._states[job["id"]] = job["state"]


def change_text(job: Job) -> str:
    """One line for a job that has started or ended."""
    named = f"{job['id']:>5} {job['name']:<12}"
    if job["state"] in RUNNING:
        return f"{named} runs on {where_text(job)}"
    code = exit_text(job)
    return f"{named} {job['state']}" + (f": {job.get('reason')}" if code == "-" else f", exit code {code}")


def where_text(job: Job) -> str:
    """`V100 5-6`, `no GPU`, or `-` for a job that never started."""
    if job.get("node") is None:
        return "-"
    gpus = job.get("gpus") or []
    if not gpus:
        return "no GPU"
    kinds = sorted({str(gpu.get("type") or "GPU") for gpu in gpus})
    return f"{'+'.join(kinds)} {','.join(sorted(str(gpu.get('index')) for gpu in gpus))}"


def exit_text(job: Job) -> str:
    """The exit code, or the signal that ended the job; `-` when it never ran."""
    if job.get("exit_signal") is not None:
        from gpuq.units import signal_name

        return signal_name(int(job["exit_signal"]))
    return "-" if job.get("exit_code") is None else str(job["exit_code"])


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def picture(jobs: list[Job], gpus: list[dict[str, Any]], passed_s: float, width: int) -> list[str]:
    """GPUs with what they hold, then what runs and waits."""
    counts = [(sum(job["state"] in RUNNING for job in jobs), "running", "running"),
              (sum(job["state"] == "PENDING" for job in jobs), "waiting", "waiting")]  # fmt: skip
    counts.append((len(jobs) - counts[0][0] - counts[1][0], "ended", ""))
    words = " · ".join(styled(f"{count} {word}", style, True) for count, word, style in counts)
    names = {job["id"]: job["name"] for job in jobs}
    lines = [f"{words} · {passed_s:.0f} s", ""]
    rows = [[Cell(str(gpu.get("index"))), Cell(str(gpu.get("type"))), _held(gpu, names)] for gpu in gpus]
    lines += table(_GPU_COLUMNS, rows, colour=True, width=width, indent=1)
    shown = [job for job in jobs if job["state"] in RUNNING]
    shown += [job for job in jobs if job["state"] == "PENDING"][: max(0, 14 - len(shown))]
    rows = [_active_row(job) for job in shown]
    return [*lines, "", *table(_ACTIVE_COLUMNS, rows, colour=True, width=width, indent=1)]


def _held(gpu: dict[str, Any], names: dict[str, str]) -> Cell:
    if gpu.get("job"):
        return Cell(f"████ {gpu['job']} {names.get(gpu['job'], '')}", "running")
    return Cell(str(gpu.get("state")), "faint")


def _active_row(job: Job) -> list[Cell]:
    style = "waiting" if job["state"] == "PENDING" else "running"
    place = job.get("message") or job.get("reason") if job["state"] == "PENDING" else where_text(job)
    return [Cell(job["id"]), Cell(job["name"]), Cell(job["state"], style), Cell(str(place or "-"))]


# --- the account at the end -------------------------------------------------------------------------------


def account(jobs: list[Job], released: Callable[[Job], float], gpus: int, impact_factor: float | None) -> list[str]:
    """What ran where, each exit code, the waits, and the figures of the run."""
    rows = [_account_row(job, released(job)) for job in jobs]
    lines = table(_COLUMNS, rows, colour=output.coloured(), width=output.width() if output.on_terminal() else None)
    return [*lines, "", *figures(jobs, released, gpus, impact_factor)]


def _account_row(job: Job, released_at: float) -> list[Cell]:
    style = "" if job["state"] == "COMPLETED" else "waiting" if job["state"] == "CANCELLED" else "trouble"
    started = job.get("started_at")
    waited_s = None if started is None else max(0.0, started - released_at)
    return [
        Cell(job["id"]), Cell(job["name"]), Cell(str(job.get("gpus_asked"))), Cell(where_text(job)),
        Cell(job["state"], style), Cell(exit_text(job)), Cell(_seconds(waited_s)),
        Cell(_seconds(job.get("elapsed_s") if started is not None else None)),
    ]  # fmt: skip


def figures(jobs: list[Job], released: Callable[[Job], float], gpus: int, impact_factor: float | None) -> list[str]:
    """Counts, GPU-hours, occupancy and Impact Factor, in words."""
    counts: dict[str, int] = {}
    for job in jobs:
        counts[job["state"]] = counts.get(job["state"], 0) + 1
    words = ", ".join(f"{count} {state.lower()}" for state, count in sorted(counts.items(), key=lambda item: -item[1]))
    ran = [job for job in jobs if job.get("started_at") is not None and job.get("ended_at") is not None]
    lines = [f"{len(jobs)} jobs: {words}"]
    if not ran:
        return lines
    span_s = max(job["ended_at"] for job in ran) - min(job["submitted_at"] for job in ran)
    gpu_s = sum((job.get("elapsed_s") or 0.0) * len(job.get("gpus") or ()) for job in ran)
    factor = impact_factor_of(ran, released) if impact_factor is None else impact_factor
    share = gpu_s / max(1e-9, span_s * gpus)
    lines.append(f"{gpu_s / 3600:.3f} GPU-hours in {span_s:.1f} s on {gpus} GPUs, {share:.0%} of their time")
    if factor is not None:
        lines.append(f"Impact Factor {factor:.2f} (1.00: nobody waited)")
    return lines


def impact_factor_of(ran: Iterable[Job], released: Callable[[Job], float]) -> float | None:
    """Shortest possible times over actual ones, equal weights: here each run is as long on any GPU."""
    measured = [job for job in ran if job.get("elapsed_s") is not None]
    known = [(float(job["elapsed_s"]), job["ended_at"] - released(job)) for job in measured]
    actual_s = sum(max(best_s, taken_s) for best_s, taken_s in known)
    return sum(best_s for best_s, _ in known) / actual_s if actual_s > 0 else None
