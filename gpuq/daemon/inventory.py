"""Agents' words as records: nodes, GPUs, attempts, and who uses a GPU besides gpuq. Imports core, hardware.

One thing to know: nothing here trusts a frame's shape; what is missing or odd becomes "unknown" (None).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from gpuq.core.model import (
    AttemptId,
    Containment,
    Exit,
    Foreign,
    Gpu,
    GpuUuid,
    Health,
    JobId,
    Node,
    NodeName,
    Reach,
)
from gpuq.core.requests import AttemptReport
from gpuq.hardware.catalogue import relative_speed, short_type

Frame = Mapping[str, Any]


def gpu_of(record: Frame, simulated: bool) -> Gpu:
    """One inventory record of an agent."""
    name = str(record.get("name") or "unknown GPU")
    limit_w = record.get("power_limit_w")
    return Gpu(
        uuid=GpuUuid(str(record["uuid"])),
        index=int(record.get("index") or 0),
        type=short_type(name),
        name=name,
        memory_mib=record.get("memory_mib"),
        pci_bus_id=record.get("pci_bus_id"),
        numa_node=record.get("numa_node"),
        power_limit_w=float(limit_w) if limit_w is not None else None,
        parent=record.get("parent"),
        usable=bool(record.get("usable", True)),
        reason=record.get("reason"),
        health=Health(record.get("health") or "ok"),
        seen=simulated,
        speed=relative_speed(name) or 1.0,
        peers=tuple(sorted((record.get("peers") or {}).items())),
    )


def driver_of(frame: Frame) -> tuple[str | None, str | None]:
    """(driver as shown, its error) of a ready or inventory frame."""
    driver = frame.get("driver") or {}
    vendor, version = driver.get("vendor"), driver.get("version")
    shown = " ".join(str(part) for part in (vendor, version) if part) if vendor not in (None, "none") else None
    return ("simulated" if vendor == "simulated" else shown), driver.get("error")


def node_of(name: NodeName, frame: Frame, cpus: int | None, memory_mib: int | None) -> Node:
    """A node as its `ready` frame describes it; cpus and memory may be set by hand in gpuq.toml."""
    containment = frame.get("containment") or {}
    driver, driver_error = driver_of(frame)
    return Node(
        name=name,
        hostname=str(frame.get("hostname") or name),
        reach=Reach.UP,
        boot_id=str(frame.get("boot_id") or ""),
        spool_id=str(frame.get("spool_id") or ""),
        cpus=cpus or int(frame.get("cpus") or 1),
        memory_mib=memory_mib or int(frame.get("memory_mib") or 0),
        containment=Containment(containment.get("level") or "C"),
        containment_detail=str(containment.get("detail") or ""),
        gpus=tuple(gpu_of(record, driver == "simulated") for record in frame.get("gpus") or ()),
        driver=driver,
        driver_error=driver_error,
        agent_version=str(frame.get("agent_version") or ""),
        warnings=tuple(str(text) for text in frame.get("warnings") or ()),
    )


def with_use_of(known: Iterable[Gpu], seen: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """A fresh inventory with what was known about the use of each GPU."""
    before = {gpu.uuid: gpu for gpu in known}
    return tuple(
        replace(gpu, seen=gpu.seen or before[gpu.uuid].seen, foreign=before[gpu.uuid].foreign)
        if gpu.uuid in before
        else gpu
        for gpu in seen
    )


def with_samples(gpus: Iterable[Gpu], samples: Iterable[Frame], ignore: Iterable[str]) -> tuple[Gpu, ...]:
    """The GPUs with the foreign use that the samples show; `ignore` names programs that do not count."""
    ignored = set(ignore)
    by_uuid = {sample.get("uuid"): sample for sample in samples}
    return tuple(_with_sample(gpu, by_uuid[gpu.uuid], ignored) if gpu.uuid in by_uuid else gpu for gpu in gpus)


def _with_sample(gpu: Gpu, sample: Frame, ignored: set[str]) -> Gpu:
    """A GPU whose processes cannot be listed is unknown again, and a stranger of unknown size counts as foreign."""
    processes, foreign = sample.get("processes"), sample.get("foreign")
    if processes is None and foreign is None:
        return replace(gpu, seen=False, foreign=())
    if foreign is False:
        return replace(gpu, seen=True, foreign=())
    unsized_only = foreign is None
    return replace(gpu, seen=True, foreign=_foreign(processes or (), ignored, unsized_only))


def _foreign(processes: Iterable[Frame], ignored: set[str], unsized_only: bool) -> tuple[Foreign, ...]:
    """The strangers that count; with `unsized_only` those whose memory nobody knows."""
    strangers = (process for process in processes if not process.get("attempt"))
    return tuple(
        Foreign(
            pid=int(process.get("pid") or 0),
            user=process.get("user"),
            name=process.get("name"),
            memory_mib=process.get("memory_mib"),
        )
        for process in sorted(strangers, key=lambda process: process.get("pid") or 0)
        if process.get("name") not in ignored
        and not (unsized_only and (process.get("memory_mib") is not None or process.get("kind") == "graphics"))
    )


def same_use(one: Iterable[Gpu], other: Iterable[Gpu]) -> bool:
    """Whether two observations agree but for the memory figures of foreign processes."""

    def key(gpus: Iterable[Gpu]) -> list[object]:
        return [(gpu.uuid, gpu.seen, gpu.health, gpu.usable, [who.pid for who in gpu.foreign]) for gpu in gpus]

    return key(one) == key(other)


def report_of(node: NodeName, frame: Frame) -> AttemptReport:
    """An `attempt` frame as a request."""
    phase = str(frame.get("phase"))
    record = phase == "ended"
    known_exit = Exit(
        code=frame.get("exit_code"),
        signal=frame.get("signal"),
        error=frame.get("error"),
        run_s=frame.get("run_s"),
        cpu_s=frame.get("cpu_s"),
        max_rss_mib=frame.get("max_rss_mib"),
        log_bytes=frame.get("log_bytes"),
        log_dropped_bytes=int(frame.get("log_dropped_bytes") or 0),
    )
    return AttemptReport(
        node=node,
        attempt=AttemptId(str(frame.get("attempt"))),
        phase=phase,
        status=frame.get("status"),
        started_at=frame.get("started_at"),
        shim_pid=frame.get("shim_pid"),
        reason=frame.get("reason") if record else None,
        exit=known_exit if record or phase == "lost" else None,
        ended_at=frame.get("ended_at"),
        rebooted=bool(frame.get("rebooted")),
        unkillable=tuple(frame.get("unkillable") or ()),
        job=JobId(str(frame["job"])) if frame.get("job") else None,
        gpus=tuple(frame.get("gpus") or ()),
    )
