"""What one NVIDIA GPU says about itself: a sample, its processes, and conditions that need someone's care.

Owns: which NVML calls are made for each value, newest name first, and the conversion to our units.
May import: the standard library, `gpus` and `nvml_calls`.
One thing to know: asking never raises for a value. A call that used to work on a GPU and fails now counts
against that GPU; one that never worked is a value this GPU does not have, unless nothing at all answers.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Optional, Set, Tuple

from .gpus import GpuProcess, ProcessKind, ProcessTable, Sample
from .nvml_calls import Failure, Nvml, NvmlError

_MIB = 1024 * 1024

# Values of enumerations in nvml.h.
_TEMPERATURE_OF_GPU = 0
_CLOCK_OF_SM = 1
_ECC_UNCORRECTED = 1
_ECC_SINCE_DRIVER_LOAD = 0
_FIELD_RECOVERY_ACTION = 230

_THROTTLE_REASONS = (  # bit 1 (nothing to do) is left out: an idle GPU is not slowed down
    (0x002, "clock_setting"),
    (0x004, "power_cap"),
    (0x008, "hw_slowdown"),
    (0x010, "sync_boost"),
    (0x020, "sw_thermal"),
    (0x040, "hw_thermal"),
    (0x080, "power_brake"),
    (0x100, "display_clock"),
)
_RECOVERY_ACTIONS = {
    1: "the driver asks for a reset of this GPU (nvidia-smi --gpu-reset)",
    2: "the driver asks for a reboot of this node",
    3: "the driver asks to stop peer-to-peer traffic with this GPU",
    4: "the driver asks to empty and reset this GPU (nvidia-smi --gpu-reset)",
    5: "the driver asks to recover the NVLink domain (IMEX) of this GPU",
    6: "the driver asks for a PCIe bus reset of this GPU",
    7: "the driver asks for a reboot of the whole system",
}
_PROCESS_LISTS = (  # a process that is in several counts as the first of these
    (ProcessKind.COMPUTE, "nvmlDeviceGetComputeRunningProcesses"),
    (ProcessKind.MPS, "nvmlDeviceGetMPSComputeRunningProcesses"),
    (ProcessKind.GRAPHICS, "nvmlDeviceGetGraphicsRunningProcesses"),
)


class Reading:
    """One round of questions to one GPU, and the verdict on how it answered.

    `lost` is set when the driver says that the GPU is gone; nothing more is asked then, for some drivers
    crash on calls to such a GPU. Raises NvmlError only when the driver as a whole has gone.
    """

    def __init__(self, nvml: Nvml, handle: Any, working_calls: Set[str]) -> None:
        self.lost: Optional[str] = None
        self._nvml = nvml
        self._handle = handle
        self._working_calls = working_calls
        self._answers = 0
        self._broken: Optional[str] = None
        self._never_worked: Optional[str] = None

    def ask(self, function: str, *arguments: Any) -> Any:
        """The value, or None when it is not to be had; `function` takes the handle first."""
        if self.lost is not None:
            return None
        try:
            value = self._nvml.call(function, self._handle, *arguments)
        except NvmlError as error:
            self._note(error)
            return None
        self._working_calls.add(function)
        self._answers += 1
        return value

    def ask_first(self, functions: Tuple[str, ...], *arguments: Any) -> Any:
        """The first value that one of these functions has."""
        for function in functions:
            value = self.ask(function, *arguments)
            if value is not None:
                return value
        return None

    def constant(self, name: str) -> Any:
        """A constant of the binding."""
        return self._nvml.constant(name)

    @property
    def problem(self) -> Optional[str]:
        """What is wrong with the GPU, or None when it answers as it should."""
        if self._broken is None and not self._answers:
            return self._never_worked
        return self._broken

    def _note(self, error: NvmlError) -> None:
        if error.failure is Failure.DRIVER:
            raise error
        if error.failure is Failure.GPU_LOST:
            self.lost = error.text
        elif error.failure is Failure.GPU and error.function in self._working_calls:
            self._broken = str(error)
        elif error.failure is Failure.GPU:
            self._never_worked = str(error)


def read_sample(reading: Reading, uuid: str, processes: Optional[Tuple[GpuProcess, ...]]) -> Sample:
    """Everything that changes from second to second; about 50 microseconds a GPU on a healthy driver."""
    used_mib, total_mib, includes_reserve = read_memory(reading)
    rates = reading.ask("nvmlDeviceGetUtilizationRates")
    reasons = reading.ask_first(("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"))
    return Sample(
        uuid=uuid,
        utilization=None if rates is None else rates.gpu / 100.0,
        memory_used_mib=used_mib,
        memory_total_mib=total_mib,
        memory_includes_reserve=includes_reserve,
        power_w=_thousandth(reading.ask("nvmlDeviceGetPowerUsage")),
        power_limit_w=_thousandth(
            reading.ask_first(("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit"))
        ),
        energy_j=_thousandth(reading.ask("nvmlDeviceGetTotalEnergyConsumption")),
        temperature_c=reading.ask_first(("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"), _TEMPERATURE_OF_GPU),
        clock_mhz=reading.ask("nvmlDeviceGetClockInfo", _CLOCK_OF_SM),
        throttle=None if reasons is None else tuple(name for bit, name in _THROTTLE_REASONS if reasons & bit),
        processes=processes,
    )


def read_memory(reading: Reading) -> Tuple[Optional[int], Optional[int], bool]:
    """Used and total MiB, and whether "used" contains the driver's reserve (drivers before R510).

    All unknown where GPU and host share their memory (DGX Spark, Jetson).
    """
    memory = reading.ask("nvmlDeviceGetMemoryInfo", reading.constant("nvmlMemory_v2"))
    includes_reserve = False
    if memory is None:
        memory = reading.ask("nvmlDeviceGetMemoryInfo")
        includes_reserve = memory is not None
    if memory is None:
        return None, None, False
    return memory.used // _MIB, memory.total // _MIB, includes_reserve


def trusted_process_calls(driver_version: Optional[str]) -> Tuple[str, ...]:
    """Suffixes of the process calls that can be believed with this driver, best first.

    Never the plain name: the binding maps it to the newest record, whatever the driver has. The first
    drivers with `_v3` (530, early 535) filled in a longer record, so that pids came out as sizes.
    """
    numbers = [int(part) for part in (driver_version or "").split(".") if part.isdigit()]
    longer_record = bool(numbers) and [530] <= numbers < [535, 60]
    return ("_v2",) if longer_record else ("_v3", "_v2")


def read_processes(
    reading: Reading, suffixes: Tuple[str, ...], table: ProcessTable
) -> Optional[Tuple[GpuProcess, ...]]:
    """The processes on a GPU by pid, or None when the driver does not tell."""
    found: Dict[int, GpuProcess] = {}
    for kind, function in _PROCESS_LISTS:
        entries = reading.ask_first(tuple(function + suffix for suffix in suffixes))
        if entries is None and kind is ProcessKind.COMPUTE:
            return None
        for entry in entries or ():
            memory = entry.usedGpuMemory
            if entry.pid not in found:
                memory_mib = None if memory is None else memory // _MIB
                found[entry.pid] = table.describe(entry.pid, kind, memory_mib)
    return tuple(found[pid] for pid in sorted(found))


@dataclasses.dataclass(frozen=True)
class Condition:
    """Trouble that a GPU reports while it answers: `blocking` forbids its use, `suspicious` does not.

    `uncorrected_errors` counts since the driver was loaded; None where there is no ECC.
    """

    blocking: Optional[str] = None
    suspicious: Optional[str] = None
    uncorrected_errors: Optional[int] = None


def read_condition(reading: Reading) -> Condition:
    """ECC, row remapping, page retirement and the driver's own advice."""
    blocking: List[str] = []
    suspicious: List[str] = []
    action = _recovery_action(reading)
    if action:
        blocking.append(_RECOVERY_ACTIONS.get(action, f"the driver asks for recovery action {action}"))
    remapped = reading.ask("nvmlDeviceGetRemappedRows")
    if remapped is not None:
        _corrected, _uncorrected, pending, failed = remapped
        if failed:
            blocking.append("repairing its memory failed (row remapping); it needs to be replaced")
        elif pending:
            suspicious.append("a memory repair waits for a reset of this GPU (row remapping)")
    if reading.ask("nvmlDeviceGetRetiredPagesPendingStatus"):
        suspicious.append("a memory repair waits for a reboot of this node (page retirement)")
    errors = reading.ask("nvmlDeviceGetTotalEccErrors", _ECC_UNCORRECTED, _ECC_SINCE_DRIVER_LOAD)
    return Condition("; ".join(blocking) or None, "; ".join(suspicious) or None, errors)


def _recovery_action(reading: Reading) -> Optional[int]:
    values = reading.ask("nvmlDeviceGetFieldValues", [_FIELD_RECOVERY_ACTION])
    if values is None or values[0].nvmlReturn != 0:  # each field has a return code of its own
        return None
    return int(values[0].value.uiVal)


def _thousandth(value: Optional[int]) -> Optional[float]:
    return None if value is None else value / 1000.0
