"""gpuq.toml to a frozen Config, and where gpuq's files are. Imports errors and units.

One thing to know: the records are named tuples, not dataclasses: the `dataclasses` module costs every command
15 ms of start-up. A key that is not known is an error that names the file, the key and the nearest known one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from gpuq.errors import ConfigError, GpuqError
from gpuq.units import duration_s, limit_s, size_bytes, size_mib


class Paths(NamedTuple):
    """Where this user's gpuq keeps its state, its settings and its socket."""

    home: str
    config_file: str
    config_named: bool  # GPUQ_CONFIG names it: then it must exist
    socket: str


class DaemonConfig(NamedTuple):
    """[daemon]"""

    socket: str | None = None
    log_level: str = "info"
    admins: tuple[str, ...] = ()  # user names, or "@group"


class SubmitConfig(NamedTuple):
    """[submit]: what `gpuq submit` assumes when it is not told."""

    gpus: int = 1
    time_limit_s: float | None = None
    grace_s: float = 30.0


class LogsConfig(NamedTuple):
    """[logs]: the logs that gpuq keeps."""

    limit_bytes: int = 1 << 30  # 0: no limit
    directory: str | None = None


class GpusConfig(NamedTuple):
    """[gpus]: how GPUs are watched."""

    foreign_memory_mib: int = 512  # a foreign process below this does not block a GPU
    sample_every_s: float = 2.0
    ignore: tuple[str, ...] = ()  # names of processes that never block a GPU


class PlannerConfig(NamedTuple):
    """[planner]"""

    every_s: float = 30.0
    min_gap_s: float = 1.0
    default_runtime_s: float = 3600.0
    budget_s: float = 1.0  # processor time a solver may take before contended jobs start; 0: no solver
    max_gpus_per_user: int = 0  # that one user's jobs may hold at once; 0: no cap


class PruneConfig(NamedTuple):
    """[prune]"""

    forget_after_s: float | None = None  # None: ended jobs are kept for ever


class ImpactConfig(NamedTuple):
    """[impact]: weights of the Impact Factor's terms; the planner's documentation says what each does."""

    energy: float = 0.0  # per kWh; costs are 0 until a site has measured them
    fragmentation: float = 0.0
    interference: float = 0.0
    restart: float = 0.0
    age: float = 1.0  # how fast waiting adds weight
    balance: float = 1.0  # how strongly an account's past use counts against it
    deadline: float = 1.0  # how strongly a near deadline counts


class AccountConfig(NamedTuple):
    """[accounts.NAME]: users that share one balance; who is in none has an account of their own."""

    name: str
    users: tuple[str, ...] = ()
    share: float = 1.0  # part of the GPUs relative to other accounts
    max_gpus: int = 0  # that the account's jobs may hold at once; 0: no cap


class NodeConfig(NamedTuple):
    """[node.NAME]: a machine, or with `gpus` a simulated one."""

    name: str
    gpus: tuple[str, ...] = ()  # "A100:4": simulated GPUs
    cpus: int | None = None
    memory_mib: int | None = None
    simulate: bool = False


class Config(NamedTuple):
    """All settings; defaults where the file says nothing."""

    file: str | None = None  # None: there is no file
    daemon: DaemonConfig = DaemonConfig()
    submit: SubmitConfig = SubmitConfig()
    logs: LogsConfig = LogsConfig()
    gpus: GpusConfig = GpusConfig()
    planner: PlannerConfig = PlannerConfig()
    prune: PruneConfig = PruneConfig()
    impact: ImpactConfig = ImpactConfig()
    nodes: tuple[NodeConfig, ...] = ()
    accounts: tuple[AccountConfig, ...] = ()
    stated: frozenset[str] = frozenset()  # "section.field" of all that the file says


class Key(NamedTuple):
    """One key of a section: the field it fills and how its value is read."""

    field: str
    read: Callable[[Any], Any]


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError('write a text in quotes, such as "name"')
    return value


