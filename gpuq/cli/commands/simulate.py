"""gpuq simulate: what scheduling policies would make of a trace."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gpuq.cli import output
from gpuq.cli import simulation_options as typed
from gpuq.cli.options import JSON, Argument, Command, Option, Values
from gpuq.cli.simulation_inputs import trace_and_gpus
from gpuq.errors import UsageError, UserError

if TYPE_CHECKING:
    from gpuq.sim.experiment import Outcome, Setting

_POLICIES = "impact,srsf,sjf,las2d,easy,fifo"
_FIXED_POLICIES = "impact,greedy,sjf,saf,easypp,easy,fifo"


def simulate(values: Values) -> int:
    """Run every policy with every seed, then print a table or JSON."""
    from gpuq.sim.experiment import simulate as run
    from gpuq.sim.policies.registry import find_policy

    preemptible = typed.preemptible(values)
    names = typed.names(values.text("policy") or (_FIXED_POLICIES if preemptible == 0 else _POLICIES))
    for name in names:
        entry = find_policy(name)
        if entry.stops_jobs and entry.make_fixed is None and preemptible == 0:
            option = "--fixed" if values.flag("fixed") else "--preemptible 0"
            raise UsageError(f"{name} stops running jobs, and {option} forbids it.", "Leave it out of --policy.")
    setting = _setting(values)
    seeds = typed.number(values, "seeds", 1000, default=1)
    restart_s = typed.restart_s(values)
    predictions = typed.predictions(values)
    outcomes = []
    for name in names:
        for seed in range(seeds):
            progress = _Progress(f"{name}, seed {seed}", len(setting.trace.jobs))
            outcome = run(
                setting, name, seed, predictions, restart_s,
                keep_runs=bool(values.text("plot")) and seed == 0, preemptible=preemptible,
                energy=values.flag("energy"),
                on_progress=progress.show,
            )  # fmt: skip
            outcomes.append(outcome)
    _Progress.clear()
    if values.text("plot"):
        _draw(values.text("plot") or "", setting, outcomes)
    if values.flag("json"):
        output.write_json({"schema": 1, "rows": [outcome.row._asdict() for outcome in outcomes]})
    else:
        output.write_lines(_lines(setting, outcomes, predictions, preemptible))
    return 0


def _setting(values: Values) -> Setting:
    from pathlib import Path

    from gpuq.sim.cluster import parse_cluster
    from gpuq.sim.experiment import prepare
    from gpuq.sim.speeds import read_table

    trace, gpus = trace_and_gpus(values)
    speeds = values.text("speeds")
    cluster = parse_cluster(gpus, typed.number(values, "nodes_of", 1024, default=8))
    table = read_table(Path(speeds) if speeds else None)
    return prepare(trace, cluster, typed.load(values), table, values.flag("sharing"))


class _Progress:
    """One line on a terminal's standard error."""

    def __init__(self, what: str, jobs: int) -> None:
        self._what, self._jobs, self._shown = what, jobs, 0

    def show(self, ended: int) -> None:
        """At most fifty times."""
        if sys.stderr.isatty() and (ended - self._shown) * 50 >= self._jobs:
            self._shown = ended
            sys.stderr.write(f"\r\x1b[K{self._what}: {100 * ended // self._jobs}%")
            sys.stderr.flush()

    @staticmethod
    def clear() -> None:
        """Take the line away."""
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")


def _draw(path: str, setting: Setting, outcomes: list[Outcome]) -> None:
    from pathlib import Path

    from gpuq.sim.picture import page

    try:
        Path(path).write_text(page(setting, outcomes), encoding="utf-8")
    except OSError as error:
        raise UserError(f"The picture {path} cannot be written: {error.strerror}.", "Give another --plot.") from None


def _lines(setting: Setting, outcomes: list[Outcome], predictions: str, preemptible: float | None) -> list[str]:
    from gpuq.cli.render.simulation import lines

    return lines(setting, [outcome.row for outcome in outcomes], output.coloured(), predictions, preemptible)


_EPILOG = (
    "Without a trace: a shipped one, small (260 jobs, 8 GPUs); mixed has three GPU types. A trace is a CSV file with "
    "the columns submit_s, duration_s and gpus, model and batch_size where speeds differ, and preemptible (1 or 0: it "
    "may be stopped once it runs) where that differs; or what Slurm writes "
    "with sacct -aP -o JobIDRaw,Submit,Start,End,ElapsedRaw,AllocTRES,User,JobName,State,Timelimit."
)
_OPTIONS: tuple[Any, ...] = (
    Option(("--history",), "Replay gpuq's own jobs that ended since: 30d; on its GPUs unless told.", "TIME"),
    Option(("--gpus",), "The cluster: A100:16,V100:8.", "TYPE:COUNT,..."),
    Option(("--nodes-of",), "GPUs per node; 8 unless told.", "N"),
    Option(("--policy",), f"Which ones; {_POLICIES} unless told.", "NAME,..."),
    Option(("--load",), "Stretch submissions so that this share of the GPU time is asked for: 0.8.", "SHARE"),
    Option(("--seeds",), "How many draws of prediction errors.", "N"),
    Option(("--predictions",), "helios: with published errors (default); learnt from ended jobs; perfect.", "KIND"),
    Option(("--fixed",), f"Nothing may be stopped; then {_FIXED_POLICIES} unless told."),
    Option(
        ("--preemptible",), "Share of the jobs that may be stopped, drawn by the seed; else as the trace says.", "SHARE"
    ),
    Option(("--restart",), "What a stopped job loses when it runs again; 60s unless told.", "TIME"),
    Option(("--speeds",), "Throughput table; Gavel's measurements unless told.", "FILE", completes="files"),
    Option(("--sharing",), "Two jobs may share GPUs; lucid does so."),
    Option(("--energy",), "Estimate the energy of machines and GPUs up to the last completion."),
    Option(("--plot",), "Draw who ran where and when into an HTML file.", "FILE", completes="files"),
    JSON,
)
COMMAND = Command(
    "Replay a job trace on simulated GPUs under several scheduling policies, and compare completion times (JCT) with a "
    "lower bound that no schedule can beat.",
    simulate, _OPTIONS,
    Argument("trace", "TRACE", "CSV file or sacct export, or small, or mixed.", required=False, completes="files"),
    _EPILOG,
)  # fmt: skip
