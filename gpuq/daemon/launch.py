"""What an agent is told to start: the `spec` of docs/agent-protocol.md, environment included. Imports core.

One thing to know: a job's environment is what its submitter had, never the daemon's; gpuq's own variables and the
GPU selection are laid over it last.
"""

from __future__ import annotations

import base64
import os
import pwd
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpuq.core.model import GpuUuid, Job, Node, Visible

_OWN = ("GPUQ_JOB_", "GPUQ_ARRAY_", "GPUQ_GPUS", "GPUQ_NODENAME", "GPUQ_RESTART_COUNT", "GPUQ_CHECKPOINT_DIR",
        "GPUQ_SUBMIT_DIR", "GPUQ_PROGRESS_FILE")  # fmt: skip
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")  # in one pass: a value that looks like a placeholder stays as it is
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


class Places(NamedTuple):
    """Where gpuq keeps what belongs to jobs."""

    home: Path
    logs: Path
    log_limit_bytes: int | None


def parse_environment(data: bytes) -> dict[bytes, bytes]:
    """NUL-separated K=V bytes as a mapping; entries without a name are left out."""
    pairs = (entry.partition(b"=") for entry in data.split(b"\0") if entry)
    return {name: value for name, equals, value in pairs if equals and name}


def output_path(pattern: str, job: Job, node: str, cwd: str) -> str:
    """An -o/-e path with Slurm's letters filled in, made absolute below the working directory."""
    letters = {
        "%": "%",
        "j": job.id,
        "A": job.array,
        "a": str(job.task if job.task is not None else 0),
        "x": job.spec.name.replace("/", "_"),
        "u": job.owner.name,
        "N": node,
    }
    out, rest = [], iter(pattern)
    for letter in rest:
        if letter != "%":
            out.append(letter)
            continue
        code = next(rest, "%")
        out.append(letters.get(code, "%" + code))
    return os.path.join(cwd, "".join(out))


def log_path(job: Job, places: Places, number: int | None = None) -> str:
    """Where gpuq keeps the output of an attempt (by default of the current one) that named no file."""
    if number is None:
        number = job.attempt.number if job.attempt else 0
    suffix = f"-restart-{number}" if number else ""
    return str(places.logs / f"{job.id}{suffix}.log")


def output_paths(job: Job, places: Places, number: int | None = None) -> tuple[str, str | None]:
    """(stdout, stderr or None when joined) of the job's current or next attempt."""
    node = job.attempt.node if job.attempt else "%N"
    spec = job.spec
    stdout = output_path(spec.stdout, job, node, spec.cwd) if spec.stdout else log_path(job, places, number)
    stderr = output_path(spec.stderr, job, node, spec.cwd) if spec.stderr else None
    return stdout, stderr


def checkpoint_directory(job: Job, places: Places) -> Path:
    """Where the attempts of a job may keep what the next one is to go on from; never removed by gpuq."""
    return places.home / "checkpoints" / job.id


def argv_of(job: Job) -> list[str]:
    """The command with this task's sweep values filled in."""
    if not job.spec.values or job.task is None:
        return list(job.spec.argv)
    position = (job.task - job.spec.array_min) // max(1, job.spec.array_step)
    values = {name: row[position] for name, row in job.spec.values}
    return [_PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), word) for word in job.spec.argv]


def job_environment(job: Job, node: Node, submitted: bytes, places: Places) -> bytes:
    """The complete environment of an attempt, NUL-separated."""
    environment = {
        name: value
        for name, value in parse_environment(submitted).items()
        if not name.startswith(tuple(prefix.encode() for prefix in _OWN))
    }
    for name, value in _account_variables(job.owner.uid).items():
        environment.setdefault(name.encode(), value.encode())
    for name, value in _gpuq_variables(job, node, places).items():
        environment[name.encode()] = os.fsencode(value)
    return b"\0".join(name + b"=" + value for name, value in environment.items())


def _account_variables(uid: int) -> dict[str, str]:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return {"PATH": DEFAULT_PATH}
    return {
        "HOME": entry.pw_dir,
        "USER": entry.pw_name,
        "LOGNAME": entry.pw_name,
        "SHELL": entry.pw_shell or "/bin/sh",
        "PATH": DEFAULT_PATH,
    }


