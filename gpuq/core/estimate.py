"""How long a job will run, and how long one that runs still needs. Imports model, state and impact's parameters.

One thing to know: `informed` tells a prediction from a guess. Only informed ones may keep a GPU idle; a time limit
is an upper bound and a default is a default, however precise they look.
"""

from __future__ import annotations

from gpuq.core.impact import Weights
from gpuq.core.model import Job, Record, Stamp
from gpuq.core.state import ClusterState, Shape

SHORTEST_RUN_S = 1.0  # starting and reporting take about that long, whatever runs


class Prediction(Record, frozen=True, kw_only=True):
    """A run time on the reference GPU; the middle half of the runs lies between low_s and high_s."""

    run_s: float
    low_s: float
    high_s: float
    basis: str  # for people: "6 runs of 'vit'"
    informed: bool
    limit_s: float | None = None  # the time limit, in seconds on any GPU
    scales: bool = True  # False: the time is a limit and the same on every GPU

    def on(self, speed: float) -> float:
        """Run time [s] on GPUs of this speed (relative to the reference)."""
        run_s = self.run_s / speed if self.scales and speed > 0 else self.run_s
        if self.limit_s and run_s > self.limit_s:
            run_s = self.limit_s
        return run_s if run_s > SHORTEST_RUN_S else SHORTEST_RUN_S


class Remaining(Record, frozen=True, kw_only=True):
    """What a running job still needs [s]; never 0."""

    left_s: float
    informed: bool


def predict(state: ClusterState, job: Job, weights: Weights | None = None) -> Prediction:
    """The run time of a job by its history, else by its time limit, else by the default."""
    return predict_named(state, job.owner.name, job.spec.name, job.spec.time_limit_s, weights)


def predict_shape(state: ClusterState, shape: Shape, weights: Weights | None = None) -> Prediction:
    """The same for all jobs of one queue."""
    return predict_named(state, shape.user, shape.name, shape.time_limit_s, weights)


def predict_named(
    state: ClusterState, user: str, name: str, limit_s: float | None, weights: Weights | None = None
) -> Prediction:
    """Prediction for a job of this owner and name; limit_s None or 0: no time limit."""
    weights = weights or Weights()
    limit_s = limit_s or None
    runs = state.history.get((user, name))
    if runs:
        return _from_history(runs, name, limit_s, weights)
    if limit_s is not None:
        return Prediction(
            run_s=limit_s, low_s=0.0, high_s=limit_s, basis="its time limit",
            informed=False, limit_s=limit_s, scales=False,
        )  # fmt: skip
    default_s = weights.default_run_s
    basis = f"no history: {default_s / 3600:g} h assumed"
    return Prediction(run_s=default_s, low_s=0.0, high_s=default_s, basis=basis, informed=False)


def _from_history(
    runs: tuple[float, ...], name: str, limit_s: float | None, weights: Weights
) -> Prediction:
    ordered = sorted(runs)
    count = len(ordered)
    middle_s = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    low_s, high_s = ordered[(count - 1) // 4], ordered[-1 - (count - 1) // 4]
    alike = high_s <= weights.informed_spread * max(low_s, SHORTEST_RUN_S)
    return Prediction(
        run_s=middle_s,
        low_s=low_s,
        high_s=high_s,
        basis=f"{count} run{'' if count == 1 else 's'} of '{name}'",
        informed=count >= weights.informed_runs and alike,
        limit_s=limit_s,
    )


def remaining(state: ClusterState, job: Job, stamp: Stamp, weights: Weights | None = None) -> Remaining:
    """What an active job still needs: predicted minus elapsed; one that outlives its prediction gets a longer one."""
    weights = weights or Weights()
    attempt = job.attempt
    assert attempt is not None
    prediction = predict(state, job, weights)
    predicted_s = prediction.on(state.attempt_speed(job))
    since_s = attempt.placed_steady_s if attempt.started_steady_s is None else attempt.started_steady_s
    elapsed_s = max(0.0, stamp.steady_s - since_s)
    if attempt.stop is not None:
        left_s = attempt.stop.at + attempt.stop.grace_s - stamp.wall_s
        return Remaining(left_s=min(max(left_s, SHORTEST_RUN_S), attempt.stop.grace_s + SHORTEST_RUN_S), informed=True)
    informed = prediction.informed and elapsed_s < predicted_s
    while predicted_s <= elapsed_s:
        predicted_s *= weights.outlived_factor
    left_s = predicted_s - elapsed_s
    if prediction.limit_s is not None:
        left_s = min(left_s, max(prediction.limit_s - elapsed_s, job.spec.grace_s))
    return Remaining(left_s=max(left_s, SHORTEST_RUN_S), informed=informed)
