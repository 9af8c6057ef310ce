"""The fields of a job that -o can name, and squeue's default columns. Imports units and render.table.

One thing to know: the plain form is for programs: every field in full, one job a line, nothing cut or coloured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from gpuq.cli.render.text import plain
from gpuq.errors import UsageError
from gpuq.units import format_duration, format_mib

Job = dict[str, Any]


class Field(NamedTuple):
    """A column of the plain form: heading, text, the value to sort by, what it reads of a job, alignment."""

    head: str
    text: Callable[[Job], str]
    key: Callable[[Job], Any]
    needs: tuple[str, ...]
    right: bool = False


TOGETHER: Final = ("id", "array", "task", "state", "reason", "held", "array_limit")  # to put waiting tasks in one line
DEFAULT: Final = "jobid,name,user,st,time,limit,gpus,nodereason"
LONG: Final = "jobid,name,user,state,time,limit,gpus,cpus,mem,priority,submit,start,progress,nodereason,command"


def gpus_text(job: Job) -> str:
    """`2 A100`: how many, and of which type they are or must be."""
    count = job.get("gpus_asked")
    held = job.get("gpus") or ()
    kind = held[0].get("type") if held else job.get("gpu_type")
    number = "-" if count is None else str(count)
    return f"{number} {kind}" if kind and count else number


def who_name(job: Job, own: str) -> str:
    """The name, with the owner before it when that is somebody else."""
    name = str(job.get("name") or "-")
    user = job.get("user")
    return name if user in (own, None) else f"{user}:{name}"


def time_text(at: float | None) -> str:
    """Local time as squeue prints it, `-` when unknown."""
    import time

    return "-" if at is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))


def node_or_reason(job: Job) -> str:
    """squeue's last column: the node, or the reason in brackets."""
    if job.get("node") and job.get("state") != "PENDING":
        return str(job["node"])
    return f"({job.get('reason') or 'None'})"


def progress_text(job: Job) -> str:
    """`42%` as the job reported it, `-` when it reports nothing."""
    return "-" if job.get("progress") is None else f"{100 * job['progress']:.0f}%"


def used_gpu_text(job: Job) -> str:
    """`71%`: mean utilisation of its GPUs, `-` when it was not measured."""
    return "-" if job.get("used_utilization") is None else f"{100 * job['used_utilization']:.0f}%"


def draw_text(job: Job) -> str:
    """`212 W`: mean draw of one of its GPUs, `-` when it was not measured."""
    return "-" if job.get("used_power_w") is None else f"{job['used_power_w']:.0f} W"


def _plain(key: str) -> Callable[[Job], str]:
    return lambda job: "-" if job.get(key) in (None, "") else str(job[key])


def _raw(key: str) -> Callable[[Job], Any]:
    return lambda job: job.get(key)


def _id_key(job: Job) -> tuple[int, int]:
    array, _, task = str(job["id"]).partition("_")
    return int(array) if array.isdigit() else 0, int(task) if task.isdigit() else -1


def _word(head: str, key: str, right: bool = False) -> Field:
    return Field(head, _plain(key), _raw(key), (key,), right)


def _span(head: str, key: str) -> Field:
    return Field(head, lambda job: format_duration(job.get(key)), _raw(key), (key,), True)


def _memory(head: str, key: str) -> Field:
    return Field(head, lambda job: format_mib(job.get(key)), _raw(key), (key,), True)


def _moment(head: str, key: str) -> Field:
    return Field(head, lambda job: time_text(job.get(key)), _raw(key), (key,))


def _time_left(job: Job) -> float | None:
    limit, elapsed = job.get("time_limit_s"), job.get("elapsed_s")
    return None if limit is None else limit - (elapsed or 0)


