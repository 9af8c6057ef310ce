"""What `gpuq simulate` replays: a shipped trace, a file, or gpuq's own past. Imports client, options and units.

One thing to know: history comes from the daemon page by page; without --gpus it is replayed on the GPUs gpuq has now.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from gpuq.cli.options import Values
from gpuq.errors import UsageError, UserError
from gpuq.units import moment_at

if TYPE_CHECKING:
    from gpuq.sim.trace import Trace

SHIPPED: Final = {"small": "V100:8", "mixed": "V100:8,P100:8,K80:8"}  # with the GPUs they are simulated on unless told
_PAGE: Final = 1000


def trace_and_gpus(values: Values) -> tuple[Trace, str]:
    """The trace, and the cluster in the form of --gpus. Raises UserError."""
    since, asked = values.text("history"), values.text("trace")
    if since is not None:
        if asked is not None:
            raise UsageError("--history is a trace of its own.", f"Leave out {asked}, or --history.")
        return _history(since), values.text("gpus") or _gpus_now()
    asked = asked or "small"
    gpus = values.text("gpus") or SHIPPED.get(asked)
    if gpus is None:
        raise UsageError("simulate needs --gpus with a trace of your own.", "Write for example --gpus A100:16,V100:8.")
    from pathlib import Path

    from gpuq.sim.sacct import read_file
    from gpuq.sim.trace import read_shipped

    return (read_shipped(asked) if asked in SHIPPED else read_file(Path(asked))), gpus


def _history(since: str) -> Trace:
    from gpuq.cli.client import connect
    from gpuq.sim.history import from_history

    daemon = connect()
    query: dict[str, Any] = {"since": f"{moment_at(since, time.time()):.3f}", "limit": _PAGE}
    jobs: list[dict[str, Any]] = []
    while True:
        page = daemon.get("/v1/history", query)["jobs"]
        jobs += page
        if len(page) < _PAGE:
            break
        query["before"] = page[-1]["order"]
    if not jobs:
        raise UserError(f"No job of gpuq's history ended since {since}.", "Give a longer --history, or a trace.")
    return from_history(jobs)


def _gpus_now() -> str:
    from gpuq.cli.client import connect

    counts: dict[str, int] = {}
    for gpu in connect().get("/v1/gpus")["gpus"]:
        counts[gpu["type"]] = counts.get(gpu["type"], 0) + 1
    if not counts:
        raise UserError("gpuq has no GPUs to replay its history on.", "Write for example --gpus A100:16,V100:8.")
    return ",".join(f"{type_}:{count}" for type_, count in counts.items())
