"""What ended runs have taught: run times by command, name, owner, everyone and GPU type, and use of GPUs.

Imports model, speeds and used.

Every table is bounded; the entry that was added to longest ago is forgotten first.

One thing to know: the queues of waiting jobs are named by what is known of them (`known_name`, `known_command`). So
before an entry comes or goes, `names_moved` and `commands_moved` tell the state which jobs change their queue.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import TypeVar

from gpuq.core.model import BlobId, JobSpec, Used
from gpuq.core.speeds import Runs, speed_factors
from gpuq.core.used import Use

HISTORY_NAMES = 10_000  # names whose run times are kept
HISTORY_LENGTH = 20  # run times kept per (user, name) and per (user, command)
COMMAND_RUNS = 3  # from which a command has a history of its own, beside that of its name
GENERAL_USERS = 1_000  # users whose latest run times are kept, whatever ran
GENERAL_LENGTH = 64
EVERYONE = ""  # the key of all users together

Key = tuple[str, str]  # (user, name) or (user, fingerprint of the command)
_K = TypeVar("_K")
_V = TypeVar("_V")


class Memory:
    """The histories. Run times are in seconds as they would have been on the reference GPU, oldest first."""

    def __init__(self) -> None:
        self.history: dict[Key, tuple[float, ...]] = {}  # by (user, name)
        self.commands: dict[Key, tuple[float, ...]] = {}  # by (user, fingerprint)
        self.general: dict[str, tuple[float, ...]] = {}  # by user, or EVERYONE
        self.type_runs: dict[Key, dict[str, Runs]] = {}  # by (user, name): by GPU type (core.speeds)
        self.uses: dict[Key, Use] = {}  # by (user, name): what they use of a GPU (core.used)
        self._factors: dict[Key, dict[str, float]] = {}  # of type_runs

    # --- what is known -------------------------------------------------------------------------------------

    def known_name(self, user: str, name: str) -> str:
        """The name, if jobs of this owner and name have run; else ""."""
        return name if (user, name) in self.history else ""

    def known_command(self, user: str, spec: JobSpec) -> str:
        """The fingerprint of what a spec runs, if this owner ran it often enough; else ""."""
        if not self.commands:
            return ""
        command = fingerprint(spec)
        return command if len(self.commands.get((user, command), ())) >= COMMAND_RUNS else ""

    def factors(self, user: str, name: str) -> dict[str, float]:
        """By GPU type, how jobs of this owner and name differ from the speed prior; {} while nothing is known."""
        return self._factors.get((user, name), {})

    # --- what is added -------------------------------------------------------------------------------------

    def names_moved(self, key: Key) -> list[Key]:
        """The names whose waiting jobs get another queue when this one is kept: itself if new, and one forgotten."""
        if key in self.history:
            return []
        return [key, *_oldest_beyond(self.history, HISTORY_NAMES)]

    def commands_moved(self, key: Key, runs_s: tuple[float, ...]) -> list[Key]:
        """The same for commands: those that come to have a history of their own, or cease to."""
        before = self.commands.get(key, ())
        gone = [] if before else _oldest_beyond(self.commands, HISTORY_NAMES)
        moved = [each for each in gone if len(self.commands[each]) >= COMMAND_RUNS]
        return [*moved, key] if (len(before) >= COMMAND_RUNS) != (len(runs_s) >= COMMAND_RUNS) else moved

    def set_history(self, key: Key, runs_s: tuple[float, ...]) -> None:
        """Keep the run times of an owner and name."""
        _keep(self.history, key, runs_s, HISTORY_NAMES)

    def set_command(self, key: Key, runs_s: tuple[float, ...]) -> None:
        """Keep the run times of an owner and fingerprint."""
        _keep(self.commands, key, runs_s, HISTORY_NAMES)

    def set_type_runs(self, key: Key, by_type: dict[str, Runs]) -> None:
        """Keep what an owner and name did by GPU type, and the factors that follow."""
        for forgotten in _keep(self.type_runs, key, by_type, HISTORY_NAMES):
            self._factors.pop(forgotten, None)
        self._factors[key] = speed_factors(by_type)

    def add_type_run(self, key: Key, gpu_type: str, reference_s: float) -> None:
        """One run more on a GPU type, reference_s by the catalogue's speed alone; "" is no type and tells nothing."""
        if gpu_type and reference_s > 0:
            known = self.type_runs.get(key, {})
            self.set_type_runs(key, {**known, gpu_type: known.get(gpu_type, Runs()).plus(reference_s)})

    def add_use(self, key: Key, used: Used, gpu_type: str, limit_w: float | None) -> None:
        """What one run more used of GPUs of this type; limit_w None: their power limit is not known."""
        _keep(self.uses, key, self.uses.get(key, Use()).plus(used, gpu_type, limit_w), HISTORY_NAMES)

    def add_general(self, user: str, reference_s: float) -> None:
        """One run more of this owner, and of everyone."""
        for group in (user, EVERYONE):
            _keep(self.general, group, longer(self.general.get(group, ()), reference_s, GENERAL_LENGTH), GENERAL_USERS)


def longer(runs_s: tuple[float, ...], run_s: float, most: int = HISTORY_LENGTH) -> tuple[float, ...]:
    """The runs with one more at the end, the newest `most` of them."""
    return (*runs_s[-most + 1 :], run_s)


def _oldest_beyond(table: dict[_K, _V], most: int) -> list[_K]:
    """The key that a new one would push out, if any."""
    return [next(iter(table))] if len(table) >= most else []


def _keep(table: dict[_K, _V], key: _K, value: _V, most: int) -> list[_K]:
    """Enter a value as the newest; returns the key that was forgotten for it, if any."""
    table.pop(key, None)
    forgotten = _oldest_beyond(table, most)
    for each in forgotten:
        del table[each]
    table[key] = value
    return forgotten


def fingerprint(spec: JobSpec) -> str:
    """What a spec runs, as a short hash: program and arguments as written, script, and how many GPUs."""
    return _fingerprint(spec.argv, spec.script, spec.resources.gpus)


@lru_cache(maxsize=16_384)
def _fingerprint(argv: tuple[str, ...], script: BlobId | None, gpus: int) -> str:
    whole = "\0".join((*argv, "", script or "", str(gpus)))
    return blake2b(whole.encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()
