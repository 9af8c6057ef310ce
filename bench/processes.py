"""Running processes, timing them, and reading what they cost from /proc. Imports the standard library.

One thing to know: CPU time of a living process is read in nanoseconds from `schedstat` of each of its threads, since
the usual clock ticks of 10 ms are longer than much of what is measured here.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

DEADLINE_S = 120.0


class Timed(NamedTuple):
    """One program, run from start to end."""

    wall_s: float
    cpu_s: float  # user + system, of the program and of the children it waited for


def timed(words: Sequence[str], environment: Mapping[str, str], cwd: Path) -> Timed:
    """Run a program with its output thrown away; raises RuntimeError when it does not exit with 0."""
    null = os.open(os.devnull, os.O_RDWR)
    try:
        begin_s = time.perf_counter()
        process = subprocess.Popen(words, stdin=null, stdout=null, stderr=null, env=dict(environment), cwd=cwd)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - begin_s
    finally:
        os.close(null)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} ended with exit code {process.returncode}")
    return Timed(wall_s, usage.ru_utime + usage.ru_stime)


def output_of(words: Sequence[str], environment: Mapping[str, str], cwd: Path) -> str:
    """What a program prints; raises when it fails. Children that it leaves behind may keep its output open."""
    with tempfile.TemporaryFile() as output:
        subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL, env=dict(environment), cwd=cwd,
            timeout=DEADLINE_S, check=True,
        )  # fmt: skip
        output.seek(0)
        return output.read().decode()


def cpu_s(pid: int) -> float:
    """CPU time of a living process so far, all threads; 0 when it is gone."""
    total_ns = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            total_ns += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        pass  # a thread or the process has ended meanwhile
    return total_ns / 1e9


def resident_mib(pid: int) -> float:
    """Resident memory of a process, shared pages included."""
    return _field_mib(f"/proc/{pid}/status", "VmRSS:")


def proportional_mib(pid: int) -> float:
    """Memory of a process with each shared page divided by the number of its users."""
    return _field_mib(f"/proc/{pid}/smaps_rollup", "Pss:")


def _field_mib(path: str, name: str) -> float:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def wait_for_file(path: Path, within_s: float = DEADLINE_S) -> str:
    """The first complete line of a file once there is one; raises TimeoutError."""
    end_s = time.monotonic() + within_s
    while time.monotonic() < end_s:
        try:
            text = path.read_text()
        except OSError:
            text = ""
        if "\n" in text:
            return text.splitlines()[0]
        time.sleep(0.005)
    raise TimeoutError(f"nothing was written to {path} within {within_s:g} s")
