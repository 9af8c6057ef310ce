"""Arrays, sweeps and input lines: which tasks a submit makes. Imports errors and selectors.

One thing to know: a sweep and --each-line are arrays too: task N takes the N-th value of every placeholder, and the
daemon puts it into the command when the task starts.
"""

from __future__ import annotations

import itertools
import re
import sys
from typing import Any, Final, NamedTuple

from gpuq.cli.options import Values
from gpuq.cli.selectors import index_list
from gpuq.errors import UsageError

MOST_TASKS: Final = 100_000
LINE: Final = "line"
_ARRAY: Final = re.compile(r"([0-9,:-]+)(?:%(\d+))?")
_PLACEHOLDER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


class Tasks(NamedTuple):
    """The tasks of an array (none: a plain job) and what each puts into the command."""

    indices: list[int]
    limit: int = 0
    step: int = 1
    values: list[tuple[str, list[str]]] = []  # noqa: RUF012 (never changed)

    def spec(self) -> dict[str, Any]:
        """The JobSpec fields of the array."""
        if not self.indices:
            return {}
        fields: dict[str, Any] = {
            "array_size": len(self.indices), "array_min": self.indices[0], "array_max": self.indices[-1],
            "array_step": self.step, "array_limit": self.limit,
        }  # fmt: skip
        if self.values:
            fields["values"] = [[name, values] for name, values in self.values]
        return fields


def tasks_of(values: Values) -> Tasks:
    """The tasks asked for by --array, --sweep and --each-line; raises UsageError when they contradict."""
    sweeps, lines, array = values.words("sweep"), values.text("each_line"), values.text("array")
    if sum(map(bool, (sweeps, lines, array))) > 1 and not (array and array.startswith("%")):
        raise UsageError("--array, --sweep and --each-line cannot be combined.", "Give one; a limit alone is -a %4.")
    limit = int(array[1:]) if array and array[1:].isdigit() and array.startswith("%") else 0
    if sweeps:
        return _counted(_product(sweeps), limit)
    if lines:
        return _counted([(LINE, _lines(lines))], limit)
    return array_tasks(array) if array else Tasks([])


def array_tasks(text: str) -> Tasks:
    """Tasks of Slurm's grammar `0-31:2%4`; raises UsageError."""
    found = _ARRAY.fullmatch(text.strip())
    if not found:
        raise UsageError(f"'{text}' is not an array.", "Write 0-31, 1,3,5 or 0-31:2%4 (at most 4 at once).")
    indices = index_list(found[1], text)
    _check_size(len(indices))
    step = re.fullmatch(r"\d+-\d+:(\d+)", found[1])
    return Tasks(indices, int(found[2] or 0), int(step[1]) if step else 1)


def put_line_last(argv: list[str], tasks: Tasks) -> list[str]:
    """The command with `{line}` as its last word, if --each-line is used and it is nowhere in it."""
    if tasks.values and tasks.values[0][0] == LINE and not any("{line}" in word for word in argv):
        return [*argv, "{line}"]
    return argv


def check_placeholders(argv: list[str], tasks: Tasks) -> None:
    """Refuse a swept name that the command never uses: all its tasks would be the same."""
    for name, _ in tasks.values:
        if not any(f"{{{name}}}" in word for word in argv):
            raise UsageError(f"--sweep {name}: the command has no {{{name}}}.", f"Write it as in: --{name} {{{name}}}")


def _product(sweeps: list[str]) -> list[tuple[str, list[str]]]:
    names: list[str] = []
    choices: list[list[str]] = []
    for sweep in sweeps:
        name, equals, listed = sweep.partition("=")
        if not equals or not listed or not _PLACEHOLDER.fullmatch(name):
            raise UsageError(f"--sweep '{sweep}' is not NAME=VALUE,VALUE.", "Write --sweep lr=1e-3,1e-4")
        if name in names:
            raise UsageError(f"--sweep {name} is given twice.", "List all its values in one.")
        names.append(name)
        choices.append(listed.split(","))
    size = 1
    for values in choices:
        size *= len(values)
    _check_size(size)
    rows = list(itertools.product(*choices))
    return [(name, [row[column] for row in rows]) for column, name in enumerate(names)]


def _lines(file: str) -> list[str]:
    """The lines of `file` (`-`: standard input) that are not empty."""
    try:
        if file == "-":
            raw = sys.stdin.buffer.read()
        else:
            with open(file, "rb") as stream:
                raw = stream.read()
        lines = [line.rstrip("\r") for line in raw.decode().split("\n")]
    except OSError as error:
        raise UsageError(f"--each-line: {file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--each-line: {file} is not UTF-8.", "Convert it with iconv first.") from error
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise UsageError(f"--each-line: {file} has no lines.")
    if any("\0" in line for line in lines):
        raise UsageError(f"--each-line: {file} has a NUL character, which no command can take.")
    return lines


def _counted(values: list[tuple[str, list[str]]], limit: int) -> Tasks:
    count = len(values[0][1])
    _check_size(count)
    return Tasks(list(range(count)), limit, 1, values)


def _check_size(count: int) -> None:
    if count > MOST_TASKS:
        raise UsageError(f"That is an array of {count} tasks; the most is {MOST_TASKS}.", "Split it.")
