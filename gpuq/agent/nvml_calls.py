"""The way to NVML: finds the right Python binding, makes the calls, and turns every failure into one type.

Owns: loading `pynvml` (distribution nvidia-ml-py), init and shutdown, what an error code means for us.
May import: the standard library and pynvml, the latter only inside `load_binding`.
One thing to know: exceptions of the binding never leave this module. They are not hashable, one of them is
not even an NVMLError, and comparing one with None raises.
"""

from __future__ import annotations

import enum
import importlib
import sys
from typing import Any, Optional

# Codes of nvml.h that we act on. They are part of NVML's stable interface.
UNINITIALIZED = 1
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
NO_DATA = 21
ARGUMENT_VERSION_MISMATCH = 25
DEPRECATED = 26
GPU_NOT_FOUND = 28

_SENTENCE_OF_CODE = {
    NO_PERMISSION: "The NVIDIA driver refuses access to this user; check the rights of /dev/nvidia* on this node.",
    DRIVER_NOT_LOADED: (
        "The NVIDIA driver library is installed but its kernel module is not loaded; "
        "run 'sudo modprobe nvidia' or reboot this node."
    ),
    LIBRARY_NOT_FOUND: (
        "No NVIDIA driver library (libnvidia-ml.so.1) was found on this node; "
        "install the NVIDIA driver, or declare simulated GPUs."
    ),
    FUNCTION_NOT_FOUND: "The NVIDIA driver of this node is too old for gpuq; install driver 470 or newer.",
    LIB_RM_VERSION_MISMATCH: (
        "The NVIDIA kernel module and driver library of this node have different versions, "
        "as after an update without a restart; reboot this node."
    ),
}
_WRONG_BINDING = (
    "The Python module pynvml at {path} is not the one of nvidia-ml-py; "
    "run 'pip uninstall pynvml nvidia-ml-py3' and 'pip install nvidia-ml-py' on this node."
)
_NO_BINDING = "The Python package nvidia-ml-py is missing on this node; run 'pip install nvidia-ml-py'."


class Failure(enum.Enum):
    """What an NVML error is about, and so who has to deal with it."""

    NO_VALUE = "this GPU or driver does not have the value"
    GPU = "this GPU did not answer"
    GPU_LOST = "this GPU is gone"
    DRIVER = "the driver is gone"


_FAILURE_OF_CODE = {
    NOT_SUPPORTED: Failure.NO_VALUE,
    NO_PERMISSION: Failure.NO_VALUE,
    NOT_FOUND: Failure.NO_VALUE,
    INSUFFICIENT_SIZE: Failure.NO_VALUE,  # the list grew between the two calls of the binding
    FUNCTION_NOT_FOUND: Failure.NO_VALUE,
    NO_DATA: Failure.NO_VALUE,
    ARGUMENT_VERSION_MISMATCH: Failure.NO_VALUE,
    DEPRECATED: Failure.NO_VALUE,
    GPU_IS_LOST: Failure.GPU_LOST,
    RESET_REQUIRED: Failure.GPU_LOST,
    GPU_NOT_FOUND: Failure.GPU_LOST,
    UNINITIALIZED: Failure.DRIVER,
    DRIVER_NOT_LOADED: Failure.DRIVER,
    LIBRARY_NOT_FOUND: Failure.DRIVER,
    LIB_RM_VERSION_MISMATCH: Failure.DRIVER,
}


class NvmlError(Exception):
    """An NVML call that failed: which function, NVML's code and NVML's own words for it."""

    def __init__(self, function: str, code: int, text: str) -> None:
        super().__init__(f"{function}: {text}")
        self.function = function
        self.code = code
        self.text = text

    @property
    def failure(self) -> Failure:
        """What this error is about; an unknown code is held against the GPU."""
        return _FAILURE_OF_CODE.get(self.code, Failure.GPU)


class DriverUnavailable(Exception):
    """NVML cannot be used now; the text is a full sentence for the user."""

    def __init__(self, sentence: str, code: Optional[int] = None) -> None:
        super().__init__(sentence)
        self.code = code


def load_binding(extra_path: Optional[str]) -> Any:
    """The module pynvml of nvidia-ml-py, searched last in `extra_path`; raises DriverUnavailable.

    Two other distributions install a module of that name. Neither has both of the names checked here.
    """
    if extra_path and extra_path not in sys.path:
        sys.path.append(extra_path)
    try:
        binding = importlib.import_module("pynvml")
    except ImportError:
        raise DriverUnavailable(_NO_BINDING) from None
    wanted = ("_nvmlGetFunctionPointer", "nvmlDeviceGetComputeRunningProcesses_v3")
    if not all(hasattr(binding, name) for name in wanted):
        raise DriverUnavailable(_WRONG_BINDING.format(path=getattr(binding, "__file__", "an unknown place")))
    return binding


def sentence_about(error: NvmlError) -> str:
    """What a user should read and do when the driver as a whole answers with this error."""
    known = _SENTENCE_OF_CODE.get(error.code)
    return known or f"The NVIDIA driver of this node does not work ({error.text}); check it with nvidia-smi."


class Nvml:
    """NVML, opened once and kept open: start-up costs up to seconds where persistence mode is off."""

    def __init__(self, extra_path: Optional[str]) -> None:
        self._extra_path = extra_path
        self._binding: Any = None
        self.is_open = False

    def open(self) -> None:
        """Load and initialise NVML; raises DriverUnavailable and can then be called again."""
        if self._binding is None:
            self._binding = load_binding(self._extra_path)
        try:
            self.call("nvmlInit")
        except NvmlError as error:
            raise DriverUnavailable(sentence_about(error), error.code) from None
        self.is_open = True

    def close(self) -> None:
        """Shut NVML down; every handle dies with it."""
        if self.is_open:
            self.is_open = False
            try:
                self.call("nvmlShutdown")
            except NvmlError:
                pass  # the driver is gone already

    def call(self, function: str, *arguments: Any) -> Any:
        """The answer of one NVML function by its name in the binding; raises NvmlError."""
        routine = getattr(self._binding, function, None)
        if routine is None:
            raise NvmlError(function, FUNCTION_NOT_FOUND, "unknown to the installed nvidia-ml-py")
        try:
            return routine(*arguments)
        except self._binding.NVMLError as error:
            code, text = int(error.value), str(error)
        except self._binding.NVMLLibraryMismatchError as error:
            code, text = FUNCTION_NOT_FOUND, str(error)
        # Raised here, not above, so that the binding's exception is not kept as the cause.
        raise NvmlError(function, code, text)

    def ask(self, function: str, *arguments: Any) -> Any:
        """As `call`, but None where the driver or GPU does not have the value."""
        try:
            return self.call(function, *arguments)
        except NvmlError as error:
            if error.failure is not Failure.NO_VALUE:
                raise
        return None

    def constant(self, name: str) -> Any:
        """A constant of the binding, such as a structure version."""
        return getattr(self._binding, name)
