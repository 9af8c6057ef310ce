"""The settings of the running daemon, over the socket: shown, changed, rehearsed. Imports core and desk.

One thing to know: a value comes as text, as gpuq.toml has it ("30s", "0.2"), and is answered in the unit of the field
(seconds), so that a reader needs no table of units.
"""

from __future__ import annotations

from typing import Any

from gpuq.core import settings as core_settings
from gpuq.core.compare import Comparison, Moved
from gpuq.core.decide_settings import check_may_configure, notes_of
from gpuq.core.requests import Configure
from gpuq.core.settings import KNOBS, Knob
from gpuq.daemon.desk import Call, Desk
from gpuq.errors import UsageError

Json = dict[str, Any]


async def settings(desk: Desk, call: Call) -> Json:
    """Every setting that may be changed now: its value, and where that comes from."""
    return {"file": desk.config_file, "settings": [_setting(desk, knob) for knob in KNOBS.values()]}


async def configure(desk: Desk, call: Call) -> Json:
    """Set a key, or unset it; the next plan uses it."""
    request = _request(call)
    before = _setting(desk, KNOBS[request.key])
    outcome = await desk.loop.ask(request)
    return {"before": before, "setting": _setting(desk, KNOBS[request.key]), "notes": outcome.notes}


async def rehearse(desk: Desk, call: Call) -> Json:
    """Which waiting jobs a change would move, and what it would do to the predicted Impact Factor."""
    request = _request(call)
    found = desk.planner.compare_with(request.key, request.value)
    before = _setting(desk, KNOBS[request.key])
    value = _configured(desk, KNOBS[request.key]) if request.value is None else request.value
    return {"key": request.key, "before": before["value"], "value": value, **_comparison(desk, found),
            "notes": notes_of(request.key)}  # fmt: skip


async def history(desk: Desk, call: Call) -> Json:
    """Who changed which setting when, oldest first."""
    return {
        "changes": [
            {"key": each.key, "field": field_of(KNOBS.get(each.key), each.key), "value": each.value, "by": each.by,
             "changed_at": each.at}
            for each in desk.state.setting_changes
        ]
    }  # fmt: skip


def field_of(knob: Knob | None, key: str) -> str:
    """The key with its unit in the name: "planner.every_s"."""
    return f"{key}_s" if knob is not None and knob.is_duration else key


def _request(call: Call) -> Configure:
    key, value = call.body.get("key"), call.body.get("value")
    if not isinstance(key, str):
        raise UsageError("'key' must be a text, such as \"impact.age\".")
    request = Configure(key=key, value=None, by=call.by)
    check_may_configure(request)
    return request if value is None else Configure(key=key, value=core_settings.read(key, value), by=call.by)


def _configured(desk: Desk, knob: Knob) -> float:
    section, _, name = field_of(knob, knob.key).partition(".")
    return float(getattr(desk.planner.impact if section == "impact" else desk.planner.config, name))


def _setting(desk: Desk, knob: Knob) -> Json:
    known = desk.state.settings.get(knob.key)
    field = field_of(knob, knob.key)
    configured = "file" if field in desk.stated else "default"
    return {
        "key": knob.key,
        "field": field,
        "value": _configured(desk, knob) if known is None else known.value,
        "source": configured if known is None else "set",
        "by": None if known is None else known.by,
        "set_at": None if known is None else known.at,
        "otherwise": _configured(desk, knob),
        "range": knob.range,
    }


def _comparison(desk: Desk, found: Comparison) -> Json:
    wall_s = desk.loop.clock.now().wall_s
    return {
        "jobs": [_moved(desk, each, wall_s) for each in found.moved],
        "planned": found.jobs,
        "impact_factor_before": found.factor_before,
        "impact_factor_after": found.factor_after,
    }


def _moved(desk: Desk, each: Moved, wall_s: float) -> Json:
    job = desk.state.jobs[each.job]
    return {
        "id": each.job,
        "name": job.spec.name,
        "user": job.owner.name,
        "place_before": each.place_before,
        "place_after": each.place_after,
        "start_before_at": None if each.before_s is None else wall_s + each.before_s,
        "start_after_at": None if each.after_s is None else wall_s + each.after_s,
        "node_before": each.node_before,
        "node_after": each.node_after,
    }
