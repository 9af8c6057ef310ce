"""The environment a job takes along. Imports errors and options.

One thing to know: it is captured as bytes at submit, complete, because a job must see what the person who typed saw
and nothing of the daemon's. Values need not be UTF-8.
"""

from __future__ import annotations

import os
from typing import Final

from gpuq.cli.options import Values
from gpuq.errors import UsageError

MOST_BYTES: Final = 8 << 20
# Kept, so that a job can call gpuq; all other GPUQ_ names are an outer job's or options of the client.
_KEPT: Final = frozenset({b"GPUQ_HOME", b"GPUQ_SOCKET", b"GPUQ_CONFIG"})
_PLAIN: Final = (b"HOME", b"USER", b"LOGNAME", b"SHELL", b"PATH", b"LANG", b"TZ", *_KEPT)


def captured_environment(values: Values) -> bytes:
    """NUL-separated K=V as --export, --no-env, --env-file and --env ask; raises UsageError."""
    here = {name: value for name, value in os.environb.items() if _belongs(name)}
    chosen = _exported(values, here)
    for file in values.words("env_file"):
        chosen.update(_from_file(file, here))
    for setting in values.words("env"):
        chosen.update(_setting(os.fsencode(setting), here, f"--env {setting}"))
    packed = b"\0".join(name + b"=" + value for name, value in chosen.items())
    if len(packed) > MOST_BYTES:
        raise UsageError(
            f"The environment is {len(packed) >> 20} MiB; the most is {MOST_BYTES >> 20} MiB.",
            "Leave most of it out with --export=PATH,HOME,… or --no-env.",
        )
    return packed


def _belongs(name: bytes) -> bool:
    return name != b"CUDA_VISIBLE_DEVICES" and (not name.startswith(b"GPUQ_") or name in _KEPT)


def _exported(values: Values, here: dict[bytes, bytes]) -> dict[bytes, bytes]:
    export = "NONE" if values.flag("no_env") else (values.text("export") or "ALL")
    words = [word for word in export.split(",") if word]
    plain = {name: here[name] for name in _PLAIN if name in here}
    chosen = dict(here) if "ALL" in map(str.upper, words) else plain
    for word in words:
        if word.upper() in ("ALL", "NONE", "NIL"):
            continue
        chosen.update(_setting(os.fsencode(word), here, f"--export {word}"))
    return chosen


def _setting(setting: bytes, here: dict[bytes, bytes], what: str) -> dict[bytes, bytes]:
    name, equals, value = setting.partition(b"=")
    if not name or b"\0" in setting:
        raise UsageError(f"{what} is not NAME=VALUE.", "Write --env NAME=VALUE.")
    if equals:
        return {name: value}
    return {name: here[name]} if name in here else {}  # as Slurm: a name that is not set is left out


def _from_file(file: str, here: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """K=V lines; empty lines and lines that begin with # are skipped, quotes around a value are taken off."""
    try:
        with open(file, "rb") as stream:
            lines = stream.read().splitlines()
    except OSError as error:
        raise UsageError(f"--env-file: {file} cannot be read: {error.strerror}.") from error
    found: dict[bytes, bytes] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip().removeprefix(b"export ").strip()
        if not text or text.startswith(b"#"):
            continue
        name, equals, value = text.partition(b"=")
        if len(value) > 1 and value[:1] == value[-1:] and value[:1] in b"'\"":
            value = value[1:-1]
        found.update(_setting(name + equals + value, here, f"--env-file: line {number} of {file}"))
    return found
