"""The table of transitions, and the words for states."""

from __future__ import annotations

import pytest

from gpuq.core.states import (
    ACTIVE,
    CODES,
    FINAL,
    TRANSITIONS,
    JobState,
    Step,
    check_transition,
    parse_state,
)
from gpuq.errors import IllegalTransition, UsageError


def test_every_state_is_pending_active_or_final() -> None:
    """The three groups cover all states and do not overlap."""
    assert {JobState.PENDING} | ACTIVE | FINAL == set(JobState)
    assert not ACTIVE & FINAL
    assert JobState.PENDING not in ACTIVE | FINAL
    assert all(state.is_final == (state in FINAL) and state.holds_gpus == (state in ACTIVE) for state in JobState)


def test_a_final_state_is_left_only_by_a_requeue() -> None:
    """No other step starts from a final state, and a requeue leads to PENDING only."""
    for (state, step), targets in TRANSITIONS.items():
        if state in FINAL:
            assert step is Step.REQUEUED
            assert targets == {JobState.PENDING}


def test_only_a_placement_gives_a_pending_job_gpus() -> None:
    """From PENDING the one way into an active state is to be placed, and it leads to CONFIGURING."""
    ways = {(step, target) for (state, step), targets in TRANSITIONS.items() if state is JobState.PENDING
            for target in targets if target in ACTIVE}  # fmt: skip
    assert ways == {(Step.PLACED, JobState.CONFIGURING)}


@pytest.mark.parametrize("state", sorted(ACTIVE))
def test_an_attempt_may_end_anyhow_from_every_active_state(state: JobState) -> None:
    """An attempt that outlived a daemon may be reported as ended without having been seen running."""
    assert TRANSITIONS[(state, Step.ENDED)] == FINAL


@pytest.mark.parametrize("state", sorted(JobState))
@pytest.mark.parametrize("step", sorted(Step))
def test_the_table_alone_decides(state: JobState, step: Step) -> None:
    """Exactly the targets in the table are allowed; every other one raises and names job, states and step."""
    for target in JobState:
        if target in TRANSITIONS.get((state, step), ()):
            check_transition("7", state, step, target)
            continue
        with pytest.raises(IllegalTransition) as caught:
            check_transition("7", state, step, target)
        for word in ("7", state.value, target.value, step.value):
            assert word in caught.value.message


def test_codes_are_unique_and_complete() -> None:
    """Every state has a code of its own, as squeue prints them."""
    assert set(CODES) == set(JobState)
    assert len(set(CODES.values())) == len(CODES)
    assert JobState.PENDING.code == "PD"
    assert JobState.OUT_OF_MEMORY.code == "OOM"


@pytest.mark.parametrize("text", ["running", "R", " r ", "RUNNING"])
def test_a_state_is_known_by_word_and_code_in_any_case(text: str) -> None:
    """People may type the word or the code."""
    assert parse_state(text) is JobState.RUNNING


def test_an_unknown_state_is_refused_with_the_list() -> None:
    """The hint names what is known."""
    with pytest.raises(UsageError) as caught:
        parse_state("sleeping")
    assert "sleeping" in caught.value.message
    assert "PENDING (PD)" in (caught.value.hint or "")
