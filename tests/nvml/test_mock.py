"""The stand-in library itself, called through the real binding: what the agent's own tests do not reach."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.nvml import mock
from tests.nvml.mock import MockNvml

pytestmark = pytest.mark.e2e

PREAMBLE = """
import json, pynvml
pynvml.nvmlInit()
gpus = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
def code(function, *arguments):
    try:
        function(*arguments)
    except pynvml.NVMLError as error:
        return error.value
    return 0
def error_name(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        return type(error).__name__
"""


@pytest.fixture
def nvml(tmp_path: Path) -> Iterator[MockNvml]:
    """A machine with two A100s."""
    with MockNvml(tmp_path) as machine:
        machine.add_gpu()
        machine.add_gpu()
        yield machine


def ask(nvml: MockNvml, expression: str) -> Any:
    """The value of a Python expression in a new process that sees these GPUs."""
    program = f"{PREAMBLE}\nprint(json.dumps({expression}))"
    done = subprocess.run(
        [sys.executable, "-c", program], env=nvml.environment(), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_power_limit_set_by_root_caps_the_power(nvml: MockNvml) -> None:
    """What a client sets, the test sees; power drawn is the lesser of demand and limit."""
    nvml.set_top(root=1)
    nvml.set_gpu(0, demand_mw=390_000)
    drawn = "(pynvml.nvmlDeviceSetPowerManagementLimit(gpus[0], 250000), pynvml.nvmlDeviceGetPowerUsage(gpus[0]))[1]"
    assert ask(nvml, drawn) == 250_000
    assert nvml.get("gpu", 0, "limit_mw") == 250_000


def test_power_limit_needs_root(nvml: MockNvml) -> None:
    """An ordinary user may not set a limit, and nothing changes."""
    nvml.set_top(root=2)
    assert ask(nvml, "code(pynvml.nvmlDeviceSetPowerManagementLimit, gpus[0], 250000)") == mock.NO_PERMISSION
    assert nvml.get("gpu", 0, "limit_mw") == 400_000


def test_violation_status_and_samples(nvml: MockNvml) -> None:
    """Time under a power cap and buffered samples are there."""
    nvml.set_gpu(0, violation_ns=5_000_000, util=88)
    violation = "pynvml.nvmlDeviceGetViolationStatus(gpus[0], pynvml.NVML_PERF_POLICY_POWER).violationTime"
    assert ask(nvml, violation) == 5_000_000
    samples = "pynvml.nvmlDeviceGetSamples(gpus[0], pynvml.NVML_GPU_UTILIZATION_SAMPLES, 0)[1][0].sampleValue.uiVal"
    assert ask(nvml, samples) == 88


def test_peer_to_peer_status(nvml: MockNvml) -> None:
    """Peer access over NVLink depends on the links, over PCIe on the distance."""
    status = "[pynvml.nvmlDeviceGetP2PStatus(gpus[0], gpus[1], index) for index in (0, 2)]"
    nvml.connect(0, 1, ancestor=mock.SYSTEM)
    assert ask(nvml, status) == [3, 5]
    nvml.connect(0, 1, ancestor=mock.SYSTEM, nvlinks=4)
    assert ask(nvml, status) == [0, 0]


def test_accounting_keeps_ended_processes(nvml: MockNvml) -> None:
    """With accounting on, the peak memory of a process is known after its end."""
    row = nvml.add_process(0, 4_000_000, memory_mib=700)
    nvml.set("process", row, max_mem=900 * mock.MIB)
    nvml.end_process(row)
    assert ask(nvml, "code(pynvml.nvmlDeviceGetAccountingPids, gpus[0])") == mock.NOT_SUPPORTED
    nvml.set_gpu(0, accounting=1)
    assert ask(nvml, "pynvml.nvmlDeviceGetAccountingPids(gpus[0])") == [4_000_000]
    stats = (
        "[getattr(pynvml.nvmlDeviceGetAccountingStats(gpus[0], 4000000), n) for n in ('maxMemoryUsage', 'isRunning')]"
    )
    assert ask(nvml, stats) == [900 * mock.MIB, 0]


def test_fault_rule_runs_out(nvml: MockNvml) -> None:
    """A rule for two calls on one GPU leaves the third call and the other GPU alone."""
    nvml.add_fault("nvmlDeviceGetTemperature", mock.UNKNOWN, index=1, times=2)
    calls = "[code(pynvml.nvmlDeviceGetTemperature, gpus[i], 0) for i in (0, 1, 1, 1)]"
    assert ask(nvml, calls) == [0, mock.UNKNOWN, mock.UNKNOWN, 0]


def test_old_driver_lacks_newer_symbols(tmp_path: Path) -> None:
    """Built as driver 470 the library has no `_v3` process call, and the plain name raises the odd error."""
    with MockNvml(tmp_path, driver=470) as nvml:
        nvml.add_gpu()
        nvml.add_process(0, os.getpid(), memory_mib=10)
        assert ask(nvml, "code(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, gpus[0])") == 13
        assert ask(nvml, "len(pynvml.nvmlDeviceGetComputeRunningProcesses_v2(gpus[0]))") == 1
        assert (
            ask(nvml, "error_name(pynvml.nvmlDeviceGetComputeRunningProcesses, gpus[0])") == "NVMLLibraryMismatchError"
        )
