"""The clock that never jumps: across restarts, and while somebody sets the wall clock."""

from __future__ import annotations

import itertools
import time

import pytest

from gpuq.core.model import Stamp
from gpuq.daemon import ports
from gpuq.daemon.ports import MAX_GAP_S, SystemClock
from gpuq.journal.store import Journal
from gpuq.links.local import LocalLink
from tests.fakes import FakeClock, FakeLink, FakeStore


class Machine:
    """The two clocks of a machine, set by hand."""

    def __init__(self) -> None:
        self.wall_s = 1_700_000_000.0
        self.monotonic_s = 5000.0

    def pass_time(self, seconds: float) -> None:
        self.wall_s += seconds
        self.monotonic_s += seconds


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine whose clocks the test sets."""
    found = Machine()
    monkeypatch.setattr(time, "time", lambda: found.wall_s)
    monkeypatch.setattr(time, "monotonic", lambda: found.monotonic_s)
    return found


def test_the_first_clock_begins_at_zero(machine: Machine) -> None:
    """Without a journal the steady clock begins at 0, and goes as fast as the machine's."""
    clock = SystemClock()
    assert clock.now() == Stamp(wall_s=machine.wall_s, steady_s=0.0)
    machine.pass_time(7.5)
    assert clock.now() == Stamp(wall_s=1_700_000_007.5, steady_s=7.5)


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0, 400 * 86400.0])
def test_the_steady_clock_ignores_a_set_wall_clock(machine: Machine, jump_s: float) -> None:
    """While the daemon runs, a wall clock that is set moves the wall time and nothing else."""
    clock = SystemClock()
    machine.pass_time(10.0)
    machine.wall_s += jump_s
    assert clock.now() == Stamp(wall_s=machine.wall_s, steady_s=10.0)


@pytest.mark.parametrize(
    ("away_s", "counted_s"),
    [
        (90.0, 90.0),
        (0.0, 0.0),
        (-3600.0, 0.0),
        (MAX_GAP_S, MAX_GAP_S),
        (20 * 365 * 86400.0, MAX_GAP_S),
    ],
)
def test_a_restart_continues_the_steady_clock(machine: Machine, away_s: float, counted_s: float) -> None:
    """The pause between two runs counts by the wall clock; one set back counts 0, and an absurd one 30 days."""
    last = Stamp(wall_s=machine.wall_s, steady_s=1234.0)
    machine.wall_s += away_s
    machine.monotonic_s = 3.0  # a reboot: the machine's own monotonic clock begins anew
    clock = SystemClock()
    clock.resume_from(last)
    assert clock.now().steady_s == pytest.approx(1234.0 + counted_s)
    machine.pass_time(5.0)
    assert clock.now().steady_s == pytest.approx(1234.0 + counted_s + 5.0)


def test_ages_only_grow(machine: Machine) -> None:
    """Over many restarts with a wall clock set to and fro the steady clock never goes back."""
    moments = [0.0]
    last: Stamp | None = None
    for jump_s in (0.0, -7200.0, 86400.0, -3.0, 5.0):
        machine.wall_s += jump_s
        machine.monotonic_s = 1.0
        clock = SystemClock()
        if last is not None:
            clock.resume_from(last)
        for _ in range(3):
            machine.pass_time(2.0)
            last = clock.now()
            moments.append(last.steady_s)
    assert all(before < after for before, after in itertools.pairwise(moments))


def test_the_protocols_fit_what_is_used() -> None:
    """The journal, the system's clock, the local link and the fakes offer every method of their port."""
    fitting = {
        ports.Clock: (SystemClock(), FakeClock()),
        ports.Store: (Journal, FakeStore()),
        ports.Link: (LocalLink, FakeLink),
    }
    for protocol, offered in fitting.items():
        names = [name for name in vars(protocol) if not name.startswith("_")]
        assert names
        assert [(each, name) for each in offered for name in names if not hasattr(each, name)] == []
