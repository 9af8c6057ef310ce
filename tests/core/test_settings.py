"""What may be changed in a running daemon: keys, ranges, who may, what is kept of it."""

from __future__ import annotations

import pytest

from gpuq.core import settings
from gpuq.core.apply import KEPT_CHANGES
from gpuq.core.events import SettingChanged
from gpuq.core.impact import COSTS, MEASURED_COSTS, Weights
from gpuq.core.model import Setting
from gpuq.core.requests import Configure
from gpuq.core.snapshot import from_bytes, to_bytes
from gpuq.core.state import ClusterState
from gpuq.errors import Forbidden, NotFound, UsageError
from tests.builders import WALL_S, tell
from tests.core.machine_step import ANNA, ROOT, ask


def test_every_knob_of_the_weights_fills_a_field() -> None:
    """Each key with a weight names a field of Weights, and what gpuq.toml says by itself is in range."""
    plain = Weights()
    for knob in settings.KNOBS.values():
        if knob.weight:
            assert knob.allows(getattr(plain, knob.weight))


@pytest.mark.parametrize(
    ("key", "typed", "value"),
    [
        ("impact.age", "2", 2.0), ("impact.energy", 0.2, 0.2), ("planner.every", "90s", 90.0),
        ("planner.every", "2", 120.0),
    ],
)
def test_values_are_read_as_gpuq_toml_reads_them(key: str, typed: object, value: float) -> None:
    """Numbers as they are, durations with a unit, or without one in minutes."""
    assert settings.read(key, typed) == value


@pytest.mark.parametrize("typed", ["abc", "", "nan", "inf", "-1", "101", "1" * 400, True, None, [1]])
def test_a_wrong_number_is_refused_with_key_and_range(typed: object) -> None:
    """One sentence names the key, its range and what was given."""
    with pytest.raises(UsageError, match=r"impact\.age must be a number from 0 to 100, not '"):
        settings.read("impact.age", typed)


@pytest.mark.parametrize("typed", ["0s", "2d", "soon", "-3s"])
def test_a_wrong_duration_is_refused_with_key_and_range(typed: str) -> None:
    """Durations too, with the range in seconds."""
    with pytest.raises(UsageError, match=r"planner\.every must be a duration from 1 s to 86400 s"):
        settings.read("planner.every", typed)


def test_an_unknown_key_names_the_nearest() -> None:
    """A slip is answered with the key that was meant, anything else with the list."""
    with pytest.raises(NotFound, match=r"'impact\.enrgy' is not a setting") as slip:
        settings.read("impact.enrgy", "1")
    assert slip.value.hint == "Did you mean 'impact.energy'?"
    with pytest.raises(NotFound) as other:
        settings.read("daemon.socket", "1")
    assert "planner.every" in str(other.value.hint)


def test_a_change_is_kept_with_who_and_when_and_survives_a_snapshot() -> None:
    """The state holds the value, its author and the moment; setting it back leaves the history."""
    state = ClusterState()
    ask(state, Configure(key="impact.age", value=3.0, by=ROOT), at=7.0)
    assert state.settings == {"impact.age": Setting(value=3.0, by=ROOT.name, at=WALL_S + 7.0)}
    again = from_bytes(to_bytes(state))
    assert (again.settings, again.setting_changes) == (state.settings, state.setting_changes)
    ask(state, Configure(key="impact.age", value=None, by=ROOT), at=9.0)
    assert state.settings == {}
    assert [(each.value, each.at) for each in state.setting_changes] == [(3.0, WALL_S + 7.0), (None, WALL_S + 9.0)]


def test_a_change_that_changes_nothing_is_not_written() -> None:
    """The same value again, or unsetting what was not set, leaves no event but a note."""
    state = ClusterState()
    assert ask(state, Configure(key="impact.age", value=None, by=ROOT)).kinds() == []
    assert ask(state, Configure(key="impact.age", value=2.0, by=ROOT)).kinds() == ["SettingChanged"]
    done = ask(state, Configure(key="impact.age", value=2.0, by=ROOT))
    assert done.kinds() == []
    assert any("nothing changed" in note for note in done.notes)


def test_only_administrators_change_settings() -> None:
    """Anybody else is refused, also when the value is wrong."""
    with pytest.raises(Forbidden, match=r"Only an administrator may change impact\.age"):
        ask(ClusterState(), Configure(key="impact.age", value=-2.0, by=ANNA))


def test_the_core_refuses_what_is_out_of_range() -> None:
    """Whoever asks: nothing outside the range gets into the journal."""
    state = ClusterState()
    for value in (-1.0, float("nan"), 1e9):
        with pytest.raises(UsageError, match="a number from 0 to 100"):
            ask(state, Configure(key="impact.age", value=value, by=ROOT))
    assert state.setting_changes == ()


def test_a_cost_that_nothing_measures_says_so() -> None:
    """Setting it is allowed and has no effect yet: the note tells."""
    for name in COSTS:
        done = ask(ClusterState(), Configure(key=f"impact.{name}", value=0.5, by=ROOT))
        assert any("does not measure" in note for note in done.notes) == (name not in MEASURED_COSTS)


def test_the_history_of_changes_is_bounded() -> None:
    """The newest are kept."""
    state = ClusterState()
    for number in range(KEPT_CHANGES + 5):
        tell(state, SettingChanged(key="impact.age", value=float(number), by="root"))
    assert len(state.setting_changes) == KEPT_CHANGES
    assert state.setting_changes[-1].value == KEPT_CHANGES + 4


def test_weights_take_what_was_set() -> None:
    """Only the named fields change; keys that are no weight, or are no longer known, are passed over."""
    base = Weights(age=0.5, energy=0.1)
    known = {
        "impact.age": Setting(value=2.0, by="root", at=0.0),
        "planner.default_runtime": Setting(value=60.0, by="root", at=0.0),
        "planner.every": Setting(value=5.0, by="root", at=0.0),
        "impact.gone": Setting(value=1.0, by="root", at=0.0),
    }
    assert settings.weights_with(base, known) == Weights(age=2.0, energy=0.1, default_run_s=60.0)
    assert settings.weights_with(base, {}) is base
