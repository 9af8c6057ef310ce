"""The families of what a job may ask for: resources, times, order, files. Imports errors, units, options.

One thing to know: shared by submit and update, so that a value means the same in both. Every function returns only
the JobSpec fields that were asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, Final

from gpuq.cli.options import Values
from gpuq.errors import UsageError
from gpuq.units import begin_at, duration_s, limit_s, size_mib

_GPUS: Final = re.compile(r"(?:([A-Za-z][A-Za-z0-9_.+-]*)[:=])?(\d+)")
_GRES: Final = re.compile(r"gpu(?::([A-Za-z][A-Za-z0-9_.+-]*))?(?:[:=](\d+))?")
_DEPENDENCY_KINDS: Final = ("after", "afterok", "afternotok", "afterany", "aftercorr", "singleton")
_JOB_ID: Final = re.compile(r"\d+(?:_\d+)?|last|@")


def check_utf8(text: str, what: str) -> None:
    """Refuse text that is not UTF-8 or holds a NUL character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{what} is not valid UTF-8: {os.fsencode(text)!r}.", "Rename it, or pass it in an environment variable."
        ) from error
    if "\0" in text:
        raise UsageError(f"{what} contains a NUL character.")


def whole_number(option: str, text: str, least: int | None = 0) -> int:
    """The whole number in `text`, at least `least`; raises UsageError."""
    try:
        number = int(text)
    except ValueError as error:
        raise UsageError(f"{option} '{text}' is not a whole number.") from error
    if least is not None and number < least:
        raise UsageError(f"{option} {number} is below {least}.")
    return number


def choice(option: str, text: str, known: Sequence[str]) -> str:
    """`text` if it is one of `known`; raises UsageError."""
    if text.lower() not in known:
        raise UsageError(f"{option} '{text}' is not known.", f"Write {' or '.join(known)}.")
    return text.lower()


def resources(values: Values) -> dict[str, Any]:
    """The Resources fields asked for."""
    found = _gpus(values)
    kind = values.text("gpu_type")
    if kind is not None:
        found["gpu_type"] = None if kind.lower() == "any" else kind
    ids = values.text("gpu_ids")
    if ids is not None:
        found["gpu_ids"] = _names(ids, "--gpu-ids")
        if found.get("gpus", len(found["gpu_ids"])) != len(found["gpu_ids"]):
            raise UsageError(f"--gpus {found['gpus']} and --gpu-ids {ids} do not agree.", "Leave --gpus out.")
        found["gpus"] = len(found["gpu_ids"])
    gpu_memory, memory, cpus = values.text("gpu_mem"), values.text("mem"), values.text("cpus_per_task")
    if gpu_memory is not None:
        found["gpu_memory_mib"] = size_mib(gpu_memory, "size for --gpu-mem") or None
    if memory is not None:
        found["memory_mib"] = size_mib(memory, "size for --mem") or None
    if cpus is not None:
        found["cpus"] = whole_number("--cpus-per-task", cpus, 1)
    for option, field in (("nodelist", "nodes"), ("exclude", "exclude")):
        names = values.text(option)
        if names is not None:
            found[field] = _names(names, f"--{option}")
    return found


def _gpus(values: Values) -> dict[str, Any]:
    text, gres = values.text("gpus"), values.text("gres")
    if text is not None and gres is not None:
        raise UsageError("--gpus and --gres cannot be combined.", "Give --gpus alone.")
    if gres is not None:
        found = _GRES.fullmatch(gres)
        if not found:
            raise UsageError(f"--gres '{gres}' is not understood.", "Write --gpus 2 or --gres gpu:a100:2.")
        kind, number = found[1], found[2] or "1"
    elif text is not None:
        found = _GPUS.fullmatch(text.strip())
        if not found:
            raise UsageError(f"--gpus '{text}' is not a number of GPUs.", "Write --gpus 2 or --gpus a100:2.")
        kind, number = found[1], found[2]
    else:
        return {}
    return {"gpus": int(number), **({"gpu_type": kind} if kind and kind.lower() != "any" else {})}


