"""gpuq resume: let a drained machine work again."""

from __future__ import annotations

from gpuq.cli import output
from gpuq.cli.client import connect, node_path
from gpuq.cli.options import JSON, Argument, Command, Values
from gpuq.cli.render.text import plain


def resume(values: Values) -> int:
    """Resume the machine."""
    name = values.text("node") or ""
    answer = connect().post(node_path(name, "/resume"), {})
    if values.flag("json"):
        output.write_json(answer)
    else:
        output.write(plain(f"Node {name} takes jobs again"))
    return 0


COMMAND = Command(
    "Let a drained machine take jobs again.",
    resume,
    (JSON,),
    Argument("node", "NODE", "Its name, as in gpuq nodes.", completes="nodes"),
)
