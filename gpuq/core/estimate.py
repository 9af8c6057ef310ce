"""How long a job will run, and how long one that runs still needs. Imports memory, model, progress, state,
quantiles and impact's parameters.

A run time is predicted from the most specific history that has enough runs: the owner's same command on as many GPUs,
the owner's jobs of the same name, all of the owner's jobs, everyone's; then from the time limit, then by default.

One thing to know: `informed` tells a prediction from a guess. Only informed ones may keep a GPU idle; a time limit
is an upper bound, a default is a default, and what else somebody ran says little, however precise they look.
"""

from __future__ import annotations

from math import inf
from typing import Final

from msgspec.structs import replace

from gpuq.core.impact import Weights
from gpuq.core.memory import EVERYONE
from gpuq.core.model import Job, Record, Stamp
from gpuq.core.progress import measured_left_s
from gpuq.core.quantiles import mean_left_s, quantiles
from gpuq.core.state import ClusterState, Shape
from gpuq.units import format_rough_duration

SHORTEST_RUN_S = 1.0  # starting and reporting take about that long, whatever runs
OWNER_RUNS: Final = 5  # from which an owner's other jobs say something
EVERYONE_RUNS: Final = 10


class Prediction(Record, frozen=True, kw_only=True):
    """A run time on the reference GPU, with the bands that hold half and 90% of such runs."""

    run_s: float
    low_s: float
    high_s: float
    basis: str  # for people: "6 runs of 'vit'"
    informed: bool
    limit_s: float | None = None  # the time limit, in seconds on any GPU
    scales: bool = True  # False: the time is a limit and the same on every GPU
    lowest_s: float = 0.0  # of the 90% band
    highest_s: float | None = None  # None: not known
    runs_s: tuple[float, ...] = ()  # what it rests on, oldest first

    def on(self, speed: float) -> float:
        """Run time [s] on GPUs of this speed (relative to the reference)."""
        run_s = self.run_s / speed if self.scales and speed > 0 else self.run_s
        if self.limit_s and run_s > self.limit_s:
            run_s = self.limit_s
        return run_s if run_s > SHORTEST_RUN_S else SHORTEST_RUN_S

    def quantiles_on(self, speed: float) -> tuple[float, ...]:
        """What core.quantiles expects of a run [s] on GPUs of this speed, the time limit at most; () without runs."""
        if not self.runs_s or speed <= 0:
            return ()
        most_s = self.limit_s or inf
        return tuple(min(run_s / speed, most_s) for run_s in quantiles(self.runs_s))


class Remaining(Record, frozen=True, kw_only=True):
    """What a running job still needs [s]; never 0."""

    left_s: float
    informed: bool


def predict(state: ClusterState, job: Job, weights: Weights | None = None) -> Prediction:
    """The run time of a job by the most specific history, else by its time limit, else by the default."""
    command = state.memory.known_command(job.owner.name, job.spec)
    found = predict_named(state, job.owner.name, job.spec.name, job.spec.time_limit_s, weights, command)
    return going_on(found, job.kept_s, weights or Weights()) if job.kept_s else found


def predict_shape(state: ClusterState, shape: Shape, weights: Weights | None = None) -> Prediction:
    """The same for all jobs of one queue."""
    found = predict_named(state, shape.user, shape.name, shape.time_limit_s, weights, shape.command)
    return going_on(found, shape.kept_s, weights or Weights()) if shape.kept_s else found


def predict_named(
    state: ClusterState,
    user: str,
    name: str,
    limit_s: float | None,
    weights: Weights | None = None,
    command: str = "",
) -> Prediction:
    """Prediction for a job of this owner, name and known command; limit_s None or 0: no time limit."""
    weights = weights or Weights()
    limit_s = limit_s or None
    runs = state.memory.commands.get((user, command)) if command else None
    if runs:
        return _from_history(runs, "of this command", limit_s, weights)
    runs = state.memory.history.get((user, name))
    if runs:
        return _from_history(runs, f"of '{name}'", limit_s, weights)
    for group, least in ((user, OWNER_RUNS), (EVERYONE, EVERYONE_RUNS)):
        runs = state.memory.general.get(group, ())
        if len(runs) >= least:
            return _from_history(runs, f"of {group or 'everyone'}", limit_s, weights, alike=False)
    if limit_s is not None:
        return Prediction(
            run_s=limit_s, low_s=0.0, high_s=limit_s, highest_s=limit_s, basis="its time limit",
            informed=False, limit_s=limit_s, scales=False,
        )  # fmt: skip
    default_s = weights.default_run_s
    basis = f"no history: {default_s / 3600:g} h assumed"
    return Prediction(run_s=default_s, low_s=0.0, high_s=default_s, basis=basis, informed=False)


