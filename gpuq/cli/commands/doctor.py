"""gpuq doctor: checks this machine and says what to correct."""

from __future__ import annotations

from gpuq.cli import output
from gpuq.cli.options import JSON, Command, Values


def doctor(values: Values) -> int:
    """Run all checks; 1 when one of them fails."""
    from gpuq.cli.checks import all_checks

    results = all_checks()
    failed = any(result.level == "fail" for result in results)
    if values.flag("json"):
        output.write_json({"ok": not failed, "checks": [result._asdict() for result in results]})
        return int(failed)
    from gpuq.cli.render.table import styled
    from gpuq.cli.render.text import plain

    styles = {"ok": "running", "warn": "waiting", "fail": "trouble"}
    for result in results:
        word = styled(f"{result.level:<4}", styles[result.level], output.coloured())
        output.write(f"{word}  {plain(result.name)}: {plain(result.found)}")
        if result.advice:
            output.write(f"      {plain(result.advice)}")
    return int(failed)


COMMAND = Command(
    "Check Python, the socket, the daemon, the state directory, driver and GPUs, how completely jobs can be ended, "
    "and the environment that jobs would take along. Each line says ok, warn or fail, and what to do.",
    doctor,
    (JSON,),
)
