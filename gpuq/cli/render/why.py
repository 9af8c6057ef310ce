"""The answer to `why`: what a job waits for, what is planned, what would start it sooner. Imports units and render.

One thing to know: everything shown comes from the daemon's `why` object; parts that are unknown are left out.
"""

from __future__ import annotations

from typing import Any, Final

from gpuq.cli.render.table import Cell, Column, table
from gpuq.units import format_clock, format_mib, format_rough_duration

Why = dict[str, Any]

_MOST: Final = 3  # lines of one kind: with what is left out named, the whole answer stays within 25


def why_lines(why: Why, now: float, width: int | None = None, colour: bool = False) -> list[str]:
    """The sentence, then what stands behind it as `name  value` lines."""
    head = why.get("message") or why.get("reason") or "nothing is known of it"
    name = f' "{why["name"]}"' if why.get("name") else ""
    rows = [
        *_options(why, now), *_planned(why, now), *_stopped(why), *_figures(why), *_weight(why), *_deadline(why, now),
        *_costs(why), *_prediction(why), *_learnt(why), *_ahead(why), *_blockers(why, now), *_cannot(why),
        *_plan(why, now),
    ]  # fmt: skip
    if why.get("hint"):
        rows.append(("To start sooner", str(why["hint"])))
    cells = [[Cell(name_), Cell(text)] for name_, text in rows]
    title = table((Column(""),), [[Cell(f"job {why['id']}{name} ({why['state']}): {head}")]], heads=False)
    columns = (Column(""), Column("", wraps=True))
    return [*title, *table(columns, cells, heads=False, indent=2, width=width, colour=colour)]


def _options(why: Why, now: float) -> list[tuple[str, str]]:
    rows = []
    for option in (why.get("options") or ())[:_MOST]:
        start, end = option.get("start_at"), option.get("end_at")
        name = "Could run now on" if start is not None and start <= now + 1 else "Could run on"
        parts = [f"{option.get('node') or '-'} {option.get('type') or ''}".strip()]
        if start is not None and start > now + 1:
            parts.append(f"starts ~{format_clock(start, now)}")
        if end is not None:
            parts.append(f"would end ~{format_clock(end, now)}")
        if option.get("impact") is not None:
            price = f", price {option['price']:.2f}" if option.get("price") is not None else ""
            parts.append(f"impact {option['impact']:.2f}{price}")
        if option.get("stranded_gpus"):
            parts.append(f"strands {option['stranded_gpus']:.1f} GPUs")
        rows.append((name, "   ".join(parts)))
    return _once([*rows, *_left_out(why, len(why.get("options") or ()))])


def _stopped(why: Why) -> list[tuple[str, str]]:
    stopped = why.get("stopped")
    if not stopped:
        return []
    times = "once" if stopped["times"] == 1 else f"{stopped['times']} times"
    last = f"; the last time {stopped['message']}" if stopped["times"] > 1 else f": {stopped['message']}"
    kept = f"it goes on with {format_rough_duration(stopped['kept_s'])} of work done, if it keeps checkpoints"
    return [("Stopped", f"{times}{last if stopped.get('message') else ''}; {kept}")]


def _planned(why: Why, now: float) -> list[tuple[str, str]]:
    planned = why.get("planned")
    if not planned:
        return []
    where = f"{planned.get('node') or '-'} {planned.get('type') or ''}".strip()
    if planned.get("gpus"):
        where += f" {gpu_numbers(planned['gpus'])}"
    times = [
        f"{word} ~{format_clock(planned[key], now)}"
        for word, key in (("starts", "start_at"), ("ends", "end_at"))
        if planned.get(key) is not None
    ]
    return [("Planned on", "   ".join((where, ", ".join(times))).strip())]


def gpu_numbers(gpus: list[Any]) -> str:
    """`#0, #1` for GPU objects (or plain indices)."""
    numbers = [gpu.get("index") if isinstance(gpu, dict) else gpu for gpu in gpus]
    return ", ".join(f"#{'?' if number is None else number}" for number in numbers)