def going_on(prediction: Prediction, kept_s: float, weights: Weights) -> Prediction:
    """What is left of a predicted run of which kept_s [s on the reference GPU] are done, and the cost of a restart."""
    basis = f"{prediction.basis}, less {format_rough_duration(kept_s)} done before it was stopped"
    longer_s = tuple(run_s - kept_s + weights.restart_s for run_s in prediction.runs_s if run_s > kept_s)
    if not longer_s:
        whole_s = max(prediction.run_s, max(prediction.runs_s, default=0.0))
        while whole_s <= kept_s:
            whole_s *= weights.outlived_factor
        left_s = whole_s - kept_s + weights.restart_s
        return replace(
            prediction, run_s=left_s, low_s=0.0, high_s=left_s, lowest_s=0.0, highest_s=None, basis=basis,
            runs_s=(),
        )  # fmt: skip
    found = quantiles(longer_s)
    return replace(
        prediction, run_s=found.middle_s, low_s=found.low_s, high_s=found.high_s, lowest_s=found.lowest_s,
        highest_s=found.highest_s, basis=basis, runs_s=longer_s,
    )  # fmt: skip


def _from_history(
    runs_s: tuple[float, ...], of: str, limit_s: float | None, weights: Weights, alike: bool = True
) -> Prediction:
    """alike: the runs are of such jobs as the one that is predicted, so enough of them are trusted."""
    found = quantiles(runs_s)
    count = len(runs_s)
    close = found.high_s <= weights.informed_spread * max(found.low_s, SHORTEST_RUN_S)
    return Prediction(
        run_s=found.middle_s,
        low_s=found.low_s,
        high_s=found.high_s,
        basis=f"{count} run{'' if count == 1 else 's'} {of}",
        informed=alike and count >= weights.informed_runs and close,
        limit_s=limit_s,
        lowest_s=found.lowest_s,
        highest_s=found.highest_s,
        runs_s=runs_s,
    )


def remaining(state: ClusterState, job: Job, stamp: Stamp, weights: Weights | None = None) -> Remaining:
    """What an active job still needs: by its own reports, else the mean of what earlier runs needed beyond this point.

    One that outlives all of them, or has none to compare with, gets a longer and longer prediction. The former stays
    informed: it needs the more the longer it has run, so nobody waits for it longer than about twice what that saves.
    """
    weights = weights or Weights()
    attempt = job.attempt
    assert attempt is not None
    prediction = predict(state, job, weights)
    speed = state.job_speed(job)
    since_s = attempt.placed_steady_s if attempt.started_steady_s is None else attempt.started_steady_s
    elapsed_s = max(0.0, stamp.steady_s - since_s)
    if attempt.stop is not None:
        left_s = attempt.stop.at + attempt.stop.grace_s - stamp.wall_s
        return Remaining(left_s=min(max(left_s, SHORTEST_RUN_S), attempt.stop.grace_s + SHORTEST_RUN_S), informed=True)
    measured_s = measured_left_s(attempt.progress, since_s, stamp.steady_s)
    informed = measured_s is not None or prediction.informed
    left_s = _expected_left_s(prediction, speed, elapsed_s, weights) if measured_s is None else measured_s
    if prediction.limit_s is not None:
        left_s = min(left_s, max(prediction.limit_s - elapsed_s, job.spec.grace_s))
    return Remaining(left_s=max(left_s, SHORTEST_RUN_S), informed=informed)


def _expected_left_s(prediction: Prediction, speed: float, elapsed_s: float, weights: Weights) -> float:
    """The mean over the runs that took longer than this; without any, the prediction, grown beyond what has passed."""
    speed = speed if speed > 0 else 1.0
    mean_s = mean_left_s(prediction.runs_s, elapsed_s * speed)
    if mean_s is not None:
        return mean_s / speed
    predicted_s = max(prediction.on(speed), max(prediction.runs_s, default=0.0) / speed)
    while predicted_s <= elapsed_s:
        predicted_s *= weights.outlived_factor
    return predicted_s - elapsed_s
