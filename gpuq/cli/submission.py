"""What was typed to the daemon's `submit` object. Imports errors, units, config and the parsers beside it.

One thing to know: only what was asked for is put into `spec`, so the defaults stand in one place, core.model; with
--like the same rule makes "as that job, but for this".
"""

from __future__ import annotations

import binascii
import os
import time
from typing import Any, NamedTuple

from gpuq.cli import directives, requests
from gpuq.cli.arrays import Tasks, check_placeholders, put_line_last, tasks_of
from gpuq.cli.environment import captured_environment
from gpuq.cli.options import Command, Values
from gpuq.errors import UsageError
from gpuq.units import duration_s, format_duration, iso_time, signal_number


class Submission(NamedTuple):
    """The body of POST /v1/jobs, the values in force, and remarks for the person."""

    body: dict[str, Any]
    values: Values
    remarks: list[str]


class Program(NamedTuple):
    """What the job runs: its argv, its name unless given, and the text if it is a script."""

    argv: list[str]
    name: str
    script: bytes | None = None


def submission(typed: Values, command: Command) -> Submission:
    """The submit object for what was typed; raises UsageError."""
    like = earlier_spec(typed.text("like"))
    words = typed.words("command") or list(like.get("argv", ()))
    environment = directives.environment_values(command)
    remarks: list[str] = []
    program, lower = _program(words, typed, command, remarks)
    values = typed.merged({**({} if like else lower), **environment})
    tasks = tasks_of(values)
    argv = put_line_last(program.argv, tasks)
    check_placeholders(argv, tasks)
    cwd = _directory(values)
    asked = {**_program_fields(program, argv, cwd, values), **_spec_fields(values, cwd, remarks), **tasks.spec()}
    spec = _over(like, asked, values)
    _name_newest(spec.get("dependencies") or {})
    if program.script is None:
        _remark_on_program(argv[0], str(spec["cwd"]), remarks)
    body = _body(values, spec, tasks, program)
    return Submission(body, values, remarks)


def earlier_spec(identity: str | None) -> dict[str, Any]:
    """The spec that --like starts from; its environment and script are taken anew from here and now."""
    if identity is None:
        return {}
    from gpuq.cli.client import ensure_daemon, job_path
    from gpuq.cli.selectors import one_id

    spec: dict[str, Any] = ensure_daemon().get(job_path(one_id([identity])))["job"]["spec"]
    return spec


def _name_newest(depends: dict[str, Any]) -> None:
    """Write the caller's newest job in the place of `last`: a condition must not move to a later job."""
    terms = [term for term in depends.get("terms", ()) if term["job"] in ("last", "@")]
    if terms:
        from gpuq.cli.client import ensure_daemon

        newest = ensure_daemon().get("/v1/jobs", {"ids": "last", "all": 1})["jobs"][0]
        for term in terms:
            term["job"] = newest.get("array") or newest["id"]


def _over(like: dict[str, Any], asked: dict[str, Any], values: Values) -> dict[str, Any]:
    """The fields of `asked` over those of `like`; resources are merged one by one."""
    if not like:
        return asked
    kept = {name: value for name, value in like.items() if not name.startswith("array_") and name != "values"}
    same_program = not values.words("command") and values.text("wrap") is None
    named = values.text("job_name") is not None
    unchanged = {"cwd": values.text("chdir") is None, "umask": True, "name": same_program and not named}
    fields = {name: value for name, value in asked.items() if not (unchanged.get(name) and name in like)}
    return {**kept, **fields, "resources": {**like.get("resources", {}), **asked.get("resources", {})}}


def _program(
    words: list[str], typed: Values, command: Command, remarks: list[str]
) -> tuple[Program, dict[str, Any]]:
    """What to run, and what its directives ask for."""
    line = typed.text("wrap")
    if line is not None:
        if words:
            raise UsageError("--wrap and a command cannot be combined.", "Give one of them.")
        return Program(["/bin/sh", "-c", line], "wrap"), {}
    if not words:
        raise UsageError("There is no command to run.", "Write: gpuq submit -- python train.py")
    for word in words:
        requests.check_utf8(word, "An argument")
    text = directives.script_text(words[0])
    if text is None:
        return Program(words, _name_of(words)), {}
    script = directives.read_script(text, words[0], command)
    remarks.extend(script.remarks)
    place = os.path.abspath(words[0])  # where it was read, for `status` and --like; what runs is the copy
    return Program([place, *words[1:]], os.path.basename(place), script.text), script.values


def _name_of(words: list[str]) -> str:
    """The program's name; for `python train.py` and its like the script's."""
    program = os.path.basename(words[0])
    runs_scripts = program.rstrip("0123456789.") in ("python", "bash", "sh", "torchrun", "julia", "Rscript", "node")
    first = words[1] if len(words) > 1 else ""
    return os.path.basename(first) if runs_scripts and first and not first.startswith("-") else program


