"""What an attempt uses of its GPUs. Owns the running sums of its samples and their file in the spool.

May import: spool. Why here and not in the daemon: every sample passes through the agent anyway, so a few additions a
second are the whole cost, and the sums stay with the attempt's other evidence. A daemon that is restarted, or a link
that is down for hours, loses none of them. Only an agent that is killed loses what came after the last SAVE_S.

One thing to know: a counter that was not read is left out of its mean, and one that was never read stays unknown.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional

from . import spool

FILE = "used.json"
SAVE_S = 10.0  # a file that small, written without fsync, costs next to nothing at this rhythm
_SUMS = ("utilization_sum", "utilization_count", "power_w_sum", "power_w_count", "samples")


class Used:
    """Sums over the samples of the GPUs of one attempt."""

    def __init__(self, directory: str) -> None:
        """With what an earlier agent has kept."""
        self._directory = directory
        self._sums: Dict[str, float] = dict.fromkeys(_SUMS, 0)
        self._memory_mib: Optional[float] = None
        self._save_at_s: Optional[float] = None  # None: nothing new to save
        kept = spool.read_json(directory, FILE) or {}
        if all(_number(kept.get(name)) is not None for name in _SUMS):
            self._sums = {name: kept[name] for name in _SUMS}
            self._memory_mib = _number(kept.get("memory_mib"))

    def add(self, samples: Iterable[Dict[str, Any]]) -> None:
        """One reading of each of its GPUs; one that strangers use as well tells nothing about the attempt."""
        own = [sample for sample in samples if not sample.get("foreign")]
        known = [self._add_mean(own, "utilization"), self._add_mean(own, "power_w")]
        sizes = [size for size in (_number(sample.get("memory_used_mib")) for sample in own) if size is not None]
        if sizes:
            self._memory_mib = max(sizes) if self._memory_mib is None else max(self._memory_mib, *sizes)
        if any(known) or sizes:
            self._sums["samples"] += 1
            if self._save_at_s is None:
                self._save_at_s = time.monotonic() + SAVE_S

    def _add_mean(self, samples: List[Dict[str, Any]], name: str) -> bool:
        values = [value for value in (_number(sample.get(name)) for sample in samples) if value is not None]
        self._sums[name + "_sum"] += sum(values)
        self._sums[name + "_count"] += len(values)
        return bool(values)

    def save_if_due(self) -> None:
        """Keep the sums in the spool from time to time."""
        if self._save_at_s is not None and time.monotonic() >= self._save_at_s:
            self.save()

    def save(self) -> None:
        """Keep the sums in the spool; where that fails they are told all the same, as long as this agent lives."""
        if self._save_at_s is None:
            return
        try:
            spool.write_json(self._directory, FILE, {**self._sums, "memory_mib": self._memory_mib})
            self._save_at_s = None
        except OSError:
            self._save_at_s = time.monotonic() + SAVE_S

    def told(self) -> Optional[Dict[str, Any]]:
        """The `used` object of the protocol; None without a sample."""
        if not self._sums["samples"]:
            return None
        return {
            "utilization": self._mean("utilization", 4),
            "power_w": self._mean("power_w", 2),
            "memory_mib": self._memory_mib,
            "samples": int(self._sums["samples"]),
        }

    def _mean(self, name: str, places: int) -> Optional[float]:
        count = self._sums[name + "_count"]
        return round(self._sums[name + "_sum"] / count, places) if count else None


class Uses:
    """The sums of all attempts; `directory` gives the place of one in the spool."""

    def __init__(self, directory: Callable[[str], str]) -> None:
        self._directory = directory
        self._known: Dict[str, Used] = {}

    def take(self, samples: Iterable[Dict[str, Any]], running: Mapping[str, List[str]]) -> None:
        """Add one reading of the node's GPUs to the attempts that run on them (by attempt: its GPUs)."""
        by_uuid = {sample.get("uuid"): sample for sample in samples}
        for attempt, uuids in running.items():
            own = [by_uuid[uuid] for uuid in uuids if uuid in by_uuid]
            if own:
                self._of(attempt).add(own)
                self._of(attempt).save_if_due()

    def told(self, attempt: str) -> Dict[str, Any]:
        """The field of an ended attempt that says what it used; none without a sample."""
        used = self._of(attempt)
        used.save()
        told = used.told()
        return {} if told is None else {"used": told}

    def save(self) -> None:
        """Leave to the next agent what was added."""
        for used in self._known.values():
            used.save()

    def forget(self, attempt: str) -> None:
        """It is no longer in the spool."""
        self._known.pop(attempt, None)

    def _of(self, attempt: str) -> Used:
        if attempt not in self._known:
            self._known[attempt] = Used(self._directory(attempt))
        return self._known[attempt]


def _number(value: Any) -> Optional[float]:
    """A measured value; None for anything else."""
    right = isinstance(value, (int, float)) and not isinstance(value, bool) and 0.0 <= value < float("inf")
    return value if right else None
