"""gpuq nodes: machines and their state."""

from __future__ import annotations

from gpuq.cli import output
from gpuq.cli.client import connect
from gpuq.cli.options import JSON, Command, Values


def nodes(values: Values) -> int:
    """List the machines."""
    found = connect().get("/v1/nodes")["nodes"]
    if values.flag("json"):
        output.write_json({"nodes": found})
        return 0
    from gpuq.cli.render.machines import nodes_table

    width = output.width() if output.on_terminal() else None
    output.write_lines(nodes_table(found, output.coloured(), width))
    return 0


COMMAND = Command(
    "Machines with their state: idle, mixed, allocated, draining, drained, down; * after one that does not answer.",
    nodes,
    (JSON,),
)
