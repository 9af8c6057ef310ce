"""The sampler: a process of its own that asks the GPU driver and tells the agent, one JSON line at a time.

Owns: the configuration line, the rhythm of refresh, sample and beat, and the lines written to stdout.
May import: the standard library and the vendors beside it.
One thing to know: a driver call can hang for ever and cannot be cancelled. So nothing else runs here; the
agent takes missing lines as the sign and kills this process, which holds nothing that matters.

Lines are {"type": "inventory", "gpus", "driver"} first and after every change, {"type": "samples", "at",
"gpus"} at every interval, and {"type": "beat"} at least every 5 seconds.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
import time
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

from .gpus import RECOVERY_S, Vendor
from .nvml import NvmlVendor
from .simulated import SimulatedVendor

_BEAT_EVERY_S = 2.5
_LAST_WORDS_S = 2.0
_HANDED_OVER = "GPUQ_SAMPLER_CONFIG"  # set only between a process and the one it turns itself into


@dataclasses.dataclass(frozen=True)
class SamplerConfig:
    """The configuration line. `simulate` None means real GPUs; `known` are records of an earlier inventory.

    `seed` makes the UUIDs of simulated GPUs unique to a spool. `retry_every_s` is how often a missing driver
    is tried again, `recovery_s` how long a failed GPU must answer before it is trusted.
    """

    simulate: Optional[Tuple[Dict[str, Any], ...]] = None
    simulated_state: Optional[str] = None
    seed: str = ""
    sample_every_s: float = 1.0
    processes_every_s: float = 3.0
    health_every_s: float = 30.0
    retry_every_s: float = 30.0
    recovery_s: float = RECOVERY_S
    pynvml_path: Optional[str] = None
    known: Tuple[Dict[str, Any], ...] = ()


def config_from_line(line: str) -> SamplerConfig:
    """Parse the configuration; unknown fields are ignored and null means the default, as in every frame."""
    fields: Mapping[str, Any] = json.loads(line)
    names = {field.name for field in dataclasses.fields(SamplerConfig)}
    values = {name: value for name, value in fields.items() if name in names and value is not None}
    for name in ("simulate", "known"):
        if name in values:
            values[name] = tuple(values[name])
    return SamplerConfig(**values)


def vendor_for(config: SamplerConfig) -> Vendor:
    """The GPUs that this configuration is about."""
    if config.simulate is not None:
        return SimulatedVendor(config.simulate, config.seed, config.simulated_state)
    return NvmlVendor(config.pynvml_path, config.known, config.recovery_s)


class Sampler:
    """Calls the vendor when it is time, and writes what the agent needs to know.

    `write` takes one frame; the clocks are arguments so that tests can run time themselves.
    """

    def __init__(
        self,
        config: SamplerConfig,
        vendor: Vendor,
        write: Callable[[Dict[str, Any]], None],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._vendor = vendor
        self._write = write
        self._clock = clock
        self._wall_clock = wall_clock
        self._told: Optional[Dict[str, Any]] = None
        self._refresh_at_s = self._sample_at_s = self._processes_at_s = self._beat_at_s = clock()

    def step(self) -> float:
        """Do all that is due, and return the seconds until something is due again."""
        now_s = self._clock()
        if now_s >= self._refresh_at_s:
            self._vendor.refresh()
            self._refresh_at_s = now_s + self._refresh_interval_s()
            self._tell_changes()
        if now_s >= self._sample_at_s:
            self._sample_at_s = _next_tick_s(self._sample_at_s, self._config.sample_every_s, now_s)
            self._sample(now_s)
        if now_s >= self._beat_at_s:
            self._beat_at_s = now_s + _BEAT_EVERY_S
            self._write({"type": "beat"})
        next_s = min(self._refresh_at_s, self._beat_at_s)
        if self._has_gpus():
            next_s = min(next_s, self._sample_at_s)
        return max(0.0, next_s - self._clock())

    def must_start_over(self) -> bool:
        """True when the driver is to be tried again, and only a new process can do that."""
        return self._vendor.needs_fresh_process() and self._clock() >= self._refresh_at_s

    def inventory(self) -> Dict[str, Any]:
        """The frame last told, or the empty one before the first."""
        return self._told or {"type": "inventory", "gpus": [], "driver": {}}

    def _sample(self, now_s: float) -> None:
        if not self._has_gpus():
            return
        with_processes = now_s >= self._processes_at_s
        if with_processes:
            self._processes_at_s = now_s + self._config.processes_every_s
        samples = self._vendor.sample(with_processes)
        self._tell_changes()
        gpus = [sample.wire() for sample in samples]
        self._write({"type": "samples", "at": self._wall_clock(), "gpus": gpus})

    def _tell_changes(self) -> None:
        frame = {
            "type": "inventory",
            "gpus": [device.wire() for device in self._vendor.inventory()],
            "driver": self._vendor.driver().wire(),
        }
        if frame != self._told:
            self._told = frame
            self._write(frame)

    def _refresh_interval_s(self) -> float:
        """A driver in trouble is not asked more often than it takes a person to do something about it."""
        in_trouble = self._vendor.driver().error is not None
        return self._config.retry_every_s if in_trouble else self._config.health_every_s

    def _has_gpus(self) -> bool:
        return bool(self.inventory()["gpus"])


def _next_tick_s(last_s: float, interval_s: float, now_s: float) -> float:
    """The tick after `last_s` that is still to come: an even rhythm, without a burst after a pause."""
    return last_s + interval_s if last_s + interval_s > now_s else now_s + interval_s


def run() -> int:
    """The `sampler` verb: configuration from stdin, frames to stdout, until stdin ends. Returns the exit code."""
    line = os.environ.pop(_HANDED_OVER, None) or sys.stdin.buffer.readline().decode("utf-8")
    if not line.strip():
        return 0
    config = config_from_line(line)
    vendor = vendor_for(config)
    sampler = Sampler(config, vendor, _write_line)
    ended = threading.Event()
    threading.Thread(target=_watch_stdin, args=(ended,), daemon=True).start()
    try:
        while not ended.wait(sampler.step()):
            if sampler.must_start_over():
                _start_over(config, sampler)
    except BrokenPipeError:  # the agent is gone
        os._exit(0)  # a normal exit would flush stdout, and complain
    vendor.close()
    return 0


def _write_line(frame: Dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(frame, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def _watch_stdin(ended: threading.Event) -> None:
    """Wait for the end of stdin, and end this process even while a driver call hangs."""
    while os.read(0, 4096):
        pass
    ended.set()
    time.sleep(_LAST_WORDS_S)
    os._exit(0)


def _start_over(config: SamplerConfig, sampler: Sampler) -> None:
    """Become a new process with the same arguments: it maps the driver library that is installed now."""
    known = [gpu for gpu in sampler.inventory()["gpus"] if gpu["parent"] is None] or config.known
    handed_over = dict(dataclasses.asdict(config), known=known)
    with open("/proc/self/cmdline", "rb") as file:
        arguments = [os.fsdecode(argument) for argument in file.read().split(b"\0")[:-1]]
    os.environ[_HANDED_OVER] = json.dumps(handed_over)
    os.execv(sys.executable, arguments)