FIELDS: Final[dict[str, Field]] = {
    "jobid": Field("JOBID", _plain("id"), _id_key, ("id",), True),
    "name": _word("NAME", "name"),
    "user": _word("USER", "user"),
    "st": _word("ST", "code"),
    "state": _word("STATE", "state"),
    "time": _span("TIME", "elapsed_s"),
    "limit": _span("LIMIT", "time_limit_s"),
    "timeleft": Field("TIME_LEFT", lambda job: format_duration(_time_left(job)), _time_left,
                      ("time_limit_s", "elapsed_s"), True),
    "gpus": Field("GPUS", gpus_text, _raw("gpus_asked"), ("gpus_asked", "gpus", "gpu_type")),
    "nodereason": Field("NODE(REASON)", node_or_reason, node_or_reason, ("node", "state", "reason")),
    "node": _word("NODE", "node"),
    "reason": _word("REASON", "reason"),
    "message": _word("MESSAGE", "message"),
    "gpuids": Field("GPU_IDS", lambda job: ",".join(str(gpu["uuid"]) for gpu in job.get("gpus") or ()) or "-",
                    lambda job: str(job.get("gpus")), ("gpus",)),
    "gpumem": _memory("GPU_MEM", "gpu_memory_mib"),
    "mem": _memory("MEM", "memory_mib"),
    "cpus": _word("CPUS", "cpus", True),
    "priority": _word("PRIORITY", "priority", True),
    "restarts": _word("RESTARTS", "restarts", True),
    "evictions": _word("EVICTIONS", "evictions", True),
    "submit": _moment("SUBMIT_TIME", "submitted_at"),
    "begin": _moment("BEGIN_TIME", "begin_at"),
    "start": _moment("START_TIME", "started_at"),
    "end": _moment("END_TIME", "ended_at"),
    "expectedstart": _moment("EXPECTED_START", "expected_start_at"),
    "expectedend": _moment("EXPECTED_END", "expected_end_at"),
    "exit": _word("EXIT", "exit_code", True),
    "signal": _word("SIGNAL", "exit_signal", True),
    "command": _word("COMMAND", "command"),
    "workdir": _word("WORK_DIR", "cwd"),
    "stdout": _word("STDOUT", "stdout"),
    "stderr": _word("STDERR", "stderr"),
    "dependency": _word("DEPENDENCY", "dependency"),
    "comment": _word("COMMENT", "comment"),
    "attempt": _word("ATTEMPT", "attempt"),
    "usedgpu": Field("USED_GPU", used_gpu_text, _raw("used_utilization"), ("used_utilization",), True),
    "usedgpumem": _memory("USED_GPU_MEM", "used_memory_mib"),
    "draw": Field("DRAW", draw_text, _raw("used_power_w"), ("used_power_w",), True),
    "progress": Field("PROGRESS", progress_text, _raw("progress"), ("progress",), True),
    "impact": _word("IMPACT", "impact", True),
}  # fmt: skip
_OTHER_NAMES: Final = {"id": "jobid", "jobname": "name", "username": "user", "statecompact": "st", "timeused": "time",
                       "timelimit": "limit", "nodelist": "node", "reasonlist": "nodereason", "cwd": "workdir",
                       "submittime": "submit", "starttime": "start", "endtime": "end"}  # fmt: skip


def named_fields(text: str, option: str = "--format") -> list[Field]:
    """The fields that `text` lists with commas or blanks; raises UsageError with the nearest or all names."""
    found = []
    for word in text.replace(",", " ").split():
        name = word.lower().replace("_", "").replace("-", "")
        name = _OTHER_NAMES.get(name, name)
        if name not in FIELDS:
            from difflib import get_close_matches

            near = get_close_matches(name, FIELDS, 1)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise UsageError(f"{option}: there is no field '{word}'.", f"{hint}Known: {', '.join(FIELDS)}.")
        found.append(FIELDS[name])
    if not found:
        raise UsageError(f"{option} names no field.", f"Known: {', '.join(FIELDS)}.")
    return found


def needs_of(fields: list[Field], order: str = "") -> str:
    """What a list of these columns, sorted by `order`, reads of each job, for the query of the same name."""
    sorters = [named_fields(word.lstrip("+-"), "--sort")[0] for word in order.replace(",", " ").split()]
    return ",".join(sorted({*TOGETHER, *(need for field in (*fields, *sorters) for need in field.needs)}))


def sorted_jobs(jobs: list[Job], order: str) -> list[Job]:
    """The jobs by the fields of `order`; `-field` is downward; unknown values come last."""
    for word in reversed(order.replace(",", " ").split()):
        field = named_fields(word.lstrip("+-"), "--sort")[0]
        known = [job for job in jobs if field.key(job) is not None]
        known.sort(key=field.key, reverse=word.startswith("-"))
        jobs = known + [job for job in jobs if field.key(job) is None]
    return jobs


def plain_lines(jobs: list[Job], fields: list[Field], heads: bool = True) -> list[str]:
    """One full line per job under a line of headings, aligned by blanks."""
    columns = [_column(jobs, field, heads) for field in fields]
    return ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]


def _column(jobs: list[Job], field: Field, heads: bool) -> list[str]:
    """The cells of one field, made safe and padded; column by column is twice as fast as cell by cell."""
    texts = list(map(field.text, jobs))
    whole = "".join(texts)
    if not (whole.isascii() and whole.isprintable()):
        texts = [plain(text) for text in texts]
    if heads:
        texts.insert(0, field.head)
    width = max(map(len, texts), default=0)
    return [text.rjust(width) for text in texts] if field.right else [text.ljust(width) for text in texts]
