"""Durations, sizes, times and signals in all the forms people write."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuq import units
from gpuq.errors import UsageError

NOW = 1_772_380_800.0  # 2026-03-01T16:00:00Z, a Sunday


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All tests see UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800), ("0:05", 5), ("05:30", 330), ("1:02:03", 3723), ("1-0", 86400), ("2-03", 183600),
        ("1-02:03", 93780), ("1-02:03:04", 93784), ("90s", 90), ("2h30m", 9000), ("1d", 86400), ("1.5h", 5400),
        ("0.5s", 0.5), ("2 hours", 7200), ("1w", 604800), ("0", 0), ("1.5", 90),
    ],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    """Slurm's forms and unit forms mean what they mean there; a bare number is minutes."""
    assert units.duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "abc", "-5", "1:2:3:4", "5x", "h", "1h 2", "1--2", "٣٠s x"])
def test_bad_durations(text: str) -> None:
    """What is no duration is one sentence with the forms that are."""
    with pytest.raises(UsageError, match="is not a duration") as caught:
        units.duration_s(text)
    assert "2h30m" in str(caught.value.hint)


@pytest.mark.parametrize("text", ["0", "UNLIMITED", "infinite", "0:00"])
def test_no_limit(text: str) -> None:
    """0 and Slurm's words mean: no limit."""
    assert units.limit_s(text) is None


@given(st.integers(min_value=0, max_value=10**9))
def test_printed_durations_read_back(seconds: int) -> None:
    """What is printed is read back as the same number of seconds."""
    assert units.duration_s(units.format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0, "0:00:00"), (1800, "0:30:00"), (93784, "1-02:03:04"), (11560.9, "3:12:40")]
)
def test_duration_forms(seconds: float | None, text: str) -> None:
    """[D-]HH:MM:SS, and - for the unknown."""
    assert units.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "mib"),
    [("100", 100), ("20G", 20480), ("1.5TiB", 1572864), ("512MB", 512), ("2048k", 2), ("1k", 1), ("0", 0)],
)
def test_sizes(text: str, mib: int) -> None:
    """A bare number is MiB; units count in powers of 1024 and are rounded up."""
    assert units.size_mib(text) == mib


def test_bytes() -> None:
    """A size in bytes is taken literally."""
    assert units.size_bytes("100B") == 100
    assert units.size_bytes("1GiB") == 1 << 30


@pytest.mark.parametrize("text", ["", "G", "-1G", "1X", "1GG", "1 2G"])
def test_bad_sizes(text: str) -> None:
    """What is no size is refused."""
    with pytest.raises(UsageError, match="is not a size"):
        units.size_mib(text)


@pytest.mark.parametrize(
    ("text", "offset_s"),
    [
        ("now", 0), ("now+1hour", 3600), ("now+60", 60), ("now+2h30m", 9000), ("17:30", 5400), ("08:00", 16 * 3600),
        ("8:00am", 16 * 3600), ("tomorrow", 8 * 3600), ("midnight", 8 * 3600), ("noon", 20 * 3600), ("teatime", 86400),
        ("2026-03-02", 8 * 3600), ("2026-03-01T18:00", 7200), ("2026-03-01 18:00:30", 7230), ("3/2/26", 8 * 3600),
        ("2h", 7200), ("2026-03-01T15:00", -3600),
    ],
)  # fmt: skip
def test_begin_times(text: str, offset_s: float) -> None:
    """Slurm's --begin forms, seen from Sunday 16:00."""
    assert units.begin_at(text, NOW) - NOW == offset_s


@pytest.mark.parametrize(
    "text", ["", "25:00", "2026-13-01", "2026-02-30", "yesterdayish", "now-1h", "now+x", "13:00pm"]
)
def test_bad_begin_times(text: str) -> None:
    """Times that do not exist are refused, 30 February among them."""
    with pytest.raises(UsageError):
        units.begin_at(text, NOW)


@pytest.mark.parametrize(
    ("text", "offset_s"),
    [("2h", -7200), ("now-1h", -3600), ("today", -57600), ("yesterday", -57600 - 86400), ("15:00", -3600)],
)
def test_moments_of_the_past(text: str, offset_s: float) -> None:
    """--since reads durations and times of day as the past."""
    assert units.moment_at(text, NOW) - NOW == offset_s


def test_local_time_carries_its_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON times are ISO 8601 with offset, in the machine's zone."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    assert units.iso_time(NOW) == "2026-03-01T17:00:00.000+01:00"
    assert units.iso_time(None) is None


@pytest.mark.parametrize("text", ["USR1", "SIGUSR1", "usr1", "10"])
def test_signals(text: str) -> None:
    """Names with or without SIG in any case, and numbers."""
    assert units.signal_number(text) == 10


def test_unknown_signal_names_the_nearest() -> None:
    """A mistyped signal is refused with the name that was meant."""
    with pytest.raises(UsageError) as caught:
        units.signal_number("USR")
    assert "USR" in str(caught.value.hint)
    assert units.signal_name(15) == "SIGTERM"


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, "-"), (0, "0 bytes"), (512 << 20, "512 MiB"), (3435973837, "3.2 GiB"), (1 << 40, "1 TiB")],
)
def test_sizes_for_people(number: int | None, text: str) -> None:
    """Sizes are printed with their unit and at most one decimal."""
    assert units.format_bytes(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(45, "45 s"), (720, "12 min"), (5100, "1 h 25 min"), (3600, "1 h"), (183600, "2 d 3 h")]
)
def test_rough_durations(seconds: float, text: str) -> None:
    """Durations in sentences name their two largest units."""
    assert units.format_rough_duration(seconds) == text


@pytest.mark.parametrize(("ahead_s", "text"), [(3600, "17:00"), (86400, "Mon 16:00"), (30 * 86400, "2026-03-31 16:00")])
def test_clock(ahead_s: float, text: str) -> None:
    """Today needs no date, this week a day, the rest a date."""
    assert units.format_clock(NOW + ahead_s, NOW) == text
