"""Job, node and GPU objects as the daemon sends them, for the tests of the command line."""

from __future__ import annotations

from typing import Any

NOW = 1_772_380_800.0  # 2026-03-01T16:00:00Z


def job(identity: str = "41", **changes: Any) -> dict[str, Any]:
    """A job object of docs/api.md, running on four GPUs unless changed."""
    return {
        "id": identity, "array": None, "task": None, "name": "llama-ft", "user": "anna", "uid": 1000,
        "state": "RUNNING", "code": "R", "reason": "None", "message": None, "command": "python train.py",
        "argv": ["python", "train.py"], "cwd": "/home/anna", "gpus_asked": 4, "gpu_type": "A100",
        "gpu_memory_mib": None, "cpus": 8, "memory_mib": None, "node": "mill",
        "gpus": [{"uuid": f"GPU-{place}", "index": place, "type": "A100"} for place in range(4)],
        "submitted_at": NOW - 12000, "begin_at": None, "placed_at": NOW - 11561, "started_at": NOW - 11560,
        "ended_at": None, "time_limit_s": 28800.0, "elapsed_s": 11560.0, "exit_code": None, "exit_signal": None,
        "wait_exit_code": None, "priority": 0, "restarts": 0, "attempt": "0-0-0", "attempt_number": 0, "held": None,
        "dependency": None, "stdout": f"/nowhere/{identity}.log", "stderr": None, "expected_start_at": None,
        "expected_end_at": NOW + 6000, "stopping": None, "comment": None, "impact": 1.5, "array_limit": None,
        "log_dropped_bytes": 0, **changes,
    }  # fmt: skip


def waiting(identity: str = "44", **changes: Any) -> dict[str, Any]:
    """A job that waits."""
    return job(identity, **{
        "name": "eval-big", "state": "PENDING", "code": "PD", "reason": "Resources", "node": None, "gpus": [],
        "message": "needs 8 on one node; 41 holds 4", "gpus_asked": 8, "started_at": None, "placed_at": None,
        "elapsed_s": None, "time_limit_s": None, "expected_end_at": NOW + 9000, "expected_start_at": NOW + 6000,
        "attempt": None, "attempt_number": None, **changes,
    })  # fmt: skip


def ended(identity: str = "40", code: int | None = 0, **changes: Any) -> dict[str, Any]:
    """A job that has ended with `code`."""
    return job(identity, **{
        "name": "probe", "state": "COMPLETED" if code == 0 else "FAILED", "code": "CD" if code == 0 else "F",
        "reason": "None" if code == 0 else "NonZeroExitCode", "exit_code": code,
        "wait_exit_code": 1 if code is None else code,
        "ended_at": NOW - 60, "run_s": 61.0, "elapsed_s": 61.0, "gpus_asked": 1, "expected_end_at": None, **changes,
    })  # fmt: skip


SUMMARY: dict[str, Any] = {
    "version": "0.1.0", "pid": 77, "home": "/state", "socket": "/state/gpuq.sock", "started_at": NOW - 86400,
    "degraded": None, "warnings": [], "counts": {"RUNNING": 2, "PENDING": 11, "FAILED": 1}, "failed_today": 1,
    "gpus_total": 8, "gpus_busy": 6, "impact_factor_today": 0.71,
}  # fmt: skip

JOBS: list[dict[str, Any]] = [
    job("41"),
    job("43_3", array="43", task=3, name="sweep", gpus_asked=2, gpu_type=None, node="attic", elapsed_s=725.0,
        time_limit_s=None, gpus=[{"uuid": "GPU-a", "index": 2, "type": "V100"}, {"uuid": "GPU-b", "index": 3,
        "type": "V100"}], expected_end_at=NOW + 90000),
    waiting("44"),
    *(waiting(f"43_{task}", array="43", task=task, name="sweep", gpus_asked=1, gpu_type=None, array_limit=3,
              reason="JobArrayTaskLimit", message="at most 3 of this array at once (%3)", expected_start_at=None)
      for task in range(4, 13)),
    waiting("46", user="tom", name="vit[0.1] \x1b[31m", reason="FasterGpuSoon", gpus_asked=1,
            message="a faster GPU frees soon: A100 17:40, V100 now would end later and that is a long explanation"),
]  # fmt: skip