def _gpuq_variables(job: Job, node: Node, places: Places) -> dict[str, str]:
    attempt, spec = job.attempt, job.spec
    assert attempt is not None
    found = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": visible_devices(node, attempt.gpus, spec.visible),
        "GPUQ_JOB_ID": job.id,
        "GPUQ_JOB_NAME": spec.name,
        "GPUQ_GPUS": ",".join(attempt.gpus),
        "GPUQ_NODENAME": node.name,
        "GPUQ_SUBMIT_DIR": spec.cwd,
        "GPUQ_RESTART_COUNT": str(job.restarts),
        "GPUQ_CHECKPOINT_DIR": str(checkpoint_directory(job, places)),
    }
    if spec.time_limit_s:
        found["GPUQ_JOB_END_TIME"] = str(int(time.time() + spec.time_limit_s))
    if job.task is not None:
        found |= {
            "GPUQ_ARRAY_JOB_ID": job.array,
            "GPUQ_ARRAY_TASK_ID": str(job.task),
            "GPUQ_ARRAY_TASK_COUNT": str(spec.array_size),
            "GPUQ_ARRAY_TASK_MIN": str(spec.array_min),
            "GPUQ_ARRAY_TASK_MAX": str(spec.array_max),
            "GPUQ_ARRAY_TASK_STEP": str(spec.array_step),
        }
    if spec.slurm_env:
        found |= _slurm_variables(found, spec.cwd)
    return found


def _slurm_variables(own: Mapping[str, str], cwd: str) -> dict[str, str]:
    """The same facts under Slurm's names, for programs that look for those."""
    found = {name.replace("GPUQ_", "SLURM_", 1): value for name, value in own.items() if name.startswith("GPUQ_ARRAY_")}
    found |= {
        "SLURM_JOB_ID": own["GPUQ_JOB_ID"].replace("_", ""),
        "SLURM_JOB_NAME": own["GPUQ_JOB_NAME"],
        "SLURM_NODELIST": own["GPUQ_NODENAME"],
        "SLURMD_NODENAME": own["GPUQ_NODENAME"],
        "SLURM_RESTART_COUNT": own["GPUQ_RESTART_COUNT"],
        "SLURM_SUBMIT_DIR": cwd,
        "SLURM_NNODES": "1",
        "SLURM_NTASKS": "1",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
    }
    return found


def visible_devices(node: Node, gpus: tuple[GpuUuid, ...], visible: Visible) -> str:
    """CUDA_VISIBLE_DEVICES: UUIDs, or for `index` the position in PCI order (checked again by the agent)."""
    if visible is Visible.UUID:
        return ",".join(gpus)
    cards = sorted((gpu for gpu in node.gpus if gpu.parent is None), key=lambda gpu: (gpu.pci_bus_id or "", gpu.index))
    order = {gpu.uuid: str(position) for position, gpu in enumerate(cards)}
    return ",".join(order.get(uuid, uuid) for uuid in gpus)


def start_spec(job: Job, node: Node, environment: bytes, script: bytes | None, places: Places) -> dict[str, Any]:
    """The `spec` of a start frame."""
    spec = job.spec
    stdout, stderr = output_paths(job, places)
    kept = spec.stdout is None
    return {
        "job": job.id,
        "name": spec.name,
        "argv": argv_of(job),
        "script": base64.b64encode(script).decode() if script is not None else None,
        "environment": base64.b64encode(job_environment(job, node, environment, places)).decode(),
        "cwd": spec.cwd,
        "stdout": stdout,
        "stderr": stderr,
        "open_mode": "append" if spec.append or kept else "truncate",
        "umask": spec.umask,
        "time_limit_s": spec.time_limit_s,
        "grace_s": spec.grace_s,
        "warn_signal": spec.warn_signal,
        "warn_before_s": spec.warn_before_s,
        "warn_all": spec.warn_all,
        "log_limit_bytes": places.log_limit_bytes if kept else None,
        "memory_limit_mib": spec.resources.memory_mib,
        "gpus": list(job.attempt.gpus) if job.attempt else [],
        "visible": spec.visible.value,
    }
