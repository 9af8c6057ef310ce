"""gpuq gpus: use, memory, power, and who holds them."""

from __future__ import annotations

from gpuq.cli import output
from gpuq.cli.client import connect
from gpuq.cli.options import JSON, Command, Values


def gpus(values: Values) -> int:
    """List the GPUs."""
    found = connect().get("/v1/gpus")["gpus"]
    if values.flag("json"):
        output.write_json({"gpus": found})
        return 0
    from gpuq.cli.render.machines import gpus_table

    width = output.width() if output.on_terminal() else None
    output.write_lines(gpus_table(found, output.coloured(), width))
    return 0


COMMAND = Command(
    "GPUs with their latest sample and what holds them: a job, a foreign process, or nothing (free).",
    gpus,
    (JSON,),
)
