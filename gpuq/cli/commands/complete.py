"""gpuq complete: words for the completion scripts; silent when there is no daemon."""

from __future__ import annotations

from gpuq.cli import output
from gpuq.cli.client import connect
from gpuq.cli.options import Argument, Command, Values
from gpuq.errors import GpuqError

_WITHIN_S = 1.0
_MOST = 500


def complete(values: Values) -> int:
    """Print job ids, or node names, one a line."""
    try:
        if values.text("kind") == "nodes":
            words = [str(node["name"]) for node in connect().get("/v1/nodes", timeout_s=_WITHIN_S)["nodes"]]
        else:
            jobs = connect().get("/v1/jobs", {"all": 1, "limit": _MOST}, timeout_s=_WITHIN_S)["jobs"]
            words = ["last", *(str(job["id"]) for job in jobs)]
    except GpuqError:
        return 1  # a message would land in the middle of the person's line
    output.write_lines(words)
    return 0


COMMAND = Command("Words for completion.", complete, (), Argument("kind", "KIND", "jobs or nodes."))
