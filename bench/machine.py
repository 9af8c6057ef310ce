"""What machine, which versions, how busy. Imports the standard library and gpuq's version."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path

import gpuq

ROOT = Path(__file__).resolve().parent.parent


def machine_line(directory: Path) -> str:
    """One line: processor, cores, memory, kernel, file system of the temporary directory, Python, commit, date."""
    return ", ".join(
        (
            _processor(),
            f"{len(os.sched_getaffinity(0))} cores",
            f"{_memory_gib():.0f} GiB of memory",
            f"Linux {platform.release()}",
            f"{_filesystem(directory)} below the temporary directory",
            f"Python {platform.python_version()}",
            f"gpuq {gpuq.__version__} {_commit()}",
            time.strftime("%Y-%m-%d %H:%M %Z"),
        )
    )


def load() -> float:
    """Load average of the last minute."""
    return os.getloadavg()[0]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return " ".join(line.partition(":")[2].split())
    return platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _filesystem(directory: Path) -> str:
    """Type of the file system with the longest mount point above the directory."""
    wanted, best = str(directory.resolve()), ("", "unknown file system")
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4]
        if (wanted + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best[0]):
            best = (point, right.split()[0])
    return best[1]


def _commit() -> str:
    """The checkout's commit, with a + when files differ from it; empty outside a checkout."""
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        return f"({commit}{'+' if _git('status', '--porcelain', 'gpuq') else ''})"
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()