def _figures(why: Why) -> list[tuple[str, str]]:
    parts = [] if why.get("impact") is None else [f"{why['impact']:.2f}"]
    prices = why.get("prices") or {}
    if prices:
        parts.append("GPU price now " + ", ".join(f"{price:.2f} on {kind}" for kind, price in sorted(prices.items())))
    return [("Impact", "   ".join(parts))] if parts else []


def _weight(why: Why) -> list[tuple[str, str]]:
    """The weight as the product it is; a factor of 1 that nothing can change here is left out."""
    weight = why.get("weight")
    if not weight:
        return []
    aged = f"waited {format_rough_duration(weight['waited_s'])} / {format_rough_duration(weight['age_base_s'])}"
    if weight["age_parameter"] != 1:
        aged += f" x {weight['age_parameter']:g}"
    factors = [f"priority {weight['priority']:.2f}", *_balance(weight)]
    if weight.get("deadline_at") is not None:
        factors.append(f"deadline {weight['deadline']:.2f}")
    factors.append(f"age {weight['age']:.2f} ({aged})")
    return [("Weight", f"{weight['value']:.2f} = {' x '.join(factors)}")]


def _balance(weight: Why) -> list[str]:
    account = weight.get("account")
    if weight["balance"] == 1 or not account:
        return []
    return [f"balance {weight['balance']:.2f} ({account['account']} used {100 * account['usage']:.0f}% "
            f"of the GPUs, its share is {100 * account['share']:.0f}%)"]  # fmt: skip


def _deadline(why: Why, now: float) -> list[tuple[str, str]]:
    weight, planned = why.get("weight") or {}, why.get("planned") or {}
    at = weight.get("deadline_at")
    if at is None:
        return []
    if weight["slack_s"] < 0:
        return [("Deadline", f"{format_clock(at, now)}, cannot be met any more by this prediction: no longer counts")]
    text = f"{format_clock(at, now)}, {format_rough_duration(weight['slack_s'])} to spare if it started now"
    late_s = (planned.get("end_at") or at) - at
    return [("Deadline", f"{text}; planned to end {format_rough_duration(late_s)} too late" if late_s > 0 else text)]


def _costs(why: Why) -> list[tuple[str, str]]:
    costs = why.get("costs") or ()
    shown = [
        f"{cost['name']} {'off' if not cost['parameter'] else format(cost['parameter'], 'g')}"
        + ("" if cost["measured"] or not cost["parameter"] else " (not measured: takes nothing off)")
        for cost in costs
    ]
    return [("Costs", ", ".join(shown))] if shown else []


def _plan(why: Why, now: float) -> list[tuple[str, str]]:
    """When this was planned, by what, and what a solver made of it."""
    if why.get("planned_at") is None:
        return []
    parts = [f"{why.get('planner') or '-'}, made {format_rough_duration(max(0.0, now - why['planned_at']))} ago"]
    solve = why.get("solve")
    if solve:
        gap = f", gap {100 * solve['gap']:.1f}%" if solve.get("gap") is not None else ""
        parts.append(f"solver: {solve['status']} in {solve['time_s']:.2f} s, objective {solve['objective']:,.0f} "
                     f"(greedy {solve['greedy_objective']:,.0f}){gap}")  # fmt: skip
    return [("Plan", "   ".join(parts))]


def _left_out(why: Why, count: int) -> list[tuple[str, str]]:
    return [("", f"and {count - _MOST} more; all of them: gpuq why {why['id']} --json")] if count > _MOST else []


def _prediction(why: Why) -> list[tuple[str, str]]:
    prediction = why.get("prediction") or {}
    if prediction.get("run_s") is None:
        return []
    basis = f", from {prediction['basis']}" if prediction.get("basis") else ""
    rows = [("Prediction", f"{format_rough_duration(prediction['run_s'])}{basis}{_bands(prediction)}")]
    if why.get("progress") is not None:
        rows.append(("Progress", f"{100 * why['progress']:.0f}% by its own word, and the rest is measured"))
    return rows


