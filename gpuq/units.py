"""Durations, sizes, times of day and signals: reads and prints Slurm's forms. Imports errors.

One thing to know: nothing here reads a clock; `now` is an argument (seconds since the epoch). Local time is the
machine's time zone, as in squeue. A bare number is minutes (durations) or MiB (sizes), as in Slurm; 0 is "no limit".
"""

from __future__ import annotations

import re
import time
from typing import Final

from gpuq.errors import UsageError

_DURATION_UNITS_S: Final = {
    "s": 1, "sec": 1, "secs": 1, "second": 1, "seconds": 1,
    "m": 60, "min": 60, "mins": 60, "minute": 60, "minutes": 60,
    "h": 3600, "hr": 3600, "hrs": 3600, "hour": 3600, "hours": 3600,
    "d": 86400, "day": 86400, "days": 86400,
    "w": 604800, "week": 604800, "weeks": 604800,
}  # fmt: skip
_DURATION_PARTS: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
_CLOCK: Final = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?(\.\d+)?")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(?:i?b)?", re.IGNORECASE)
_SIZE_UNITS_BYTES: Final = {"k": 1 << 10, "": 1 << 20, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
_NO_LIMIT: Final = frozenset({"unlimited", "infinite", "none"})
_NAMED_TIMES_S: Final = {"midnight": 0, "elevenses": 39600, "noon": 43200, "fika": 54000, "teatime": 57600}
_TIME_OF_DAY: Final = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?\s*(am|pm)?", re.IGNORECASE)
_DATE: Final = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[T ](.+))?")
_US_DATE: Final = re.compile(r"(\d{1,2})/(\d{1,2})(?:/(\d{2}|\d{4}))?(?:[- T](.+))?")
_DURATION_HINT: Final = "Write 90s, 30 (minutes), 2h30m, HH:MM:SS or D-HH:MM; 0 means no limit."
_SIZE_HINT: Final = "Write 512M, 20G or 1.5TiB; a bare number is MiB."
_TIME_HINT: Final = "Write now+2h, 17:30, tomorrow, 2026-05-01 or 2026-05-01T17:30."


def duration_s(text: str, what: str = "duration") -> float:
    """Seconds in `text` (`30`, `MM:SS`, `HH:MM:SS`, `D-HH[:MM[:SS]]`, `90s`, `2h30m`); raises UsageError."""
    wanted = text.strip().lower()
    clock = _CLOCK.fullmatch(wanted)
    if clock:
        return _clock_s(clock)
    parts = _DURATION_PARTS.findall(wanted)
    if parts and _DURATION_PARTS.sub("", wanted) == "" and all(unit in _DURATION_UNITS_S for _, unit in parts):
        return float(sum(float(number) * _DURATION_UNITS_S[unit] for number, unit in parts))
    raise UsageError(f"'{text}' is not a {what}.", _DURATION_HINT)


def limit_s(text: str, what: str = "time limit") -> float | None:
    """As `duration_s`, but 0, UNLIMITED and INFINITE mean None: no limit."""
    if text.strip().lower() in _NO_LIMIT:
        return None
    return duration_s(text, what) or None


def _clock_s(found: re.Match[str]) -> float:
    days, first, second, third, fraction = found.groups()
    tail = float(fraction or 0)
    if days is not None:  # D-HH[:MM[:SS]]
        return int(days) * 86400 + int(first) * 3600 + int(second or 0) * 60 + int(third or 0) + tail
    if third is not None:  # HH:MM:SS
        return int(first) * 3600 + int(second) * 60 + int(third) + tail
    if second is not None:  # MM:SS
        return int(first) * 60 + int(second) + tail
    return (int(first) + tail) * 60