def _names(text: str, option: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError(f"{option} '{text}' names nothing.")
    return names


def times(values: Values) -> dict[str, Any]:
    """time_limit_s, deadline_at, grace_s and min_runtime_s as asked for."""
    found: dict[str, Any] = {}
    limit, grace, least = values.text("time"), values.text("grace"), values.text("min_runtime")
    if limit is not None:
        found["time_limit_s"] = limit_s(limit)
    deadline = values.text("deadline")
    if deadline is not None:
        found["deadline_at"] = _deadline(deadline)
    if grace is not None:
        found["grace_s"] = duration_s(grace, "grace time")
    if least is not None:
        found["min_runtime_s"] = duration_s(least, "time for --min-runtime")
    return found


def _deadline(text: str) -> float | None:
    """The moment that --deadline names; None for "none", which takes a deadline away."""
    import time

    if text.strip().lower() == "none":
        return None
    try:
        return begin_at(text, time.time())
    except UsageError as error:
        raise UsageError(f"--deadline '{text}' is not a moment.", error.hint) from error


def order(values: Values) -> dict[str, Any]:
    """Priority, retries and dependencies as asked for."""
    found: dict[str, Any] = {}
    for option in ("priority", "nice"):
        text = values.text(option)
        if text is not None:
            found[option] = whole_number(f"--{option}", text, None)
    retries = values.text("retries")
    if retries is not None:
        found["retries"] = whole_number("--retries", retries)
    requeue = values.switch("requeue")
    if requeue is not None:
        found["requeue"] = requeue
    depends = dependencies(values)
    if depends is not None:
        found["dependencies"] = depends
    return found


def dependencies(values: Values) -> dict[str, Any] | None:
    """The Dependencies object of -d, --after and --keep-on-failed-dep; None when there are none."""
    text, after = values.text("dependency"), values.text("after")
    if text is None and after is None:
        if values.flag("keep_on_failed_dep"):
            raise UsageError("--keep-on-failed-dep needs a dependency.", "Add -d afterok:ID.")
        return None
    any_of = text is not None and "?" in text
    if any_of and (after is not None or "," in (text or "")):
        raise UsageError(f"-d '{text}' mixes 'and' with 'or'.", "Use only commas (and), or only question marks (or).")
    terms = [term for part in re.split("[,?]", text or "") if part for term in _dependency(part)]
    for identity in re.split("[,: ]", after or ""):
        if identity:
            terms.append({"kind": "afterok", "job": _job(identity, f"--after {after}")})
    return {"terms": terms, "any_of": any_of, "keep_on_failed": values.flag("keep_on_failed_dep")}


def _dependency(part: str) -> list[dict[str, str]]:
    kind, *ids = part.strip().split(":")
    if kind.lower() not in _DEPENDENCY_KINDS:
        from difflib import get_close_matches

        near = get_close_matches(kind, _DEPENDENCY_KINDS, 1)
        raise UsageError(
            f"-d '{part}': there is no condition '{kind}'.",
            f"Did you mean {near[0]}?" if near else f"Known: {', '.join(_DEPENDENCY_KINDS)}.",
        )
    if kind.lower() == "singleton":
        if ids:
            raise UsageError(f"-d '{part}': singleton takes no job.", "Write -d singleton.")
        return [{"kind": "singleton", "job": ""}]
    if not ids:
        raise UsageError(f"-d '{part}' names no job.", f"Write -d {kind}:ID.")
    return [{"kind": kind.lower(), "job": _job(identity, f"-d {part}")} for identity in ids]


def _job(identity: str, place: str) -> str:
    if not _JOB_ID.fullmatch(identity):
        raise UsageError(f"{place}: '{identity}' is not a job id.", "Write a number such as 12, or 12_3.")
    return identity


def files(values: Values, cwd: str, remarks: list[str]) -> dict[str, Any]:
    """stdout, stderr and append as asked for, with absolute paths; a missing directory is remarked on."""
    found: dict[str, Any] = {}
    for option, field in (("output", "stdout"), ("error", "stderr")):
        text = values.text(option)
        if text is None:
            continue
        path = os.path.join(cwd, os.path.expanduser(text))
        check_utf8(path, f"--{option}")
        found[field] = path
        directory = os.path.dirname(path)
        if "%" not in directory and not os.path.isdir(directory):
            remarks.append(f"{directory} does not exist; make it before the job starts, or the job cannot start")
    mode = values.text("open_mode")
    if mode is not None:
        found["append"] = choice("--open-mode", mode, ("append", "truncate")) == "append"
    return found
