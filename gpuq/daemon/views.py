"""Records as the JSON objects of docs/api.md. Pure functions over the state. Imports core, launch.

One thing to know: unknown is null, never 0; every duration is in seconds and every time is seconds since the epoch.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from gpuq.core.model import Dependencies, Gpu, Health, Job, Node, Reach
from gpuq.core.plan import Plan
from gpuq.core.state import ClusterState
from gpuq.core.states import JobState
from gpuq.daemon import launch

Json = dict[str, Any]


def gpus_by_uuid(state: ClusterState) -> dict[str, Gpu]:
    """Every known GPU."""
    return {gpu.uuid: gpu for node in state.nodes.values() for gpu in node.gpus}


def wait_exit_code(job: Job) -> int:
    """What `gpuq wait` exits with: the job's code, 128 + signal, and 1 whenever 0 was not seen by the kernel."""
    code = job.exit.shell_code if job.exit and job.state.is_final else None
    if job.state is JobState.COMPLETED:
        return 0
    return code if code else 1


def dependency_text(dependencies: Dependencies) -> str | None:
    """Slurm's grammar: afterok:1,afterany:2, with ? between alternatives."""
    if not dependencies.terms:
        return None
    words = [f"{term.kind.value}:{term.job}" if term.job else term.kind.value for term in dependencies.terms]
    return ("?" if dependencies.any_of else ",").join(words)


def elapsed_s(job: Job, steady_s: float) -> float | None:
    """Running time so far, or of the ended attempt; null before it started."""
    attempt = job.attempt
    if attempt is None or attempt.started_steady_s is None:
        return attempt.exit.run_s if attempt and attempt.exit else None
    if attempt.exit is not None and attempt.exit.run_s is not None:
        return attempt.exit.run_s
    if attempt.ended_at is not None and attempt.started_at is not None:
        return max(0.0, attempt.ended_at - attempt.started_at)
    return max(0.0, steady_s - attempt.started_steady_s)


def job_brief(job: Job, steady_s: float, gpus: dict[str, Gpu]) -> Json:
    """The columns of `status`."""
    spec, attempt = job.spec, job.attempt
    shown = attempt if attempt is not None and (job.state.holds_gpus or job.state.is_final) else None
    asked = spec.resources
    return {
        "id": job.id,
        "array": job.array if job.task is not None else None,
        "task": job.task,
        "name": spec.name,
        "user": job.owner.name,
        "state": job.state.value,
        "code": job.state.code,
        "reason": job.reason.value,
        "message": job.message,
        "gpus_asked": asked.gpus,
        "gpu_type": asked.gpu_type,
        "node": shown.node if shown else None,
        "gpus": [_held_gpu(uuid, gpus) for uuid in shown.gpus] if shown else [],
        "submitted_at": job.submitted_at,
        "started_at": shown.started_at if shown else None,
        "ended_at": job.ended_at,
        "time_limit_s": spec.time_limit_s,
        "elapsed_s": elapsed_s(job, steady_s) if shown else None,
        "exit_code": shown.exit.code if shown and shown.exit else None,
        "exit_signal": shown.exit.signal if shown and shown.exit else None,
        "wait_exit_code": wait_exit_code(job) if job.state.is_final else None,
        "priority": spec.priority,
        "restarts": job.restarts,
        "evictions": job.evictions,
        "held": job.held.value if job.held else None,
        "stopping": attempt.stop.kind.value if attempt and attempt.stop and not job.state.is_final else None,
        "array_limit": spec.array_limit or None,
        "progress": shown.progress[-1][1] if shown and shown.progress else None,
        "expected_start_at": None,
        "expected_end_at": None,
    }


def _held_gpu(uuid: str, gpus: dict[str, Gpu]) -> Json:
    gpu = gpus.get(uuid)
    return {"uuid": uuid, "index": gpu.index if gpu else None, "type": gpu.type if gpu else None}


def job_full(job: Job, steady_s: float, gpus: dict[str, Gpu], places: launch.Places) -> Json:
    """Everything about one job."""
    spec, attempt = job.spec, job.attempt
    exit_ = job.exit
    used = exit_.used if exit_ else None
    stdout, stderr = launch.output_paths(job, places)
    argv = launch.argv_of(job)
    return job_brief(job, steady_s, gpus) | {
        "uid": job.owner.uid,
        "command": shlex.join(argv),
        "argv": argv,
        "cwd": spec.cwd,
        "gpu_memory_mib": spec.resources.gpu_memory_mib,
        "cpus": spec.resources.cpus or None,
        "memory_mib": spec.resources.memory_mib,
        "nodelist": list(spec.resources.nodes),
        "exclude": list(spec.resources.exclude),
        "begin_at": spec.begin_at,
        "deadline_at": spec.deadline_at,
        "not_before_at": job.not_before_at,
        "placed_at": attempt.placed_at if attempt else None,
        "attempt": attempt.id if attempt else None,
        "attempt_number": attempt.number if attempt else None,
        "dependency": dependency_text(spec.dependencies),
        "stdout": stdout,
        "stderr": stderr,
        "predicted_s": list(attempt.predicted_s) if attempt and attempt.predicted_s else None,
        "run_s": exit_.run_s if exit_ else None,
        "cpu_s": exit_.cpu_s if exit_ else None,
        "used_utilization": used.utilization if used else None,
        "used_power_w": used.power_w if used else None,
        "used_memory_mib": used.memory_mib if used else None,
        "used_samples": used.samples if used else None,
        "max_rss_mib": exit_.max_rss_mib if exit_ else None,
        "log_bytes": exit_.log_bytes if exit_ else None,
        "log_dropped_bytes": exit_.log_dropped_bytes if exit_ else None,
        "exit_error": exit_.error if exit_ else None,
        "comment": spec.comment,
        "retries": spec.retries,
        "requeue": spec.requeue,
        "preemptible": spec.preemptible,
        "nice": spec.nice,
        "grace_s": spec.grace_s,
        "array_size": spec.array_size or None,
        "spec": _spec_for_resubmission(job),
        "impact": None,
    }


