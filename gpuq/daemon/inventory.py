"""Agents' words as records: nodes, GPUs, attempts, and who uses a GPU besides gpuq. Imports core, hardware.

One thing to know: nothing here trusts a frame's shape; what is missing or odd becomes "unknown" (None), and what
could not be written to the journal (infinities, halves of characters) never leaves this module.
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
    Used,
)
from gpuq.core.requests import AttemptReport
from gpuq.hardware.catalogue import relative_speed, short_type

Frame = Mapping[str, Any]

_HEALTHS = frozenset(health.value for health in Health)
_LEVELS = frozenset(level.value for level in Containment)
_TOO_LARGE = 2.0**53  # beyond it whole numbers are no longer exact everywhere


# --- odd values as unknown ones -------------------------------------------------------------------------


def _text(value: object) -> str | None:
    """A string that can be stored; bytes that were no UTF-8 show as question marks."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) and value else None


def _real(value: object) -> float | None:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _TOO_LARGE:
        return None  # not-a-number, too: it is smaller than nothing
    return float(value)


def _whole(value: object) -> int | None:
    """A whole number."""
    number = _real(value)
    return int(number) if number is not None else None


def _texts(value: object) -> tuple[str, ...]:
    """The strings of a list."""
    found = map(_text, value) if isinstance(value, list) else ()
    return tuple(text for text in found if text is not None)


