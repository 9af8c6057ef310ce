"""gpuq show: one job in full."""

from __future__ import annotations

import time

from gpuq.cli import output
from gpuq.cli.client import Daemon, connect, job_path
from gpuq.cli.options import JOBS, JSON, Command, Values
from gpuq.cli.selectors import expanded_ids


def show(values: Values) -> int:
    """Show the named jobs one after the other."""
    daemon = connect()
    ids = expanded_ids(values.words("jobs"))
    if values.flag("json") and len(ids) > 1:
        output.write_json({"jobs": [daemon.get(job_path(identity))["job"] for identity in ids]})
        return 0
    for number, identity in enumerate(ids):
        if number:
            output.write("")
        show_job(daemon, identity, values.flag("json"))
    return 0


def show_job(daemon: Daemon, identity: str, as_json: bool) -> int:
    """Write one job, and the tasks of an array, to standard output."""
    from gpuq.cli.render.fields import DEFAULT, named_fields, plain_lines
    from gpuq.cli.render.jobs import collapsed, job_in_full

    answer = daemon.get(job_path(identity))
    if as_json:
        output.write_json(answer)
        return 0
    output.write_lines(job_in_full(answer["job"], time.time()))
    if answer.get("tasks"):
        output.write("")
        output.write_lines(plain_lines(collapsed(answer["tasks"]), named_fields(DEFAULT)))
    return 0


COMMAND = Command(
    "Everything that is known of a job: what it asked for, where it runs, its files, how it ended.",
    show,
    (JSON,),
    JOBS,
)
