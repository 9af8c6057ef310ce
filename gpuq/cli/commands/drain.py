"""gpuq drain: start nothing more on a machine."""

from __future__ import annotations

from gpuq.cli import output
from gpuq.cli.client import connect, node_path
from gpuq.cli.options import JSON, Argument, Command, Option, Values
from gpuq.cli.render.text import plain


def drain(values: Values) -> int:
    """Drain the machine."""
    name = values.text("node") or ""
    answer = connect().post(node_path(name, "/drain"), {"reason": values.text("reason") or ""})
    if values.flag("json"):
        output.write_json(answer)
    else:
        output.write(plain(f"Node {name} starts nothing more"))
    return 0


COMMAND = Command(
    "Start nothing more on a machine; what runs there goes on. Its state is draining, then drained.",
    drain,
    (Option(("--reason",), "Why; it is shown with the machine.", "TEXT"), JSON),
    Argument("node", "NODE", "Its name, as in gpuq nodes.", completes="nodes"),
)
