"""gpuq config: show or check gpuq.toml."""

from __future__ import annotations

from typing import Any

from gpuq.cli import output
from gpuq.cli.options import JSON, Argument, Command, Values
from gpuq.cli.requests import choice
from gpuq.config import Config, Paths, find_paths, load


def config(values: Values) -> int:
    """Carry out one of the actions."""
    action = choice("config", values.text("action") or "show", ("show", "check", "path"))
    if action == "path":
        paths = _paths_only()
        if values.flag("json"):
            output.write_json(paths._asdict())
        else:
            output.write(paths.config_file)
        return 0
    settings, paths = load()
    if action == "check":
        output.write(f"{settings.file} is right" if settings.file else f"{paths.config_file} is absent: all defaults")
    elif values.flag("json"):
        output.write_json({"paths": paths._asdict(), "config": _document(settings)})
    else:
        output.write_lines(_lines(settings, paths))
    return 0


def _paths_only() -> Paths:
    """The paths, also when the settings cannot be read."""
    from gpuq.errors import ConfigError

    try:
        return find_paths()
    except ConfigError:
        import os

        return find_paths({**os.environ, "GPUQ_CONFIG": "", "XDG_CONFIG_HOME": os.devnull})._replace(
            config_file=os.path.abspath(os.environ.get("GPUQ_CONFIG") or os.path.expanduser("~/.config/gpuq/gpuq.toml"))
        )


def _document(settings: Config) -> dict[str, Any]:
    sections = {name: value._asdict() for name, value in settings._asdict().items() if name not in ("file", "nodes")}
    return {"file": settings.file, **sections, "nodes": [node._asdict() for node in settings.nodes]}


def _lines(settings: Config, paths: Paths) -> list[str]:
    """Every setting in force, with its unit in the name, and where things are."""
    lines = [
        f"# settings  {settings.file or paths.config_file + ' (absent)'}",
        f"# state     {paths.home}",
        f"# socket    {paths.socket}",
    ]
    sections = {name: value for name, value in _document(settings).items() if name not in ("file", "nodes")}
    for node in settings.nodes:
        sections[f"node.{node.name}"] = {name: value for name, value in node._asdict().items() if name != "name"}
    for name, fields in sections.items():
        lines += ["", f"[{name}]", *(f"{key} = {_shown(value)}" for key, value in fields.items())]
    return lines


def _shown(value: Any) -> str:
    import json

    return "(not set)" if value is None else json.dumps(value)


COMMAND = Command(
    "show: all settings in force. check: say whether gpuq.toml is right, naming file and key if not. path: its place.",
    config,
    (JSON,),
    Argument("action", "ACTION", "show, check or path.", required=False, completes="show check path"),
)
