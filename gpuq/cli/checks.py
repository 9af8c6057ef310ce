"""The checks of `gpuq doctor`. Imports config, client, environment, socketpath.

One thing to know: a check never raises; what it cannot find out is a warning that says so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from gpuq.cli.client import Daemon
from gpuq.config import Paths, load
from gpuq.errors import GpuqError

_NETWORK_FILE_SYSTEMS: Final = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "9p", "lustre", "beegfs", "gpfs", "afs", "ceph", "fuse.sshfs", "glusterfs",
})  # fmt: skip
_LEAST_FREE_BYTES: Final = 1 << 30
_CONTAINMENT: Final = {
    "A": ("ok", "control groups (v2): every process of a job is found and ended"),
    "B": ("ok", "control groups (v1): every process of a job is found and ended"),
    "C": ("warn", "by process tree only: a process that hides from its parent could be missed"),
}


class Check(NamedTuple):
    """One result: ok, warn or fail; what was found; what to do."""

    level: str
    name: str
    found: str
    advice: str = ""


def all_checks() -> list[Check]:
    """All results, in the order in which they matter."""
    results = [_python()]
    try:
        settings, paths = load()
    except GpuqError as error:
        return [*results, Check("fail", "settings", error.message, error.hint or "Correct gpuq.toml.")]
    results.append(Check("ok", "settings", settings.file or f"{paths.config_file} is absent: all defaults"))
    steps: tuple[Callable[[Paths], list[Check]], ...] = (_socket, _home, _environment, _daemon)
    for step in steps:
        try:
            results += step(paths)
        except (GpuqError, OSError) as error:
            results.append(Check("warn", step.__name__.strip("_"), f"could not be checked: {error}"))
    return results


def _python() -> Check:
    return Check("ok", "Python", f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}")


def _socket(paths: Paths) -> list[Check]:
    from gpuq.socketpath import PATH_LIMIT_BYTES, directory_fault

    directory = os.path.dirname(paths.socket)
    if not os.path.isdir(directory):
        return [Check("ok", "socket", f"{paths.socket} (its directory is made at the first start)")]
    fault = directory_fault(directory)
    if fault is not None:
        return [Check("fail", "socket", fault, f"chmod 700 {directory}, or set GPUQ_SOCKET to a path of your own.")]
    if len(os.fsencode(paths.socket)) > PATH_LIMIT_BYTES:
        return [Check("warn", "socket", f"{paths.socket} is longer than {PATH_LIMIT_BYTES} bytes",
                      "gpuq copes; for other programs set GPUQ_SOCKET to a shorter path.")]  # fmt: skip
    return [Check("ok", "socket", paths.socket)]


def _home(paths: Paths) -> list[Check]:
    place = paths.home
    while not os.path.exists(place):
        place = os.path.dirname(place)
    if not os.access(place, os.W_OK):
        return [Check("fail", "state directory", f"{place} cannot be written", "Set GPUQ_HOME to your own place.")]
    kind = file_system(place)
    if kind in _NETWORK_FILE_SYSTEMS:
        return [Check("warn", "state directory", f"{paths.home} is on {kind}, a network file system",
                      "Set GPUQ_HOME to a local disk: locks and durability are weaker there.")]  # fmt: skip
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    if free < _LEAST_FREE_BYTES:
        return [Check("warn", "state directory", f"{paths.home} has only {free >> 20} MiB free", "Make room.")]
    return [Check("ok", "state directory", f"{paths.home} on {kind or 'an unknown file system'}")]


def file_system(path: str) -> str | None:
    """The type of the file system that `path` is on, by the longest mount point that holds it."""
    best, kind = "", None
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as stream:
            mounts = [line.split() for line in stream]
    except OSError:
        return None
    real = os.path.realpath(path)
    for fields in mounts:
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def _environment(paths: Paths) -> list[Check]:
    from gpuq.cli.environment import captured_environment
    from gpuq.cli.options import Values

    packed = captured_environment(Values({}))
    number = packed.count(b"\0") + 1 if packed else 0
    found = f"{number} variables, {len(packed) >> 10} KiB go with each job"
    if os.environ.get("LD_PRELOAD"):
        return [Check("warn", "environment", f"{found}; LD_PRELOAD is among them", "Unset it before gpuq submit.")]
    return [Check("ok", "environment", found)]


def _daemon(paths: Paths) -> list[Check]:
    there = Daemon(paths)
    if not there.answers():
        return [Check("warn", "daemon", f"none answers at {paths.socket}", "The first gpuq submit starts it.")]
    from gpuq import __version__

    answer = there.get("/v1/status")
    results = [Check("ok", "daemon", f"version {answer['version']}, pid {answer['pid']}")]
    if answer["version"] != __version__:
        results = [Check("warn", "daemon", f"version {answer['version']}, but this command is {__version__}",
                         "Jobs go on while you run: gpuq daemon restart")]  # fmt: skip
    if answer.get("degraded"):
        results.append(Check("fail", "daemon", answer["degraded"], "See daemon.log in the state directory."))
    results += [Check("warn", "daemon", text) for text in answer.get("warnings") or ()]
    for node in there.get("/v1/nodes")["nodes"]:
        results += _node(node)
    return results


def _node(node: dict[str, Any]) -> list[Check]:
    name = f"node {node['name']}"
    if str(node.get("state", "")).endswith("*"):
        why = node.get("link_error") or "it does not answer"
        return [Check("fail", name, str(why), "Jobs there go on; see: gpuq nodes")]
    results = []
    if node.get("driver_error"):
        results.append(Check("warn", name, str(node["driver_error"]), "Its GPUs are not used until nvidia-smi works."))
    elif not node.get("gpus_total"):
        results.append(Check("warn", name, "it has no GPU", "Jobs without GPUs run; try simulated ones: gpuq demo"))
    else:
        results.append(Check("ok", name, f"{node['gpus_total']} GPUs, driver {node.get('driver') or 'unknown'}"))
    level, text = _CONTAINMENT.get(str(node.get("containment")), ("warn", "how jobs are ended is not known"))
    detail = f" ({node['containment_detail']})" if node.get("containment_detail") else ""
    results.append(Check(level, f"{name}, ending jobs", text + detail))
    return results