def _path(value: Any) -> str:
    return os.path.abspath(os.path.expanduser(_text(value)))


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise ValueError('write a list of texts, such as ["a", "b"]')
    return tuple(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("write a whole number, 0 or larger")
    return value


def _weight(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise ValueError("write a number, 0 or larger")
    return float(value)


def _part(value: Any) -> float:
    if _weight(value) <= 0:
        raise ValueError("write a number above 0")
    return float(value)


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("write true or false")
    return value


def _level(value: Any) -> str:
    levels = ("debug", "info", "warning", "error")
    if _text(value).lower() not in levels:
        raise ValueError(f"write one of {', '.join(levels)}")
    return str(value).lower()


def _measure(read: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Reads a text with a unit, or a bare number as the units module does (minutes, MiB)."""

    def reader(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ValueError('write a text with a unit, such as "10s" or "1GiB"')
        return read(str(value))

    return reader


def _positive_s(text: str) -> float:
    seconds = duration_s(text)
    if seconds <= 0:
        raise ValueError("write a duration above 0")
    return seconds


def _simulated(value: Any) -> tuple[str, ...]:
    for item in _texts(value):
        model, _, count = item.partition(":")
        if not model or (count and not count.isdigit()):
            raise ValueError(f"'{item}' is not MODEL or MODEL:COUNT, such as \"A100:4\"")
    return tuple(value)


_SECTIONS: Final[dict[str, tuple[type[Any], dict[str, Key]]]] = {
    "daemon": (DaemonConfig, {
        "socket": Key("socket", _path),
        "log_level": Key("log_level", _level),
        "admins": Key("admins", _texts),
    }),
    "submit": (SubmitConfig, {
        "gpus": Key("gpus", _count),
        "time": Key("time_limit_s", _measure(limit_s)),
        "grace": Key("grace_s", _measure(duration_s)),
    }),
    "logs": (LogsConfig, {
        "limit": Key("limit_bytes", _measure(size_bytes)),
        "directory": Key("directory", _path),
    }),
    "gpus": (GpusConfig, {
        "foreign_memory": Key("foreign_memory_mib", _measure(size_mib)),
        "sample_every": Key("sample_every_s", _measure(_positive_s)),
        "ignore": Key("ignore", _texts),
    }),
    "planner": (PlannerConfig, {
        "every": Key("every_s", _measure(_positive_s)),
        "min_gap": Key("min_gap_s", _measure(duration_s)),
        "default_runtime": Key("default_runtime_s", _measure(_positive_s)),
        "budget": Key("budget_s", _measure(duration_s)),
        "max_gpus_per_user": Key("max_gpus_per_user", _count),
    }),
    "prune": (PruneConfig, {"forget_after": Key("forget_after_s", _measure(limit_s))}),
    "impact": (ImpactConfig, {name: Key(name, _weight) for name in ImpactConfig._fields}),
}  # fmt: skip
_NODE_KEYS: Final = {
    "gpus": Key("gpus", _simulated),
    "cpus": Key("cpus", _count),
    "memory": Key("memory_mib", _measure(size_mib)),
    "simulate": Key("simulate", _switch),
}
_ACCOUNT_KEYS: Final = {
    "users": Key("users", _texts), "share": Key("share", _part), "max_gpus": Key("max_gpus", _count),
}  # fmt: skip


def find_paths(environ: Mapping[str, str] | None = None) -> Paths:
    """Where home, settings and socket are, by environment and settings; reads gpuq.toml only if there is one."""
    paths = _paths(os.environ if environ is None else environ, None)
    if paths.config_named or os.path.exists(paths.config_file):
        return load(environ)[1]
    return paths


def load(environ: Mapping[str, str] | None = None) -> tuple[Config, Paths]:
    """The settings in force, and where everything is; raises ConfigError."""
    variables = os.environ if environ is None else environ
    paths = _paths(variables, None)
    if not os.path.exists(paths.config_file):
        if paths.config_named:
            raise ConfigError(f"GPUQ_CONFIG names {paths.config_file}, which does not exist.",
                              "Make the file, or unset GPUQ_CONFIG.")  # fmt: skip
        return Config(), paths
    config = read_config(paths.config_file)
    return config, _paths(variables, config.daemon.socket)


def _paths(environ: Mapping[str, str], configured_socket: str | None) -> Paths:
    user_home = environ.get("HOME") or os.path.expanduser("~")
    state = environ.get("XDG_STATE_HOME") or os.path.join(user_home, ".local", "state")
    default_home = os.path.abspath(os.path.join(state, "gpuq"))
    home = os.path.abspath(environ.get("GPUQ_HOME") or default_home)
    settings = environ.get("XDG_CONFIG_HOME") or os.path.join(user_home, ".config")
    named = environ.get("GPUQ_CONFIG")
    config_file = os.path.abspath(named or os.path.join(settings, "gpuq", "gpuq.toml"))
    socket = environ.get("GPUQ_SOCKET") or configured_socket
    if not socket:
        runtime = _runtime_directory(environ) if home == default_home else None
        socket = os.path.join(runtime, "gpuq", "gpuq.sock") if runtime else os.path.join(home, "gpuq.sock")
    return Paths(home, config_file, bool(named), os.path.abspath(socket))


def _runtime_directory(environ: Mapping[str, str]) -> str | None:
    """This user's runtime directory; cron and sudo do not set the variable, so the usual place is tried too."""
    for directory in (environ.get("XDG_RUNTIME_DIR"), f"/run/user/{os.getuid()}"):
        if directory and os.path.isdir(directory) and os.access(directory, os.W_OK):
            return directory
    return None


def read_config(file: str) -> Config:
    """The settings in `file`; raises ConfigError with file and key."""
    document = _toml(file)
    sections: dict[str, Any] = {}
    for name, table in document.items():
        if name in ("node", "accounts"):
            continue
        if name not in _SECTIONS:
            known = [*_SECTIONS, "node.NAME", "accounts.NAME"]
            raise ConfigError(f"{file}: there is no section [{name}].", _nearest(name, known))
        record, keys = _SECTIONS[name]
        sections[name] = record(**_fields(file, name, table, keys))
    nodes = tuple(NodeConfig(**each) for each in _named(file, document, "node", "mill", _NODE_KEYS))
    accounts = tuple(AccountConfig(**each) for each in _named(file, document, "accounts", "vision", _ACCOUNT_KEYS))
    return Config(file=file, nodes=nodes, accounts=accounts, stated=_stated(document), **sections)


def _named(file: str, document: dict[str, Any], kind: str, example: str, keys: dict[str, Key]) -> list[dict[str, Any]]:
    """The fields of each section [kind.NAME], the name among them."""
    tables = document.get(kind, {})
    if not isinstance(tables, dict):
        raise ConfigError(f"{file}: '{kind}' must be sections such as [{kind}.{example}].")
    return [{"name": name, **_fields(file, f"{kind}.{name}", table, keys)} for name, table in tables.items()]


def _stated(document: dict[str, Any]) -> frozenset[str]:
    known = ((name, table) for name, table in document.items() if name in _SECTIONS)
    return frozenset(f"{name}.{_SECTIONS[name][1][key].field}" for name, table in known for key in table)


def _toml(file: str) -> dict[str, Any]:
    import importlib
    import sys

    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        with open(file, "rb") as stream:
            document: dict[str, Any] = toml.load(stream)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from error
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are both
        raise ConfigError(f"{file} is not TOML: {error}.", "Correct that line, then: gpuq config check") from error
    return document


def _fields(file: str, section: str, table: Any, keys: dict[str, Key]) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: '{section}' must be a section: [{section}].")
    fields: dict[str, Any] = {}
    for name, value in table.items():
        if name not in keys:
            raise ConfigError(f"{file}: there is no key '{name}' in [{section}].", _nearest(name, list(keys)))
        try:
            fields[keys[name].field] = keys[name].read(value)
        except (ValueError, GpuqError) as error:
            text = str(error)
            hint = error.hint if isinstance(error, GpuqError) else f"{text[:1].upper()}{text[1:]}."
            raise ConfigError(f"{file}: {name} = {value!r} in [{section}] cannot be used.", hint) from error
    return fields


def _nearest(name: str, known: list[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, known, 1)
    return f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(sorted(known))}."