def _spec_for_resubmission(job: Job) -> Json:
    """What `submit --like` starts from: the flags of the submission, without environment and script."""
    import msgspec

    plain: Json = msgspec.to_builtins(job.spec)
    for name in ("environment", "script", "dependencies", "begin_at", "deadline_at"):
        plain.pop(name, None)
    return plain


def with_estimates(found: Json, job: Job, plan: Plan | None, wall_minus_steady_s: float) -> Json:
    """Fill in when a waiting job is expected to start and end."""
    estimate = plan.estimates.get(job.id) if plan is not None and job.state is JobState.PENDING else None
    if estimate is not None:
        found["expected_start_at"] = estimate.start_s + wall_minus_steady_s
        found["expected_end_at"] = estimate.end_s + wall_minus_steady_s
    return found


# --- nodes and GPUs -------------------------------------------------------------------------------------


def node_state(node: Node, busy: int) -> str:
    """Slurm's word for a node, with * while it does not answer."""
    if node.drain is not None:
        word = "draining" if busy else "drained"
    elif node.reach is Reach.UNREACHABLE:
        word = "down"
    elif busy == 0:
        word = "idle"
    else:
        word = "allocated" if busy >= sum(1 for gpu in node.gpus if gpu.usable) else "mixed"
    return word if node.reach is Reach.UP else word + "*"


def node_view(state: ClusterState, node: Node, last_seen_s: float | None, error: str | None) -> Json:
    """One node object."""
    busy = sum(1 for gpu in node.gpus if gpu.uuid in state.owners)
    types: dict[str, int] = {}
    for gpu in node.gpus:
        types[gpu.type] = types.get(gpu.type, 0) + 1
    return {
        "name": node.name,
        "hostname": node.hostname,
        "state": node_state(node, busy),
        "reach": node.reach.value,
        "drain": {"reason": node.drain.reason, "by": node.drain.by, "at": node.drain.at} if node.drain else None,
        "cpus": node.cpus,
        "cpus_used": state.used_cpus.get(node.name, 0),
        "memory_mib": node.memory_mib,
        "memory_used_mib": state.used_memory_mib.get(node.name, 0),
        "gpus_total": len(node.gpus),
        "gpus_busy": busy,
        "types": types,
        "containment": node.containment.value,
        "containment_detail": node.containment_detail,
        "driver": node.driver,
        "driver_error": node.driver_error,
        "agent_version": node.agent_version,
        "boot_id": node.boot_id,
        "warnings": list(node.warnings),
        "last_seen_s": last_seen_s,
        "link_error": error,
    }


def gpu_state(state: ClusterState, node: Node, gpu: Gpu) -> tuple[str, str | None]:
    """(word, reason): free, busy, foreign, unknown, unusable, lost or quarantined."""
    attempt = state.owners.get(gpu.uuid)
    job = state.jobs.get(state.attempts[attempt]) if attempt in state.attempts else None
    if job is not None and job.attempt is not None and job.attempt.unkillable:
        pids = ", ".join(map(str, job.attempt.unkillable))
        return "quarantined", f"processes {pids} of job {job.id} cannot be killed"
    if gpu.health is Health.LOST:
        return "lost", gpu.reason or "the driver has lost it"
    if attempt is not None:
        return "busy", None if job else "held by an attempt that no job here owns"
    if not gpu.usable:
        return "unusable", gpu.reason
    if gpu.foreign:
        return "foreign", foreign_text(gpu)
    if not gpu.seen or node.reach is Reach.UNREACHABLE:
        return "unknown", "its use is not known yet"
    return "free", None


def foreign_text(gpu: Gpu) -> str:
    """The processes outside gpuq on a GPU, in words."""
    return "foreign: " + ", ".join(
        " ".join(str(part) for part in (who.user, who.name, who.pid) if part is not None) for who in gpu.foreign
    )


def gpu_view(state: ClusterState, node: Node, gpu: Gpu, sample: Json | None, history: Iterable[float | None]) -> Json:
    """One GPU object."""
    word, reason = gpu_state(state, node, gpu)
    attempt = state.owners.get(gpu.uuid)
    job = state.jobs.get(state.attempts[attempt]) if attempt in state.attempts else None
    seen = sample or {}
    return {
        "node": node.name,
        "index": gpu.index,
        "uuid": gpu.uuid,
        "type": gpu.type,
        "name": gpu.name,
        "state": word,
        "reason": reason,
        "job": job.id if job else None,
        "job_name": job.spec.name if job else None,
        "user": job.owner.name if job else None,
        "utilization": seen.get("utilization"),
        "memory_used_mib": seen.get("memory_used_mib"),
        "memory_total_mib": seen.get("memory_total_mib") or gpu.memory_mib,
        "power_w": seen.get("power_w"),
        "power_limit_w": seen.get("power_limit_w") or gpu.power_limit_w,
        "energy_j": seen.get("energy_j"),
        "temperature_c": seen.get("temperature_c"),
        "processes": seen.get("processes"),
        "pci_bus_id": gpu.pci_bus_id,
        "parent": gpu.parent,
        "utilization_history": list(history),
    }