def _bands(prediction: Why) -> str:
    """The spans that hold half and 90% of such runs, where runs tell them."""
    lowest, highest = prediction.get("lowest_s"), prediction.get("highest_s")
    if not lowest or highest is None:
        return ""
    half, most = (
        f"{format_rough_duration(low)} to {format_rough_duration(high)}"
        for low, high in ((prediction["low_s"], prediction["high_s"]), (lowest, highest))
    )
    guess = "" if prediction.get("informed") else "; too few or too scattered to let a GPU wait for it"
    return f" (half of them {half}, 90% {most}{guess})"


def _learnt(why: Why) -> list[tuple[str, str]]:
    """Speeds by GPU type, utilisation, memory and draw, as earlier runs of this owner and name had them."""
    rows = []
    factors = (why.get("prediction") or {}).get("speed_factors") or {}
    if factors:
        shown = ", ".join(f"{kind} x {factor:.2f}" for kind, factor in sorted(factors.items()))
        rows.append(("Speeds learnt", f"{shown} of what the catalogue says"))
    use = why.get("expected_use") or {}
    parts = []
    if use.get("utilization") is not None:
        parts.append(f"{100 * use['utilization']:.0f}% of each GPU, from {_runs(use['utilization_runs'])}")
    if use.get("memory_mib") is not None:
        runs = use["memory_runs"]
        parts.append(f"{format_mib(use['memory_mib'])} of its memory, the most of {_runs(runs)}")
    if parts:
        rows.append(("Expected use", "; ".join(parts)))
    draws = [
        f"{each['power_w']:.0f} W on {each['type']} ({_runs(each['runs']) if each['runs'] else 'by other types'})"
        for each in use.get("draws") or ()
    ]
    left_out = [f"and {len(draws) - _MOST} more types"] if len(draws) > _MOST else []
    return [*rows, *([("Expected draw", ", ".join([*draws[:_MOST], *left_out]))] if draws else [])]


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _ahead(why: Why) -> list[tuple[str, str]]:
    ahead = why.get("ahead") or []
    shown = [
        f"{job['id']} {job.get('name') or ''}".strip()
        + (f" (impact {job['impact']:.2f})" if job.get("impact") is not None else "")
        for job in ahead[:_MOST]
    ]
    more = [f"and {len(ahead) - _MOST} more"] if len(ahead) > _MOST else []
    return [("Ahead of it", ", ".join([*shown, *more]))] if shown else []


def _blockers(why: Why, now: float) -> list[tuple[str, str]]:
    rows = []
    for job in (why.get("blockers") or ())[:_MOST]:
        ends = f", ends ~{format_clock(job['ends_at'], now)}" if job.get("ends_at") is not None else ""
        gpus = job.get("gpus")
        count = len(gpus) if isinstance(gpus, list) else gpus
        name = f"{job['id']} {job.get('name') or ''}".strip()
        rows.append(("Waits for", f"{name} on {job.get('node') or '-'}, {_counted(count)}{ends}"))
    return _once([*rows, *_left_out(why, len(why.get("blockers") or ()))])


def _counted(count: Any) -> str:
    return "1 GPU" if count == 1 else f"{'-' if count is None else count} GPUs"


def _cannot(why: Why) -> list[tuple[str, str]]:
    rows = []
    closed = [node for node in why.get("nodes") or () if not node.get("ok")]
    for node in closed[:_MOST]:
        gpu = f" #{node['gpu']}" if node.get("gpu") is not None else ""
        place = f"{node['node']} {node.get('type') or ''}".strip() + gpu
        rows.append(("Cannot use" if node.get("when") == "never" else "Not now", f"{place}   "
                     f"{node.get('message') or node.get('reason') or 'no reason known'}"))  # fmt: skip
    return _once([*rows, *_left_out(why, len(closed))])


def _once(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The rows with a name that repeats left blank."""
    shown = []
    last = None
    for name, text in rows:
        shown.append(("" if name == last else name, text))
        last = name
    return shown
