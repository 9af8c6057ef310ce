"""Nodes and GPUs as tables, for a terminal and for a pipe. Imports units and render.

One thing to know: a counter that is missing prints as `-` and is not taken for 0.
"""

from __future__ import annotations

from typing import Any, Final

from gpuq.cli.render.table import Cell, Column, table
from gpuq.units import format_rough_duration

Record = dict[str, Any]

_NODE_COLUMNS: Final = (
    Column("NODE"), Column("STATE"), Column("GPUS", right=True), Column("TYPES"), Column("CPUS", right=True),
    Column("MEMORY", right=True), Column("NOTES", wraps=True),
)  # fmt: skip
_GPU_COLUMNS: Final = (
    Column("NODE"), Column("GPU", right=True), Column("TYPE"), Column("USE", right=True), Column("MEMORY", right=True),
    Column("POWER", right=True), Column("TEMP", right=True), Column("HOLDS", shrinks=True),
)  # fmt: skip
_STATE_STYLES: Final = {
    "idle": "", "mixed": "running", "allocated": "running", "draining": "waiting", "drained": "waiting",
    "free": "", "busy": "running", "foreign": "waiting",
}  # fmt: skip
_SPARKS: Final = "▁▂▃▄▅▆▇█"


def nodes_table(nodes: list[Record], colour: bool, width: int | None) -> list[str]:
    """One line per node."""
    rows = []
    for node in nodes:
        types = ", ".join(f"{count} {kind}" for kind, count in sorted((node.get("types") or {}).items()))
        state = str(node.get("state") or "unknown")
        style = _STATE_STYLES.get(state, "trouble")
        rows.append([
            Cell(str(node["name"])), Cell(state, style), Cell(_of(node, "gpus_busy", "gpus_total")), Cell(types or "-"),
            Cell(_of(node, "cpus_used", "cpus")), Cell(_gib(node.get("memory_used_mib"), node.get("memory_mib"))),
            Cell(_node_notes(node)),
        ])  # fmt: skip
    return table(_NODE_COLUMNS, rows, colour=colour, width=width)


def _of(record: Record, part: str, whole: str) -> str:
    return f"{_number(record.get(part))}/{_number(record.get(whole))}"


def _number(value: Any, form: str = "") -> str:
    return "-" if value is None else format(value, form)


def _gib(used_mib: float | None, total_mib: float | None) -> str:
    used = "-" if used_mib is None else f"{used_mib / 1024:.1f}"
    return f"{used}/{'-' if total_mib is None else f'{total_mib / 1024:.0f}'} GiB"


def _node_notes(node: Record) -> str:
    notes = []
    drain = node.get("drain")
    if drain:
        notes.append(f"drained by {drain['by']}: {drain['reason']}" if drain.get("reason") else f"by {drain['by']}")
    silent_s = node.get("last_seen_s")
    if str(node.get("state", "")).endswith("*"):
        notes.append("has not answered yet" if silent_s is None else f"silent for {format_rough_duration(silent_s)}")
    notes += [str(text) for text in (node.get("link_error"), node.get("driver_error")) if text]
    notes += [str(text) for text in node.get("warnings") or ()]
    return "; ".join(notes)


def gpus_table(gpus: list[Record], colour: bool, width: int | None) -> list[str]:
    """One line per GPU; on a terminal (a width) the node is named once, and the recent use is drawn."""
    rows = []
    last = None
    for gpu in gpus:
        node = "" if width is not None and gpu["node"] == last else str(gpu["node"])
        last = gpu["node"]
        use = "-" if gpu.get("utilization") is None else f"{round(gpu['utilization'] * 100)}%"
        if width is not None:
            use = f"{sparkline(gpu.get('utilization_history') or [])} {use:>4}".strip()
        temperature = gpu.get("temperature_c")
        rows.append([
            Cell(node), Cell(_number(gpu.get("index"))), Cell(str(gpu.get("type") or "-")), Cell(use),
            Cell(_gib(gpu.get("memory_used_mib"), gpu.get("memory_total_mib"))),
            Cell(f"{_number(gpu.get('power_w'), '.0f')}/{_number(gpu.get('power_limit_w'), '.0f')} W"),
            Cell("-" if temperature is None else f"{temperature:.0f}°"),
            Cell(_holds(gpu), _STATE_STYLES.get(str(gpu.get("state")), "trouble")),
        ])  # fmt: skip
    return table(_GPU_COLUMNS, rows, colour=colour, width=width)


def _holds(gpu: Record) -> str:
    if gpu.get("job"):
        extra = f" ({gpu['reason']})" if gpu.get("reason") else ""
        return f"{gpu['job']} {gpu.get('job_name') or ''}".strip() + extra
    state, reason = str(gpu.get("state") or "unknown"), gpu.get("reason")
    if not reason:
        return state
    return str(reason) if str(reason).startswith(state) else f"{state}: {reason}"


def sparkline(shares: list[float | None], most: int = 6) -> str:
    """The last values of 0..1 as bars; a blank where nothing is known."""
    return "".join(
        " " if share is None else _SPARKS[max(0, min(7, round(share * 7)))] for share in shares[-most:]
    )
