"""gpuq config: show or check gpuq.toml; show, change and rehearse what a running daemon lets people change."""

from __future__ import annotations

import time
from typing import Any

from gpuq.cli import output
from gpuq.cli.client import Daemon, connect
from gpuq.cli.options import JSON, Argument, Command, Option, Values
from gpuq.cli.requests import choice
from gpuq.config import Config, Paths, find_paths, load
from gpuq.errors import NotFound, UsageError

_ACTIONS = ("show", "check", "path", "set", "unset", "history")


def config(values: Values) -> int:
    """Carry out one of the actions."""
    words = values.words("action") or ["show"]
    action = choice("config", words[0], _ACTIONS)
    wanted = {"set": 2, "unset": 1}.get(action, 0)
    if len(words) - 1 != wanted:
        takes = {"set": "KEY VALUE, such as: gpuq config set impact.age 2", "unset": "KEY"}.get(action, "nothing more")
        raise UsageError(f"config {action} takes {takes}; {len(words) - 1} words were given.")
    if values.flag("dry_run") and not wanted:
        raise UsageError("--dry-run goes with config set and config unset only.")
    as_json = values.flag("json")
    if wanted:
        _change(words[1], words[2] if wanted == 2 else None, values.flag("dry_run"), as_json)
    elif action == "path":
        _path(as_json)
    elif action == "history":
        _history(as_json)
    else:
        settings, paths = load()
        if action == "show":
            _show(settings, paths, as_json)
        else:
            here = f"{settings.file} is right"
            output.write(here if settings.file else f"{paths.config_file} is absent: all defaults")
    return 0


def _change(key: str, value: str | None, rehearsed: bool, as_json: bool) -> None:
    from gpuq.cli.render.settings import changed_line, rehearsal_lines

    answer = connect().post("/v1/config/dry-run" if rehearsed else "/v1/config", {"key": key, "value": value})
    for text in answer["notes"]:
        output.note(text)
    if as_json:
        output.write_json(answer)
    elif rehearsed:
        width = output.width() if output.on_terminal() else None
        output.write_lines(rehearsal_lines(answer, time.time(), width, output.coloured()))
    else:
        output.write(changed_line(answer["before"], answer["setting"]))


def _history(as_json: bool) -> None:
    from gpuq.cli.render.settings import history_lines

    answer = connect().get("/v1/config/history")
    if as_json:
        output.write_json(answer)
    else:
        output.write_lines(history_lines(answer["changes"], None, output.coloured()))


def _path(as_json: bool) -> None:
    paths = _paths_only()
    if as_json:
        output.write_json(paths._asdict())
    else:
        output.write(paths.config_file)


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


# --- show -------------------------------------------------------------------------------------------------


def _show(settings: Config, paths: Paths, as_json: bool) -> None:
    from gpuq.cli.render.settings import document_of, section_lines, sources_of

    running = _running(Daemon(paths))
    document = document_of(settings)
    sources = sources_of(settings, document)
    for each in running["settings"] if running else ():
        section, _, name = each["field"].partition(".")
        document[section][name] = each["value"]
        sources[each["field"]] = {key: each[key] for key in ("source", "by", "set_at")}
    if as_json:
        output.write_json({"paths": paths._asdict(), "config": document, "sources": sources})
        return
    lines = [
        f"# settings  {settings.file or paths.config_file + ' (absent)'}",
        f"# state     {paths.home}",
        f"# socket    {paths.socket}{'' if running else ' (no daemon answers: what was set in it is not shown)'}",
    ]
    for kind, key in (("node", "nodes"), ("accounts", "accounts")):
        for each in document.pop(key):
            document[f"{kind}.{each['name']}"] = {name: value for name, value in each.items() if name != "name"}
    for name, fields in document.items():
        if name != "file":
            lines += section_lines(name, fields, sources)
    output.write_lines(lines)


def _running(daemon: Daemon) -> dict[str, Any] | None:
    """What the daemon says of its settings; None when none answers, or it is too old to be asked."""
    try:
        answer: dict[str, Any] = daemon.get("/v1/config") if daemon.answers() else {}
    except NotFound:
        return None
    return answer or None


COMMAND = Command(
    "show: all settings in force, and where each comes from. check: say whether gpuq.toml is right, naming file and "
    "key if not. path: its place. set KEY VALUE, unset KEY: change a setting of the running daemon (impact.age, "
    "planner.every ...; administrators only) at once, over what gpuq.toml says, until it is unset. history: who "
    "changed what when.",
    config,
    (JSON, Option(("--dry-run",), "set, unset: change nothing; say which waiting jobs would change place.")),
    Argument(
        "action", "ACTION...", "show, check, path, set KEY VALUE, unset KEY or history.", many=True, required=False,
        completes=" ".join(_ACTIONS),
    ),
)  # fmt: skip
