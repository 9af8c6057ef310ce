"""Scripts and their #GPUQ and #SBATCH lines. Imports errors, options, reader.

One thing to know: lines are read from the top of the script up to its first command, as sbatch does. Of #SBATCH,
what gpuq knows is applied and every other flag is named to the person: nothing is swallowed.
"""

from __future__ import annotations

import os
import shlex
from typing import Any, Final, NamedTuple

from gpuq.cli.options import Command, Option
from gpuq.cli.reader import read_values
from gpuq.errors import UsageError

MOST_BYTES: Final = 4 << 20
_SBATCH_FLAGS: Final = frozenset({
    "-G", "--gpus", "--gres", "-c", "--cpus-per-task", "--mem", "-t", "--time", "-J", "--job-name", "-D", "--chdir",
    "-o", "--output", "-e", "--error", "--open-mode", "-d", "--dependency", "-a", "--array", "-b", "--begin",
    "--signal", "--nice", "--priority", "-w", "--nodelist", "-x", "--exclude", "-H", "--hold", "--requeue",
    "--no-requeue", "--export", "--comment", "-W", "--wait",
})  # fmt: skip
_SBATCH_ALSO: Final = {"--gpus-per-node": "--gpus", "--gpus-per-task": "--gpus"}
_TRUE_FOR_ONE: Final = frozenset({"-N", "--nodes", "-n", "--ntasks", "--ntasks-per-node"})


class Script(NamedTuple):
    """A script's text as captured, what its directives ask for, and remarks for the person."""

    text: bytes
    values: dict[str, Any]
    remarks: list[str]


def script_text(word: str) -> bytes | None:
    """The text of the script that `word` names; None when it is a command (found on PATH, or a binary)."""
    if os.sep not in word and is_program(word):
        return None
    try:
        with open(word, "rb") as stream:
            text = stream.read(MOST_BYTES + 1)
    except OSError:
        return None
    if len(text) > MOST_BYTES or b"\0" in text[:4096]:
        return None
    if text.startswith(b"#!") or any(line.startswith((b"#GPUQ", b"#SBATCH")) for line in text.splitlines()):
        return text
    if not os.access(word, os.X_OK):
        raise UsageError(
            f"{word} is neither executable nor a script that begins with #!.",
            f"Name the program that runs it, such as: gpuq submit -- python {word}",
        )
    return None


def is_program(word: str, cwd: str = "") -> bool:
    """Whether a shell would find `word`: on PATH, or with a slash in it as a path from `cwd`."""
    # shutil.which would do, but shutil brings the compression modules along on every submit.
    places = [cwd] if os.sep in word else os.environ.get("PATH", os.defpath).split(os.pathsep)
    files = (os.path.join(place or os.curdir, word) for place in places)
    return any(os.path.isfile(file) and os.access(file, os.X_OK) for file in files)


def read_script(text: bytes, name: str, command: Command) -> Script:
    """The script with its directives read by the table of `command`; raises UsageError naming the line."""
    remarks: list[str] = []
    given: dict[str, Any] = {}
    if not text.startswith(b"#!"):
        text = b"#!/bin/sh\n" + text
        remarks.append(f"{name} has no #! line; it will be run with /bin/sh")
    for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            break
        for mark in ("#GPUQ", "#SBATCH"):
            if stripped.startswith(mark) and stripped[len(mark) :][:1] in ("", " ", "\t"):
                words = _words(stripped[len(mark) :], f"{name}, line {number}")
                if mark == "#SBATCH":
                    words = _known_sbatch(words, command, remarks)
                given.update(_given(words, command, f"{name}, line {number}: {stripped}"))
    return Script(text, given, remarks)


def _words(text: str, place: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise UsageError(f"{place}: {str(error).lower()}.", "Close the quotes on that line.") from error


def _given(words: list[str], command: Command, place: str) -> dict[str, Any]:
    values = read_values(command._replace(argument=None), words)
    if values is None:
        raise UsageError(f"{place}: this is not understood.", "See: gpuq submit --help")
    return values.given()


def _known_sbatch(words: list[str], command: Command, remarks: list[str]) -> list[str]:
    """The words of a #SBATCH line that gpuq knows, in its own spelling; the others go to `remarks`."""
    options = {flag: option for option in command.options for flag in (*option.flags, *option.off)}
    known: list[str] = []
    left = list(words)
    while left:
        flag, value, left = _split_flag(left)
        flag = _SBATCH_ALSO.get(flag, flag)
        if flag in _TRUE_FOR_ONE and value == "1":
            continue
        option = options.get(flag) if flag in _SBATCH_FLAGS else None
        if option is None or not _fits(option, value):
            remarks.append(f"#SBATCH {flag}{f'={value}' if value else ''} is ignored")
        else:
            known.extend([flag] if option.is_flag else [flag, value or ""])
    return known


def _fits(option: Option, value: str | None) -> bool:
    return option.is_flag or value is not None


def _split_flag(words: list[str]) -> tuple[str, str | None, list[str]]:
    """The first flag of `words`, its value if it has one, and the words after both."""
    first, rest = words[0], words[1:]
    if first.startswith("--"):
        flag, equals, value = first.partition("=")
        if equals:
            return flag, value, rest
    elif len(first) > 2 and first.startswith("-"):
        return first[:2], first[2:].removeprefix("="), rest
    else:
        flag = first
    if rest and not rest[0].startswith("-"):
        return flag, rest[0], rest[1:]
    return flag, None, rest


def environment_values(command: Command) -> dict[str, Any]:
    """What GPUQ_SUBMIT_<NAME> variables ask for; flags take 1, yes, true or 0, no, false."""
    found: dict[str, Any] = {}
    for option in command.options:
        variable = f"GPUQ_SUBMIT_{option.name.upper()}"
        value = os.environ.get(variable)
        if not value:
            continue
        if option.is_flag:
            if value.lower() not in ("1", "yes", "true", "0", "no", "false"):
                raise UsageError(f"{variable}={value} is neither yes nor no.", "Set it to 1 or 0.")
            found[option.name] = value.lower() in ("1", "yes", "true")
        else:
            found[option.name] = [value] if option.many else value
    return found
