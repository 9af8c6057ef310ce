"""How long a person waits: the command line, and from a submit to the job's first instruction. Imports place.

One thing to know: the job under the clock is `date`, whose first act is to write the wall clock, so its own start is
part of the figure, for the peer too.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from bench.figures import Limit, Row, Unit
from bench.peer import Spooler
from bench.place import Place, command, occupy, submit_many
from bench.processes import Timed, timed, wait_for_file
from bench.wire import Wire
from tests.e2e.harness import Queue

TRIES = 30
WARM_UPS = 3


def _row(what: str, runs: list[Timed], limit: Limit | None, peer: list[Timed], note: str = "") -> Row:
    return Row(
        what, Unit.SECONDS, tuple(run.wall_s for run in runs), limit, tuple(run.wall_s for run in peer),
        tuple(run.cpu_s for run in runs), note,
    )  # fmt: skip


def help_and_completion(place: Place) -> list[Row]:
    """`gpuq --help` and the words a completion script asks for."""
    with place.queue(gpus=2) as queue, place.spooler() as spooler:
        occupy(queue, 1)
        shown = _repeated(queue, "--help")
        verb = _repeated(queue, "submit", "--help")
        words = _repeated(queue, "complete", "jobs")
        peer = [spooler.timed("-h") for _ in range(TRIES)] if spooler else []
    return [
        _row("--help, warm", shown, Limit(0.15), peer),
        _row("submit --help, warm", verb, None, []),
        _row("completion of job ids, warm", words, Limit(0.15), []),
    ]


def _repeated(queue: Queue, *words: str, tries: int = TRIES) -> list[Timed]:
    run = [*command(), *words]
    for _ in range(WARM_UPS):
        timed(run, queue.environment, queue.work)
    return [timed(run, queue.environment, queue.work) for _ in range(tries)]


def submit_command(place: Place) -> list[Row]:
    """`gpuq submit -- true` as a whole process; the queue is idle before each."""
    runs: list[Timed] = []
    with place.queue(gpus=2) as queue, place.spooler() as spooler:
        for _ in range(WARM_UPS + TRIES):
            runs.append(timed([*command(), "submit", "--", "true"], queue.environment, queue.work))
            queue.ended("last")
        peer = [spooler.timed("-n", "true") for _ in range(WARM_UPS + TRIES)] if spooler else []
    return [_row("submit -- true, warm, whole process", runs[WARM_UPS:], Limit(0.10), peer[WARM_UPS:])]


def first_instruction(place: Place) -> list[Row]:
    """From a submit to the first instruction of the job on an idle GPU."""
    with place.queue(gpus=2) as queue, place.spooler() as spooler:
        whole = [_from_command_line(queue, number) for number in range(WARM_UPS + TRIES)]
        inside = [_from_socket(queue, number) for number in range(WARM_UPS + TRIES)]
        peer = [_from_spooler(spooler, number) for number in range(WARM_UPS + TRIES)] if spooler else []
    return [
        Row(
            "submit to first instruction, end to end", Unit.SECONDS, tuple(whole[WARM_UPS:]), Limit(0.15),
            tuple(peer[WARM_UPS:]),
        ),
        Row(
            "the same from the request on the socket", Unit.SECONDS, tuple(inside[WARM_UPS:]), Limit(0.05),
            note="daemon, agent, shim and the job's exec",
        ),
    ]  # fmt: skip


def _clock(file: Path) -> list[str]:
    return ["sh", "-c", f"exec date +%s.%N > {file}"]


def _from_command_line(queue: Queue, number: int) -> float:
    file = queue.work / f"first{number}"
    begin_s = time.time()
    timed([*command(), "submit", "--", *_clock(file)], queue.environment, queue.work)
    first_s = float(wait_for_file(file))
    queue.ended("last")
    return first_s - begin_s


def _from_socket(queue: Queue, number: int) -> float:
    file = queue.work / f"socket{number}"
    body = json.dumps(queue.body(_clock(file))).encode()
    with Wire(queue.api.path) as wire:
        begin_s = time.time()
        wire.post("/v1/jobs", body)
    first_s = float(wait_for_file(file))
    queue.ended("last")
    return first_s - begin_s


def _from_spooler(spooler: Spooler, number: int) -> float:
    file = spooler.directory / f"first{number}"
    begin_s = time.time()
    spooler.timed("-n", *_clock(file))
    first_s = float(wait_for_file(file))
    spooler.say("-w")
    return first_s - begin_s


def status_of_many(place: Place) -> list[Row]:
    """`gpuq status` on a pipe with 10,000 jobs waiting in 20 queues: every job is listed."""
    with place.queue(gpus=2) as queue:
        occupy(queue, 2)
        submit_many(queue, ["true"], 10_000, names=20)
        listed = _repeated(queue, "status", tries=7)
        limited = _repeated(queue, "status", "--limit", "50", tries=7)
    return [
        _row("status with 10,000 jobs, all of them listed", listed, Limit(0.3), []),
        _row("status --limit 50 with 10,000 jobs", limited, None, []),
    ]
