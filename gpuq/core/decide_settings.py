"""Who may change a setting of the running daemon, and what is written of it. Imports the core.

One thing to know: a value is checked again here, so nothing outside a key's range ever gets into the journal; a change
that changes nothing is not written.
"""

from __future__ import annotations

from gpuq.core import settings
from gpuq.core.events import AnyAction, AnyEvent, SettingChanged
from gpuq.core.impact import COSTS, MEASURED_COSTS
from gpuq.core.model import Stamp
from gpuq.core.requests import Configure
from gpuq.core.state import ClusterState
from gpuq.errors import Forbidden, UsageError

Found = tuple[list[AnyEvent], list[AnyAction], list[str]]


def configure(state: ClusterState, request: Configure, now: Stamp) -> Found:
    """Set a key, or with value None leave it to gpuq.toml again."""
    check_may_configure(request)
    known = state.settings.get(request.key)
    if request.value is None:
        events = [] if known is None else [_changed(request, None)]
        return events, [], [] if events else [f"{request.key} was not set: nothing changed"]
    value, knob = request.value, settings.knob(request.key)
    if not knob.allows(value):
        raise UsageError(f"{request.key} must be {knob.range}, not {value:g}.")
    if known is not None and known.value == value:
        return [], [], [f"{request.key} was set to this already: nothing changed"]
    return [_changed(request, value)], [], notes_of(request.key)


def check_may_configure(request: Configure) -> None:
    """Raise NotFound for a key that cannot be changed, Forbidden for anybody but an administrator."""
    settings.knob(request.key)
    if not request.by.is_admin:
        raise Forbidden(f"Only an administrator may change {request.key}.")


def notes_of(key: str) -> list[str]:
    """What a person should know who sets this key."""
    section, _, name = key.partition(".")
    if section == "impact" and name in COSTS and name not in MEASURED_COSTS:
        return [f"the planner does not measure {name} yet: {key} is kept, and changes no plan until it does"]
    return []


def _changed(request: Configure, value: float | None) -> AnyEvent:
    return SettingChanged(key=request.key, value=value, by=request.by.name)