def _directory(values: Values) -> str:
    """The job's working directory, absolute; the shell's spelling is kept where it is the same place."""
    asked = values.text("chdir")
    try:
        here = os.getcwd()
    except OSError as error:
        raise UsageError("The current directory no longer exists.", "Change to another one, or give -D DIR.") from error
    shell = os.environ.get("PWD", "")
    try:
        if shell and os.path.isabs(shell) and os.path.samefile(shell, here):
            here = shell
    except OSError:
        pass  # PWD names nothing: the kernel's answer stands
    directory = os.path.normpath(os.path.join(here, os.path.expanduser(asked))) if asked else here
    requests.check_utf8(directory, "The working directory")
    return directory


def _program_fields(program: Program, argv: list[str], cwd: str, values: Values) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    name = values.text("job_name") or program.name
    if name:
        requests.check_utf8(name, "The name")
        if "\n" in name or "\0" in name:
            raise UsageError("The name contains a line break.", "Give one line with -J.")
        fields["name"] = name
    return {**fields, "argv": argv, "cwd": cwd}


def _spec_fields(values: Values, cwd: str, remarks: list[str]) -> dict[str, Any]:
    """The JobSpec fields that were asked for, by families."""
    from gpuq.config import load

    defaults = load()[0].submit
    fields: dict[str, Any] = {"umask": _umask()}
    resources = requests.resources(values)
    if "gpus" not in resources and values.text("like") is None:
        resources["gpus"] = len(resources["gpu_ids"]) if resources.get("gpu_ids") else defaults.gpus
    if resources:
        fields["resources"] = resources
    fields.update(requests.times(values))
    if values.text("like") is None:
        if values.text("time") is None and defaults.time_limit_s is not None:
            fields["time_limit_s"] = defaults.time_limit_s
        fields.setdefault("grace_s", defaults.grace_s)
    fields.update(_begin(values, remarks))
    fields.update(_warning_signal(values))
    fields.update(requests.order(values))
    fields.update(requests.files(values, cwd, remarks))
    fields.update(_behaviour(values))
    return fields


def _umask() -> int:
    current = os.umask(0)  # the only way to read it is to set it
    os.umask(current)
    return current


def _begin(values: Values, remarks: list[str]) -> dict[str, Any]:
    text = values.text("begin")
    if text is None:
        return {}
    from gpuq.units import begin_at

    now = time.time()
    moment = begin_at(text, now)
    if moment < now - 1:
        remarks.append(f"the begin time {iso_time(moment)} has passed; the job may start at once")
    return {"begin_at": moment}


def _warning_signal(values: Values) -> dict[str, Any]:
    """The fields of `--signal [B:]USR1@60`."""
    text = values.text("signal")
    if text is None:
        return {}
    first_only = text.upper().startswith("B:")
    name, _, before = text[2:].partition("@") if first_only else text.partition("@")
    seconds = not before or before.isdigit()  # Slurm's @60 is seconds
    before_s = float(before or 60) if seconds else duration_s(before, "time before the end")
    return {"warn_signal": signal_number(name), "warn_before_s": before_s, "warn_all": not first_only}


def _behaviour(values: Values) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    visible = "index" if values.flag("cuda_index") else values.text("visible")
    if visible is not None:
        fields["visible"] = requests.choice("--visible", visible, ("uuid", "index"))
    if values.flag("preemptible"):
        fields["preemptible"] = True
    if values.flag("slurm_env"):
        fields["slurm_env"] = True
    if values.text("comment") is not None:
        fields["comment"] = values.text("comment")
    return fields


def _remark_on_program(program: str, cwd: str, remarks: list[str]) -> None:
    if not os.path.isdir(cwd):
        remarks.append(f"the directory {cwd} does not exist on this machine; the job fails unless its node has it")
    elif "{" not in program and not directives.is_program(program, cwd):
        remarks.append(f"'{program}' is not found on this machine; the job fails unless its node has it")


def _body(values: Values, spec: dict[str, Any], tasks: Tasks, program: Program) -> dict[str, Any]:
    body: dict[str, Any] = {
        "key": os.urandom(16).hex(),
        "spec": spec,
        "tasks": tasks.indices,
        "held": values.flag("hold"),
        "gpus_given": any(values.text(name) is not None for name in ("gpus", "gres", "gpu_ids")),
        "environment": _base64(captured_environment(values)),
        "script": None if program.script is None else _base64(program.script),
    }
    return body


def _base64(content: bytes) -> str:
    return binascii.b2a_base64(content, newline=False).decode("ascii")


def time_limit_note(spec: dict[str, Any]) -> str | None:
    """The remark that says how a time limit was read."""
    limit = spec.get("time_limit_s")
    return None if limit is None else f"time limit {format_duration(limit)}"
