"""Which history a prediction rests on, and what a running job still needs."""

from __future__ import annotations

import pytest

from gpuq.core import memory as memory_module
from gpuq.core import snapshot
from gpuq.core.estimate import predict, predict_shape, remaining
from gpuq.core.invariants import check_invariants
from gpuq.core.memory import fingerprint
from gpuq.core.model import AttemptId, GpuUuid, NodeName, Placement
from gpuq.core.requests import Place
from gpuq.core.state import ClusterState
from tests.builders import cluster, finish, job, node, place, remember, spec, stamp, submit
from tests.core.machine_step import ask


def ran(state: ClusterState, run_s: float, **fields: object) -> None:
    """A job that was submitted, ran this long and ended well."""
    id_ = submit(state, **fields)
    place(state, id_, "mill")
    finish(state, id_, run_s=run_s)


def basis(state: ClusterState, **fields: object) -> str:
    """What the prediction of a job submitted now rests on; by its queue the same."""
    id_ = submit(state, **fields)
    found = predict(state, job(state, id_))
    assert predict_shape(state, state.shape_of(job(state, id_))) == found
    check_invariants(state)
    return found.basis


def test_the_most_specific_history_with_enough_runs_decides() -> None:
    """The same command from three runs on, then the name, then the owner, then everyone."""
    state = cluster(node("mill", "A100:8"))
    for _ in range(3):
        ran(state, 100.0, name="vit", argv=("train", "small"))
    ran(state, 900.0, name="vit", argv=("train", "large"))
    assert basis(state, name="vit", argv=("train", "small")) == "3 runs of this command"
    assert basis(state, name="vit", argv=("train", "large")) == "4 runs of 'vit'"
    assert basis(state, name="vit", argv=("train", "small"), gpus=2) == "4 runs of 'vit'"
    assert basis(state, name="new", argv=("new",)) == "no history: 1 h assumed"
    ran(state, 100.0, name="bert", argv=("bert",))
    assert basis(state, name="new", argv=("new",)) == "5 runs of anna"
    assert basis(state, name="new", argv=("new",), owner="ben") == "no history: 1 h assumed"
    for _ in range(5):
        ran(state, 50.0, name="unet", argv=("unet",))
    assert basis(state, name="new", argv=("new",), owner="ben") == "10 runs of everyone"


def test_other_jobs_never_inform() -> None:
    """However many and alike: what else somebody ran keeps no GPU idle, and the time limit still caps it."""
    state = cluster(node("mill", "A100:8"))
    for _ in range(12):
        ran(state, 100.0, name="vit")
    found = predict(state, job(state, submit(state, name="new", argv=("new",), time_limit_s=60.0)))
    assert (found.basis, found.informed, found.on(1.0)) == ("12 runs of anna", False, 60.0)


def test_a_queue_splits_when_a_command_is_known_and_joins_when_it_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting jobs of one name share a queue until one of their commands has three runs."""
    monkeypatch.setattr(memory_module, "HISTORY_NAMES", 1)
    state = cluster(node("mill", "A100:8"))
    remember(state, "vit", 100.0)
    small, large = (submit(state, name="vit", argv=("train", size)) for size in ("small", "large"))
    assert len(state.waiting) == 1
    command = fingerprint(spec(name="vit", argv=("train", "small")))
    state.set_command(("anna", command), (60.0, 60.0))
    assert len(state.waiting) == 1
    state.set_command(("anna", command), (60.0, 60.0, 60.0))
    check_invariants(state)
    assert sorted(map(list, state.waiting.values())) == [[small], [large]]
    state.set_command(("anna", "another"), (1.0,))
    check_invariants(state)
    assert list(map(list, state.waiting.values())) == [[small, large]]


def test_what_was_learnt_outlives_a_restart() -> None:
    """A snapshot keeps runs by command, owner and everyone."""
    state = cluster(node("mill", "A100:8"))
    for run in range(3):
        ran(state, 100.0 + run, name="vit")
    back = snapshot.from_bytes(snapshot.to_bytes(state))
    assert (back.memory.commands, back.memory.general) == (state.memory.commands, state.memory.general)
    assert list(back.memory.general) == ["anna", ""]
    assert all(len(runs) == 3 for runs in back.memory.commands.values())


def test_what_remains_is_conditional_on_what_has_passed() -> None:
    """With runs of 100 s and 1000 s a job that is past 100 s is one of the long ones; beyond all it grows by half."""
    state = cluster(node("mill", "A100"))
    id_ = submit(state, name="vit")
    remember(state, "vit", 100.0, 1000.0)
    place(state, id_, "mill", at=0)
    left = [remaining(state, job(state, id_), stamp(at)).left_s for at in (0.0, 101.0, 1000.0)]
    assert left[0] == pytest.approx(550.0, rel=0.05)
    assert left[1:] == [899.0, 500.0]


def test_what_was_expected_is_kept_with_the_attempt() -> None:
    """As on the GPUs it was placed on, and no longer than the time limit; nothing without history."""
    state = cluster(node("attic", "V100:2"))
    remember(state, "vit", 100.0, 100.0, 100.0)
    known, new = submit(state, name="vit", time_limit_s=300.0), submit(state, name="new")
    for id_, gpu in ((known, 0), (new, 1)):
        placement = Placement(job=id_, node=NodeName("attic"), gpus=(GpuUuid(f"GPU-attic-{gpu}"),))
        ask(state, Place(placement=placement, attempt=AttemptId(f"of-{id_}")))
    kept = [job(state, id_).attempt.predicted_s for id_ in (known, new)]  # type: ignore[union-attr]
    assert kept[0] == pytest.approx((200.0 * 0.2**0.5, 200.0, 200.0, 200.0, 300.0), rel=0.05)
    assert kept[1] == ()