def _record(value: object) -> Frame:
    """A mapping; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def records_of(frame: Frame, field: str) -> list[Frame]:
    """The mappings in a list of a frame; nothing for anything else."""
    found = frame.get(field)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


# --- nodes and GPUs -------------------------------------------------------------------------------------


def gpu_of(record: Frame, simulated: bool) -> Gpu | None:
    """One inventory record of an agent; None for one without a UUID. A health of another word counts as doubtful."""
    uuid, name = _text(record.get("uuid")), _text(record.get("name")) or "unknown GPU"
    if uuid is None:
        return None
    health = _text(record.get("health")) or Health.OK.value
    parent = _text(record.get("parent"))
    peers = _record(record.get("peers")).items()
    return Gpu(
        uuid=GpuUuid(uuid),
        index=_whole(record.get("index")) or 0,
        type=short_type(name),
        name=name,
        memory_mib=_whole(record.get("memory_mib")),
        pci_bus_id=_text(record.get("pci_bus_id")),
        numa_node=_whole(record.get("numa_node")),
        power_limit_w=_real(record.get("power_limit_w")),
        parent=GpuUuid(parent) if parent else None,
        usable=bool(record.get("usable", True)),
        reason=_text(record.get("reason")),
        health=Health(health) if health in _HEALTHS else Health.SUSPECT,
        seen=simulated,
        speed=relative_speed(name) or 1.0,
        peers=tuple(sorted((GpuUuid(peer), link) for peer, link in peers if isinstance(link, str))),
    )


def gpus_of(frame: Frame, simulated: bool) -> tuple[Gpu, ...]:
    """The GPUs of a ready or inventory frame."""
    found = (gpu_of(record, simulated) for record in records_of(frame, "gpus"))
    return tuple(gpu for gpu in found if gpu is not None)


def driver_of(frame: Frame) -> tuple[str | None, str | None]:
    """(driver as shown, its error) of a ready or inventory frame."""
    driver = _record(frame.get("driver"))
    vendor, version = _text(driver.get("vendor")), _text(driver.get("version"))
    shown = " ".join(part for part in (vendor, version) if part) if vendor not in (None, "none") else None
    return ("simulated" if vendor == "simulated" else shown), _text(driver.get("error"))


def node_of(name: NodeName, frame: Frame, cpus: int | None, memory_mib: int | None) -> Node:
    """A node as its `ready` frame describes it; cpus and memory may be set by hand in gpuq.toml."""
    containment = _record(frame.get("containment"))
    level = _text(containment.get("level"))
    driver, driver_error = driver_of(frame)
    return Node(
        name=name,
        hostname=_text(frame.get("hostname")) or name,
        reach=Reach.UP,
        boot_id=_text(frame.get("boot_id")) or "",
        spool_id=_text(frame.get("spool_id")) or "",
        cpus=cpus or _whole(frame.get("cpus")) or 1,
        memory_mib=memory_mib or _whole(frame.get("memory_mib")) or 0,
        containment=Containment(level) if level in _LEVELS else Containment.PROCESS_TREE,
        containment_detail=_text(containment.get("detail")) or "",
        gpus=gpus_of(frame, driver == "simulated"),
        driver=driver,
        driver_error=driver_error,
        agent_version=_text(frame.get("agent_version")) or "",
        warnings=_texts(frame.get("warnings")),
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
    by_uuid = {_text(sample.get("uuid")): sample for sample in samples}
    return tuple(_with_sample(gpu, by_uuid[gpu.uuid], ignored) if gpu.uuid in by_uuid else gpu for gpu in gpus)


def _with_sample(gpu: Gpu, sample: Frame, ignored: set[str]) -> Gpu:
    """A GPU whose processes cannot be listed is unknown again, and a stranger of unknown size counts as foreign."""
    foreign = sample.get("foreign")
    if not isinstance(sample.get("processes"), list) and foreign is None:
        return replace(gpu, seen=False, foreign=())
    if foreign is False:
        return replace(gpu, seen=True, foreign=())
    unsized_only = foreign is None
    return replace(gpu, seen=True, foreign=_foreign(records_of(sample, "processes"), ignored, unsized_only))


def _foreign(processes: Iterable[Frame], ignored: set[str], unsized_only: bool) -> tuple[Foreign, ...]:
    """The strangers that count; with `unsized_only` those whose memory nobody knows."""
    strangers = (process for process in processes if not process.get("attempt"))
    found = (
        Foreign(
            pid=_whole(process.get("pid")) or 0,
            user=_text(process.get("user")),
            name=_text(process.get("name")),
            memory_mib=_whole(process.get("memory_mib")),
        )
        for process in strangers
        if _text(process.get("name")) not in ignored
        and not (unsized_only and (process.get("memory_mib") is not None or process.get("kind") == "graphics"))
    )
    return tuple(sorted(found, key=lambda who: who.pid))


def same_use(one: Iterable[Gpu], other: Iterable[Gpu]) -> bool:
    """Whether two observations agree but for the memory figures of foreign processes."""

    def key(gpus: Iterable[Gpu]) -> list[object]:
        return [(gpu.uuid, gpu.seen, gpu.health, gpu.usable, [who.pid for who in gpu.foreign]) for gpu in gpus]

    return key(one) == key(other)


def _used(value: object) -> Used | None:
    """The `used` object of an ended attempt; None when nothing was measured."""
    if not isinstance(value, dict):
        return None
    utilization, power_w = _real(value.get("utilization")), _real(value.get("power_w"))
    memory_mib, samples = _real(value.get("memory_mib")), _whole(value.get("samples"))
    return Used(
        utilization=utilization if utilization is not None and 0.0 <= utilization <= 1.0 else None,
        power_w=power_w if power_w is not None and power_w >= 0.0 else None,
        memory_mib=memory_mib if memory_mib is not None and memory_mib >= 0.0 else None,
        samples=max(0, samples or 0),
    )


def report_of(node: NodeName, frame: Frame) -> AttemptReport:
    """An `attempt` frame as a request."""
    phase = _text(frame.get("phase")) or ""
    record = phase == "ended"
    known_exit = Exit(
        code=_whole(frame.get("exit_code")),
        signal=_whole(frame.get("signal")),
        error=_text(frame.get("error")),
        run_s=_real(frame.get("run_s")),
        cpu_s=_real(frame.get("cpu_s")),
        max_rss_mib=_real(frame.get("max_rss_mib")),
        log_bytes=_whole(frame.get("log_bytes")),
        log_dropped_bytes=_whole(frame.get("log_dropped_bytes")) or 0,
        used=_used(frame.get("used")),
    )
    unkillable = frame.get("unkillable")
    pids = map(_whole, unkillable) if isinstance(unkillable, list) else ()
    job = _text(frame.get("job"))
    return AttemptReport(
        node=node,
        attempt=AttemptId(_text(frame.get("attempt")) or ""),
        phase=phase,
        status=_text(frame.get("status")),
        started_at=_real(frame.get("started_at")),
        shim_pid=_whole(frame.get("shim_pid")),
        reason=_text(frame.get("reason")) if record else None,
        exit=known_exit if record or phase == "lost" else None,
        ended_at=_real(frame.get("ended_at")),
        rebooted=bool(frame.get("rebooted")),
        unkillable=tuple(pid for pid in pids if pid is not None),
        progress=_real(frame.get("progress")),
        job=JobId(job) if job else None,
        gpus=tuple(GpuUuid(uuid) for uuid in _texts(frame.get("gpus"))),
    )
