"""gpuq demo: some twenty real processes on simulated GPUs, in a private daemon that leaves nothing behind."""

from __future__ import annotations

import time
from typing import Any, Final

from gpuq.cli import output
from gpuq.cli.options import Command, Option, Values
from gpuq.errors import GpuqError

LOOK_EVERY_S: Final = 0.3
SIMULATED_WITHIN_S: Final = 30.0
DRIVER_WITHIN_S: Final = 10.0  # an agent that still waits for the driver tells of no GPU
MOST_S: Final = 180.0  # on real GPUs that others use, the demo does not wait for ever
_INTERRUPTED: Final = 130


def demo(values: Values) -> int:
    """Run the demo; 0 when every job ended as it should."""
    from gpuq.cli.demo_show import Progress
    from gpuq.cli.demo_stage import Interrupted, Stage

    simulated = not values.flag("real")
    progress = Progress()
    stage = Stage(progress.say)
    try:
        stage.open(simulated)
        return _play(stage, progress, simulated)
    except Interrupted:
        output.note("interrupted; ending the demo's jobs and its daemon")
        return _INTERRUPTED
    finally:
        stage.close()


def _play(stage: Any, progress: Any, simulated: bool) -> int:
    from gpuq.cli import demo_jobs
    from gpuq.cli.demo_show import account

    gpus = _gpus(stage, SIMULATED_WITHIN_S if simulated else DRIVER_WITHIN_S)
    hardware = demo_jobs.SIMULATED if simulated else demo_jobs.real_hardware(len(gpus))
    output.write(_opening(gpus, simulated))
    with progress:
        ids = demo_jobs.submit_all(stage.submit, hardware)
        jobs = _watched(stage, progress, ids)
    full = [stage.get(f"/v1/jobs/{job['id']}")["job"] for job in jobs]
    output.write("")
    for line in account(full, _releases(full), len(gpus), stage.get("/v1/status").get("impact_factor_today")):
        output.write(line)
    if stage.restarts:
        times = "once" if stage.restarts == 1 else f"{stage.restarts} times"
        output.write(f"The daemon was started again {times}; no job was lost.")
    return _verdict(full, simulated)


def _gpus(stage: Any, within_s: float) -> list[dict[str, Any]]:
    """The GPUs, once the machine's agent has told of them."""
    stop_at = time.monotonic() + within_s
    while time.monotonic() < stop_at:
        gpus: list[dict[str, Any]] = stage.get("/v1/gpus")["gpus"]
        if gpus:
            return gpus
        time.sleep(0.05)
    raise GpuqError("This machine has no GPU that gpuq can use.", "Try it with simulated ones: gpuq demo")


def _opening(gpus: list[dict[str, Any]], simulated: bool) -> str:
    kinds: dict[str, int] = {}
    for gpu in gpus:
        kinds[str(gpu.get("type"))] = kinds.get(str(gpu.get("type")), 0) + 1
    cards = " and ".join(f"{count} {kind}" for kind, count in kinds.items())
    return f"A private daemon with {cards}{' (simulated; the processes are real)' if simulated else ''}\n"


def _watched(stage: Any, progress: Any, ids: list[str]) -> list[dict[str, Any]]:
    """All jobs, once they have ended; shows what happens meanwhile."""
    began = time.monotonic()
    while True:
        jobs: list[dict[str, Any]] = stage.get("/v1/jobs", {"ids": ",".join(ids), "all": 1})["jobs"]
        passed_s = time.monotonic() - began
        progress.show(jobs, stage.get("/v1/gpus")["gpus"], passed_s)
        if all(job["wait_exit_code"] is not None for job in jobs):
            return jobs
        if passed_s > MOST_S:
            raise GpuqError(f"After {MOST_S:.0f} s not all jobs of the demo had ended.", "Are the GPUs used by others?")
        time.sleep(LOOK_EVERY_S)


def _releases(jobs: list[dict[str, Any]]) -> Any:
    """When each job could first have run: submitted, and what it depends on ended."""
    ended = {job["id"]: job["ended_at"] for job in jobs}

    def released(job: dict[str, Any]) -> float:
        words = str(job.get("dependency") or "").replace("?", ",").split(",")
        before = [ended.get(word.partition(":")[2]) for word in words]
        return float(max([job["submitted_at"], *(moment for moment in before if moment is not None)]))

    return released


def _verdict(jobs: list[dict[str, Any]], simulated: bool) -> int:
    """0 when each job ended as the demo means it to."""
    expected = {"diverges": "FAILED", "after-it": "CANCELLED", "too-long": "TIMEOUT"}
    wrong = [job for job in jobs if job["state"] != expected.get(job["name"], "COMPLETED")]
    for job in wrong:
        output.note(f"job {job['id']} ({job['name']}) ended {job['state']}: {job.get('message') or job.get('reason')}")
    if not wrong:
        output.write("\nThree of them were meant to go wrong: one fails, one waits for it, one passes its time limit.")
        output.write("Try it yourself: gpuq submit --gpus 1 -- python3 train.py")
    return 1 if wrong else 0


COMMAND = Command(
    "A private daemon with eight simulated GPUs of two types runs some twenty real processes: an array, a sweep, "
    "a chain, a Slurm script, a job that fails and one that passes its time limit. It takes less than 40 s and "
    "leaves nothing behind, also after Ctrl-C. --real uses this machine's GPUs.",
    demo,
    (Option(("--real",), "Use the real GPUs of this machine."),),
)