NODES: list[dict[str, Any]] = [
    {"name": "mill", "hostname": "mill", "state": "mixed", "reach": "up", "drain": None, "cpus": 64, "cpus_used": 16,
     "memory_mib": 515000, "memory_used_mib": 130000, "gpus_total": 4, "gpus_busy": 2, "containment": "A",
     "containment_detail": "", "driver": "nvidia 580.65", "driver_error": None, "agent_version": "0.1.0",
     "boot_id": "b", "warnings": [], "types": {"A100-80G": 4}, "last_seen_s": 1.0, "link_error": None},
    {"name": "den", "hostname": "den", "state": "drained*", "reach": "unreachable",
     "drain": {"reason": "new fan", "by": "tom", "at": NOW}, "cpus": None, "cpus_used": None, "memory_mib": None,
     "memory_used_mib": None, "gpus_total": 1, "gpus_busy": 0, "containment": "C", "containment_detail": "",
     "driver": None, "driver_error": None, "agent_version": "0.1.0", "boot_id": "b", "warnings": ["clock is off"],
     "types": {"RTX3090": 1}, "last_seen_s": 300.0, "link_error": None},
]  # fmt: skip


def gpu(node: str, index: int, **changes: Any) -> dict[str, Any]:
    """A GPU object, free and without a sample unless changed."""
    return {
        "node": node, "index": index, "uuid": f"GPU-{node}-{index}", "type": "A100-80G", "name": "NVIDIA A100",
        "state": "free", "reason": None, "job": None, "job_name": None, "user": None, "utilization": None,
        "memory_used_mib": None, "memory_total_mib": 81920, "power_w": None, "power_limit_w": 400.0, "energy_j": None,
        "temperature_c": None, "processes": None, "pci_bus_id": None, "parent": None, "utilization_history": [],
        **changes,
    }  # fmt: skip


GPUS: list[dict[str, Any]] = [
    gpu("mill", 0, state="busy", job="41", job_name="llama-ft", utilization=0.91, memory_used_mib=62669, power_w=288.4,
        temperature_c=64, utilization_history=[0.1, 0.3, 0.9, 1.0, None, 0.91]),
    gpu("mill", 1),
    gpu("den", 0, type="RTX3090", state="foreign", reason="foreign: tom python 8123", utilization=0.07,
        memory_used_mib=11469, memory_total_mib=24576, power_w=118.0, power_limit_w=350.0, temperature_c=44),
]  # fmt: skip

WHY: dict[str, Any] = {
    "id": "46", "name": "vit", "state": "PENDING", "reason": "FasterGpuSoon", "message": "waits for an A100",
    "impact": 1.9, "prices": {"A100": 1.1, "V100": 0.6},
    "planned": {"node": "mill", "gpus": [{"uuid": "GPU-0", "index": 0, "type": "A100"}], "type": "A100",
                "start_at": NOW + 6000, "end_at": NOW + 11100, "predicted_s": 5100},
    "options": [{"type": "V100", "node": "attic", "start_at": NOW, "end_at": NOW + 18600, "run_s": 18600.0,
                 "impact": 0.8, "price": 0.6}],
    "nodes": [{"node": "den", "gpu": 0, "type": "RTX3090", "ok": False, "when": "never", "reason": "GpuMemory",
               "message": "24 GiB, 40 GiB asked"},
              {"node": "den", "gpu": 1, "type": "RTX3090", "ok": False, "when": "later", "reason": "GpuForeignUse",
               "message": "foreign process 8123 of tom (python, 11.2 GiB)"},
              {"node": "attic", "gpu": 2, "type": "V100", "ok": True, "when": "now", "reason": None, "message": None}],
    "ahead": [{"id": "44", "name": "eval-big", "impact": 2.4}],
    "prediction": {"run_s": 5100.0, "low_s": 4800.0, "high_s": 5700.0, "lowest_s": 4200.0, "highest_s": 9000.0,
                   "basis": "6 runs of \"vit\"", "informed": True, "speed_factors": {"A100": 1.1, "V100": 0.8}},
    "expected_use": {"utilization": 0.71, "utilization_runs": 6, "memory_mib": 18432.0, "memory_runs": 6,
                     "draws": [{"type": "A100", "power_w": 212.0, "runs": 6},
                               {"type": "V100", "power_w": 150.0, "runs": 0}]},
    "blockers": [{"id": "41", "name": "llama-ft", "node": "mill", "gpus": 4, "ends_at": NOW + 6000}],
    "hint": "--gpu-type any would start it now", "planned_at": NOW - 12, "planner": "cp-sat",
    "solve": {"greedy_objective": 124000.0, "objective": 121500.0, "status": "better", "time_s": 0.31, "windows": 2,
              "gap": 0.012},
    "weight": {"value": 2.5, "priority": 1.25, "balance": 0.5,
               "account": {"account": "ana", "share": 0.5, "usage": 0.85, "balance": 0.5}, "deadline": 2.0,
               "deadline_at": NOW + 36000, "slack_s": 30900.0, "age": 2.0, "waited_s": 5100.0, "age_base_s": 5100.0,
               "age_parameter": 1.0},
    "costs": [{"name": "energy", "parameter": 0.2, "measured": False},
              {"name": "restart", "parameter": 0.0, "measured": False}],
}  # fmt: skip
