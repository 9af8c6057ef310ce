"""gpuq daemon: start, stop, look at or install the daemon."""

from __future__ import annotations

import time

from gpuq.cli import output
from gpuq.cli.client import Daemon, connect
from gpuq.cli.options import JSON, Argument, Command, Option, Values
from gpuq.cli.requests import choice
from gpuq.errors import GpuqError

_STOP_WITHIN_S = 30.0


def daemon(values: Values) -> int:
    """Carry out one of the actions."""
    actions = {
        "run": _run, "start": _start, "stop": _stop, "restart": _restart, "status": _status, "install": _install,
        "restore": _restore,
    }
    return actions[choice("daemon", values.text("action") or "status", tuple(actions))](values)


def _run(values: Values) -> int:
    from gpuq.daemon.main import run

    return int(run(allow_rollback=values.flag("allow_rollback")) or 0)


def _start(values: Values) -> int:
    there = connect()
    if there.answers():
        output.write(f"The daemon is already running at {there.paths.socket}")
        return 0
    from gpuq.daemon.main import start_in_background

    start_in_background(allow_rollback=values.flag("allow_rollback"))
    output.write(f"The daemon is running at {there.paths.socket}")
    return 0


def _stop(values: Values) -> int:
    there = connect()
    if not there.answers():
        output.write("The daemon is not running")
        return 0
    there.post("/v1/shutdown", {}, repeatable=False)
    _wait_until_gone(there)
    output.write("The daemon has stopped; running jobs go on")
    return 0


def _restart(values: Values) -> int:
    _stop(values)
    return _start(values)


def _wait_until_gone(there: Daemon) -> None:
    stop_at = time.monotonic() + _STOP_WITHIN_S
    while there.answers():
        if time.monotonic() > stop_at:
            raise GpuqError(
                f"The daemon at {there.paths.socket} still answers after {_STOP_WITHIN_S:.0f} s.", "See its log."
            )
        time.sleep(0.05)


def _status(values: Values) -> int:
    answer = connect().get("/v1/status")
    if values.flag("json"):
        output.write_json(answer)
        return 0
    from gpuq.cli.render.fields import time_text

    since = time_text(answer["started_at"])
    output.write(f"The daemon {answer['version']} is running: pid {answer['pid']}, since {since}")
    output.write(f"socket  {answer['socket']}\nstate   {answer['home']}")
    for text in (answer.get("degraded"), *answer.get("warnings", ())):
        if text:
            output.note(text)
    return 1 if answer.get("degraded") else 0


def _restore(values: Values) -> int:
    """Put a backup of the journal in place of a damaged one; the damaged one is kept."""
    from pathlib import Path

    from gpuq.journal.backup import restore

    there = connect()
    if there.answers():
        raise GpuqError("The daemon is running on the journal.", "Stop it first: gpuq daemon stop")
    chosen = values.text("backup")
    aside = restore(Path(there.paths.home), Path(chosen) if chosen else None)
    output.write(f"The backup is in place; what was there before is kept in {aside}")
    output.note("Jobs submitted after the backup are not in it. Start with: gpuq daemon start --allow-rollback")
    return 0


def _install(values: Values) -> int:
    from gpuq.daemon.unit import install, linger_note

    for line in install(connect().paths, start=values.flag("now")):
        output.write(line)
    note = linger_note()
    if note:
        output.note(note)
    return 0


COMMAND = Command(
    "start: in the background (submit does it by itself). stop: jobs go on and are found again. run: in the "
    "foreground, for systemd. status: exit code 3 when nobody answers. install: a systemd user unit. restore: a backup "
    "of the journal takes the place of a damaged one.",
    daemon,
    (
        Option(("--now",), "With install: enable and start the unit as well."),
        Option(("--allow-rollback",), "With start or run: go on although acknowledged entries are missing."),
        Option(("--backup",), "With restore: the backup file; by default the newest.", metavar="FILE"),
        JSON,
    ),
    Argument(
        "action", "ACTION", "run, start, stop, restart, status, install or restore.",
        completes="run start stop restart status install restore",
    ),
)  # fmt: skip
