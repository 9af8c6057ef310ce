"""Steers the stand-in for libnvidia-ml.so.1: builds it, and reads and writes the state its users see.

Owns: the compiled library (once per source and driver age, shared by all test processes) and state files.
May import: the standard library and pytest.
One thing to know: the library is found by LD_LIBRARY_PATH, which counts only for processes started with it.
So code under test runs in a child process with `environment()`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import mmap
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).with_name("mock_nvml.c")
LIBRARY = "libnvidia-ml.so.1"
MIB = 1024 * 1024
NOT_SUPPORTED_NUMBER = 0xFFFFFFFF

# Return codes of nvml.h for fault rules.
NOT_SUPPORTED = 3
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
GPU_IS_LOST = 15
LIB_RM_VERSION_MISMATCH = 18
UNKNOWN = 999

COMPUTE, GRAPHICS, MPS = 0, 1, 2
XID_EVENT = 0x8
ONE_SWITCH, MANY_SWITCHES, HOST_BRIDGE, NUMA_NODE, SYSTEM = 10, 20, 30, 40, 50

A100: dict[str, int | str] = {
    "name": "NVIDIA A100-SXM4-80GB",
    "mem_total": 81920 * MIB,
    "mem_reserved": 600 * MIB,
    "cc_major": 8,
    "cc_minor": 0,
    "arch": 7,
    "has_ecc": 1,
    "has_mig": 1,
    "nvlinks": 12,
    "limit_mw": 400_000,
    "default_mw": 400_000,
    "min_mw": 100_000,
    "max_mw": 400_000,
    "demand_mw": 62_000,
    "temp": 34,
    "sm_mhz": 210,
    "sm_max_mhz": 1410,
}
RTX3090: dict[str, int | str] = {
    "name": "NVIDIA GeForce RTX 3090",
    "mem_total": 24576 * MIB,
    "mem_reserved": 310 * MIB,
    "cc_major": 8,
    "cc_minor": 6,
    "arch": 7,
    "limit_mw": 350_000,
    "default_mw": 350_000,
    "min_mw": 100_000,
    "max_mw": 385_000,
    "demand_mw": 20_000,
    "temp": 30,
    "sm_mhz": 210,
    "sm_max_mhz": 2100,
}


class _Field(NamedTuple):
    is_text: bool
    offset: int
    size: int


class _Table(NamedTuple):
    offset: int
    stride: int
    rows: int
    fields: dict[str, _Field]


@functools.cache
def library_directory(driver: int = 580) -> Path:
    """The directory with the library as a driver of that age; skips the test when there is no C compiler."""
    compiler = shutil.which("gcc")
    if compiler is None:
        reason = "gcc is needed to build the stand-in for libnvidia-ml.so.1; install gcc"
        if os.environ.get("GPUQ_REQUIRE_ALL") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    directory = Path(tempfile.gettempdir()) / f"gpuq-mock-nvml-{os.getuid()}-{digest}-{driver}"
    if not (directory / LIBRARY).exists():
        directory.mkdir(mode=0o700, exist_ok=True)
        built = directory / f"{LIBRARY}.{os.getpid()}"
        flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{LIBRARY}"]
        subprocess.run([compiler, *flags, f"-DDRV={driver}", "-o", built, SOURCE], check=True)
        built.rename(directory / LIBRARY)  # whole at once: other test processes may be doing the same
    return directory


@functools.cache
def _layout(directory: Path) -> dict[str, _Table]:
    """Where each field of each table stands, as the library itself tells."""
    describe = ctypes.CDLL(str(directory / LIBRARY)).mock_nvml_layout
    describe.restype = ctypes.c_char_p
    tables: dict[str, _Table] = {}
    fields: dict[str, _Field] = {}
    for line in describe().decode().splitlines():
        words = line.strip().split(":")
        if line.startswith(" "):
            fields[words[0]] = _Field(words[1] == "s", int(words[2]), int(words[3]))
        else:
            fields = {}
            tables[words[0]] = _Table(int(words[1]), int(words[2]), int(words[3]), fields)
    return tables


class MockNvml:
    """One machine's worth of made-up GPUs. `driver` is the age of the library, 470 to 580."""

    def __init__(self, directory: Path, driver: int = 580) -> None:
        self.library_directory = library_directory(driver)
        self.state_path = directory / "nvml-state"
        self._tables = _layout(self.library_directory)
        size = self._tables["size"].offset
        self.state_path.write_bytes(bytes(size))
        with self.state_path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), size)
        self.set_top(driver=f"{driver}.95.05", nvml=f"13.{driver}.95.05", cuda=13000, reap=1)

    def __enter__(self) -> MockNvml:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._memory.close()

    def environment(self, base: dict[str, str] | None = None) -> dict[str, str]:
        """Variables for a child process that shall see these GPUs."""
        variables = dict(os.environ if base is None else base)
        former = variables.get("LD_LIBRARY_PATH")
        variables["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (str(self.library_directory), former)))
        variables["MOCK_NVML_STATE"] = str(self.state_path)
        return variables

    # -- whole tables

    def set(self, table: str, row: int, **values: int | str) -> None:
        """Write fields of one row; see mock_nvml.c for tables and fields."""
        for name, value in values.items():
            start, field = self._place(table, row, name)
            if isinstance(value, str):
                assert field.is_text
                data = value.encode().ljust(field.size, b"\0")
                assert len(data) == field.size
            else:
                assert not field.is_text
                data = value.to_bytes(field.size, "little")
            self._memory[start : start + field.size] = data

    def get(self, table: str, row: int, name: str) -> int:
        """Read one number."""
        start, field = self._place(table, row, name)
        return int.from_bytes(self._memory[start : start + field.size], "little")

    def set_top(self, **values: int | str) -> None:
        """Write what is not about one GPU: driver, cuda, count, init_err, root, reap."""
        self.set("top", 0, **values)

    # -- the things that tests are about

    def add_gpu(self, model: dict[str, int | str] = A100, **values: int | str) -> str:
        """Plug in a GPU after the others, and return its UUID."""
        index = self.get("top", 0, "count")
        fields: dict[str, int | str] = {
            "uuid": f"GPU-00000000-0000-4000-8000-{index:012d}",
            "bus": 0xC0 + index,
            "minor": index,
            "numa": 0,
            "fan": NOT_SUPPORTED_NUMBER,
            "energy_t0_ns": time.monotonic_ns(),
            **model,
            **values,
        }
        self.set("gpu", index, **fields)
        self.set_top(count=index + 1)
        return str(fields["uuid"])

    def set_gpu(self, index: int, **values: int | str) -> None:
        """Change fields of a GPU, such as lost=1, util=97, demand_mw=390000."""
        self.set("gpu", index, **values)

    def connect(self, one: int, other: int, *, ancestor: int = SYSTEM, nvlinks: int = 0) -> None:
        """Say how two GPUs are connected: the common ancestor on PCIe, and straight NVLinks."""
        for row, column in ((one, other), (other, one)):
            self._set_matrix("topology", row, column, ancestor)
            self._set_matrix("links", row, column, nvlinks)

    def add_slice(self, index: int, slot: int, *, slices: int, memory_mib: int) -> str:
        """Put a GPU into MIG mode, if it is not yet, make one slice of it, and return the slice's UUID."""
        uuid = f"MIG-00000000-0000-4000-8000-{index:06d}{slot:06d}"
        row = index * 8 + slot
        self.set("slice", row, uuid=uuid, mem_total=memory_mib * MIB, gi=slot + 1, slices=slices, used=1)
        self.set_gpu(index, mig_mode=1, mig_pending=1)
        return uuid

    def remove_slice(self, index: int, slot: int) -> None:
        """Destroy a slice; the card stays in MIG mode."""
        self.set("slice", index * 8 + slot, used=0)

    def add_process(self, index: int, pid: int, *, memory_mib: int, kind: int = COMPUTE, gi: int = 0) -> int:
        """Let a process hold memory on a GPU; returns the row, for `end_process`."""
        row = self._free_row("process")
        fields = {"gpu": index, "pid": pid, "kind": kind, "mem": memory_mib * MIB, "gi": gi, "ended": 0}
        self.set("process", row, **fields)
        self.set("process", row, used=1)
        self.set_gpu(index, mem_used=self.get("gpu", index, "mem_used") + memory_mib * MIB)
        return row

    def end_process(self, row: int) -> None:
        """Take a process off its GPU, with its memory."""
        index, held = self.get("process", row, "gpu"), self.get("process", row, "mem")
        self.set("process", row, ended=1)
        self.set_gpu(index, mem_used=self.get("gpu", index, "mem_used") - held)

    def add_fault(
        self, function: str, code: int = 0, *, index: int | None = None, delay_ms: int = 0, times: int = 0
    ) -> int:
        """Let an NVML function fail or hang ("" for all), on one GPU or all; returns the row."""
        row = self._free_row("fault")
        gpu = 0 if index is None else index + 1
        self.set("fault", row, fn=function, code=code, gpu1=gpu, delay_ms=delay_ms, times=times)
        self.set("fault", row, used=1)
        return row

    def clear_fault(self, row: int) -> None:
        """Let the function work again; a call that hangs goes on hanging for its time."""
        self.set("fault", row, used=0)

    def report_xid(self, index: int, xid: int) -> None:
        """Let the driver raise an Xid error."""
        sequence = self.get("top", 0, "event_seq")
        self.set("event", sequence % self._tables["event"].rows, type=XID_EVENT, data=xid, gpu=index)
        self.set_top(event_seq=sequence + 1)

    def unplug(self, index: int) -> None:
        """Let the driver forget a GPU, as after a reload: the ones behind it move up."""
        table = self._tables["gpu"]
        end = table.offset + self.get("top", 0, "count") * table.stride
        start = table.offset + index * table.stride
        behind = self._memory[start + table.stride : end]
        self._memory[start : start + len(behind)] = behind
        self.set_top(count=self.get("top", 0, "count") - 1)

    # -- places in the state

    def _place(self, table: str, row: int, name: str) -> tuple[int, _Field]:
        described = self._tables[table]
        assert 0 <= row < described.rows
        field = described.fields[name]
        return described.offset + row * described.stride + field.offset, field

    def _set_matrix(self, table: str, row: int, column: int, value: int) -> None:
        described = self._tables[table]
        start = described.offset + (row * 16 + column) * described.stride
        self._memory[start : start + 4] = value.to_bytes(4, "little")

    def _free_row(self, table: str) -> int:
        """A row never used, or used by a rule that has run out."""
        rows = range(self._tables[table].rows)
        return next(row for row in rows if not self.get(table, row, "used"))
