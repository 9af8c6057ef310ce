"""The job of the chaos tests: it testifies to its own life in a file that gpuq knows nothing about.

Run as `python -S -E evidence_job.py DIRECTORY TAG RUN_S CODE MODE`; imports the standard library only, since its start
is what a test waits for. It appends one line at its start and one at its end, and holds a lock on a file of its tag and
on one per GPU it was given. A lock that is taken already is a violation: somebody else lives on that GPU, or another
attempt of the same submit does.

RUN_S -1: until the file `go-TAG` is there. MODE: `plain`; `stubborn` ignores SIGTERM; `family` also leaves a child in a
session of its own that ignores SIGTERM, holds the same locks and would live for a minute; `twice` runs for a minute at
the first start of its tag.

One thing to know: locks belong to the open file, so they are held until the last process that inherited it is gone.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time

LONG_S = 60.0


def main() -> int:
    """Live as told; the exit code is CODE."""
    directory, tag, run_s, code, mode = sys.argv[1:6]
    if mode in ("stubborn", "family"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    is_first = not os.path.exists(os.path.join(directory, f"lock-{tag}"))
    _testify(directory, tag, "start")
    _lock(directory, tag, tag)
    for gpu in filter(None, os.environ.get("GPUQ_GPUS", "").split(",")):
        _lock(directory, tag, gpu)
    if mode == "family" and os.fork() == 0:
        os.setsid()
        time.sleep(LONG_S)
        os._exit(0)
    _wait(directory, tag, LONG_S if mode == "twice" and is_first else float(run_s))
    _testify(directory, tag, "end", code)
    return int(code)


def _wait(directory: str, tag: str, run_s: float) -> None:
    end = time.monotonic() + (LONG_S if run_s < 0 else run_s)
    if run_s >= 0:
        time.sleep(run_s)
    while run_s < 0 and time.monotonic() < end and not os.path.exists(os.path.join(directory, f"go-{tag}")):
        time.sleep(0.02)


def _testify(directory: str, tag: str, what: str, detail: str = "-") -> None:
    """Append `what tag attempt pid boot monotonic detail` in one write."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    words = [what, tag, os.environ["GPUQ_ATTEMPT_ID"], str(os.getpid()), boot, f"{time.monotonic():.6f}", detail]
    descriptor = os.open(os.path.join(directory, "evidence"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, (" ".join(words) + "\n").encode())
    os.close(descriptor)


def _lock(directory: str, tag: str, name: str) -> None:
    """Lock a file until this process and its children are gone; say so when somebody else has it."""
    descriptor = os.open(os.path.join(directory, f"lock-{name}"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _testify(directory, tag, "violation", name)


if __name__ == "__main__":
    sys.exit(main())