def size_bytes(text: str, what: str = "size") -> int:
    """Bytes in `text`; K M G T P count in powers of 1024, with or without `iB`; a bare number is MiB."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise UsageError(f"'{text}' is not a {what}.", _SIZE_HINT)
    if text.strip().lower() in (found[1] + "b", found[1] + " b"):  # "100B": bytes, not MiB
        return int(float(found[1]))
    return int(float(found[1]) * _SIZE_UNITS_BYTES[found[2].lower()])


def size_mib(text: str, what: str = "size") -> int:
    """MiB in `text`, rounded up; raises UsageError."""
    return -(-size_bytes(text, what) // (1 << 20))


def format_duration(seconds: float | None) -> str:
    """`[D-]HH:MM:SS` as squeue prints it (the first part unpadded), or `-` when unknown."""
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    hours, minutes, last = rest // 3600, rest % 3600 // 60, rest % 60
    return f"{days}-{hours:02}:{minutes:02}:{last:02}" if days else f"{hours}:{minutes:02}:{last:02}"


def format_rough_duration(seconds: float) -> str:
    """A duration for a sentence: `45 s`, `12 min`, `1 h 25 min`, `2 d 3 h`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{round(whole / 60)} min"
    if whole < 86400:
        hours, minutes = divmod(round(whole / 60), 60)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(round(whole / 3600), 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def format_bytes(number: float | None) -> str:
    """`3.2 GiB`, `512 MiB`, `-` when unknown; at most one decimal."""
    if number is None:
        return "-"
    value = float(number)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if value == int(value) or unit == "bytes" else f"{value:.1f} {unit}"


def format_mib(number_mib: float | None) -> str:
    """As `format_bytes`, for a number of MiB."""
    return "-" if number_mib is None else format_bytes(number_mib * (1 << 20))


def begin_at(text: str, now: float) -> float:
    """The moment named by Slurm's --begin forms, seconds since the epoch; raises UsageError.

    A time of day without a date is the next one after `now`; a date may lie in the past (the caller says so).
    """
    wanted = text.strip()
    low = wanted.lower()
    if low.startswith("now"):
        return now + _offset_s(low[3:], text)
    today = time.localtime(now)
    if low in ("today", "tomorrow"):
        return now if low == "today" else _local(today.tm_year, today.tm_mon, today.tm_mday + 1, 0)
    day_s = _second_of_day(low)
    if day_s is not None:
        moment = _local(today.tm_year, today.tm_mon, today.tm_mday, day_s)
        return moment if moment > now else _local(today.tm_year, today.tm_mon, today.tm_mday + 1, day_s)
    found = _date_at(wanted, today.tm_year)
    if found is not None:
        return found
    if _DURATION_PARTS.sub("", low) == "" and low:
        return now + duration_s(low)
    raise UsageError(f"'{text}' is not a time to begin.", _TIME_HINT)


def moment_at(text: str, now: float) -> float:
    """A moment for --since and --until: as `begin_at`, but times of day and durations point to the past."""
    low = text.strip().lower()
    if low.startswith("now-"):
        return now - _offset_s("+" + low[4:], text)
    if low in ("today", "yesterday"):
        today = time.localtime(now)
        return _local(today.tm_year, today.tm_mon, today.tm_mday - (low == "yesterday"), 0)
    day_s = _second_of_day(low)
    if day_s is not None:
        today = time.localtime(now)
        return _local(today.tm_year, today.tm_mon, today.tm_mday, day_s)
    if _DURATION_PARTS.sub("", low) == "" and low:
        return now - duration_s(low)
    return begin_at(text, now)


def _offset_s(tail: str, text: str) -> float:
    """The seconds of `+1hour`; a bare number is seconds here, as Slurm reads `now+60`."""
    if not tail:
        return 0.0
    if not tail.startswith("+"):
        raise UsageError(f"'{text}' is not a time to begin.", _TIME_HINT)
    offset = tail[1:].strip()
    return float(offset) if offset.isdigit() else duration_s(offset, "time to add to now")


def _second_of_day(low: str) -> int | None:
    if low in _NAMED_TIMES_S:
        return _NAMED_TIMES_S[low]
    found = _TIME_OF_DAY.fullmatch(low)
    if not found:
        return None
    hour, minute, second = int(found[1]), int(found[2]), int(found[3] or 0)
    if found[4]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if found[4] == "pm" else 0)
    return hour * 3600 + minute * 60 + second if hour < 24 and minute < 60 and second < 60 else None


def _date_at(wanted: str, this_year: int) -> float | None:
    iso, american = _DATE.fullmatch(wanted), _US_DATE.fullmatch(wanted)
    if iso:
        year, month, day, clock = int(iso[1]), int(iso[2]), int(iso[3]), iso[4]
    elif american:
        month, day, clock = int(american[1]), int(american[2]), american[4]
        year = int(american[3]) if american[3] else this_year
        year += 2000 if year < 100 else 0
    else:
        return None
    day_s = _second_of_day(clock.lower()) if clock else 0
    if day_s is None or not 1 <= month <= 12 or not 1 <= day <= 31:
        return None
    moment = _local(year, month, day, day_s)
    return moment if time.localtime(moment).tm_mon == month else None  # 31 April rolls over: refused


def _local(year: int, month: int, day: int, day_s: int) -> float:
    hour, minute, second = day_s // 3600, day_s % 3600 // 60, day_s % 60
    return time.mktime((year, month, day, hour, minute, second, 0, 0, -1))


def format_clock(at: float, now: float) -> str:
    """A moment for people: `17:40` today, `Tue 17:40` within a week, else `2026-05-01 17:40`; local time."""
    moment, today = time.localtime(at), time.localtime(now)
    if moment[:3] == today[:3]:
        return time.strftime("%H:%M", moment)
    return time.strftime("%a %H:%M" if abs(at - now) < 6 * 86400 else "%Y-%m-%d %H:%M", moment)


def iso_time(at: float | None) -> str | None:
    """ISO 8601 with the local offset, to the millisecond, for JSON; None when unknown."""
    if at is None:
        return None
    from datetime import datetime, timezone

    return datetime.fromtimestamp(at, timezone.utc).astimezone().isoformat(timespec="milliseconds")


def signal_number(text: str) -> int:
    """The number of `USR1`, `SIGUSR1`, `usr1` or `10`; raises UsageError with the nearest name."""
    import signal

    wanted = text.strip().upper()
    if wanted.isdigit() and 1 <= int(wanted) <= 64:
        return int(wanted)
    known = {name.name[3:]: int(name) for name in signal.Signals}
    if wanted.removeprefix("SIG") in known:
        return known[wanted.removeprefix("SIG")]
    from difflib import get_close_matches

    near = get_close_matches(wanted.removeprefix("SIG"), known, 1)
    raise UsageError(f"'{text}' is not a signal.", f"Did you mean {near[0]}?" if near else "Write TERM, USR1 or 10.")


def signal_name(number: int) -> str:
    """`SIGTERM` for 15; `signal 99` when the system has no name for it."""
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
