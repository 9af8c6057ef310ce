"""The driver's own alarms: Xid errors and advice to recover, collected without a thread.

Owns: the event set, and which Xid is the program's fault and which the GPU's.
May import: the standard library and `nvml_calls`.
One thing to know: waiting with a timeout of 0 only empties the queue, so this is cheap at every tick.
"""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any, Dict, List, Optional

from .nvml_calls import Failure, Nvml, NvmlError

_XID_ERROR = 0x8
_OTHER_ALARMS = 0x2 | 0x100 | 0x4000 | 0x8000  # double-bit error, MIG changed, unavailable, recovery action
_AT_MOST = 64  # alarms taken at one tick; a storm must not stop the samples

_XID_LOST = 79
# The usual ends of a faulty program, which say nothing about the GPU.
_XIDS_OF_PROGRAMS = frozenset((13, 31, 43, 45))
# Of NVIDIA's catalogue the ones that speak against the GPU or its driver; any other only calls for a look.
_XID_OF_GPU = {
    48: "uncorrectable memory error",
    64: "memory repair failed",
    74: "NVLink error",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "the GPU's system processor does not answer",
    120: "error in the GPU's system processor",
}


@dataclasses.dataclass(frozen=True)
class Alarm:
    """Something the driver reported about one GPU; `reason` is None when it only calls for a closer look."""

    uuid: str
    reason: Optional[str] = None
    lost: bool = False


class AlarmQueue:
    """Alarms of the GPUs it was told to watch. Empty for ever where the driver has no events."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._set: Any = None
        self._uuid_of_address: Dict[Optional[int], str] = {}

    def watch(self, handles: Dict[str, Any]) -> None:
        """Report alarms of these GPUs (UUID to handle) from now on; those already watched stay so."""
        for uuid, handle in handles.items():
            address = _address(handle)
            if self._uuid_of_address.get(address) == uuid:
                continue
            try:
                self._register(handle)
            except NvmlError as error:
                if error.failure is Failure.DRIVER:
                    raise
            self._uuid_of_address[address] = uuid

    def _register(self, handle: Any) -> None:
        if self._set is None:
            self._set = self._nvml.ask("nvmlEventSetCreate")
        supported = self._nvml.ask("nvmlDeviceGetSupportedEventTypes", handle)
        wanted = (supported or 0) & (_XID_ERROR | _OTHER_ALARMS)
        if self._set is not None and wanted:
            self._nvml.ask("nvmlDeviceRegisterEvents", handle, wanted, self._set)

    def take(self) -> List[Alarm]:
        """The alarms since the last call, oldest first."""
        alarms: List[Alarm] = []
        while self._set is not None and len(alarms) < _AT_MOST:
            try:
                event = self._nvml.call("nvmlEventSetWait_v2", self._set, 0)
            except NvmlError as error:
                if error.failure is Failure.DRIVER:
                    raise
                break  # usually the timeout: the queue is empty
            uuid = self._uuid_of_address.get(_address(event.device))
            is_program_error = event.eventType == _XID_ERROR and event.eventData in _XIDS_OF_PROGRAMS
            if uuid is not None and not is_program_error:
                alarms.append(_alarm(uuid, event.eventType, event.eventData))
        return alarms

    def close(self) -> None:
        """Forget everything; to be called before the driver is shut down."""
        if self._set is not None:
            try:
                self._nvml.call("nvmlEventSetFree", self._set)
            except NvmlError:
                pass  # the driver is gone, and the set with it
        self._set = None
        self._uuid_of_address = {}


def _alarm(uuid: str, kind: int, data: int) -> Alarm:
    if kind != _XID_ERROR:
        return Alarm(uuid)
    if data == _XID_LOST:
        return Alarm(uuid, "it has fallen off the bus (Xid 79)", lost=True)
    if data in _XID_OF_GPU:
        return Alarm(uuid, f"{_XID_OF_GPU[data]} (Xid {data})")
    return Alarm(uuid)


def _address(handle: Any) -> Optional[int]:
    return ctypes.cast(handle, ctypes.c_void_p).value
