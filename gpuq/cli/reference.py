"""Makes docs/cli.md and the files in completions/ from the verbs' tables. Imports typed, completion and verbs.

One thing to know: `python -m gpuq.cli.reference > docs/cli.md` writes the reference; a test fails when it, or a
completion file, is not what is made here.
"""

from __future__ import annotations

import importlib.util
import os
import sys

from gpuq.cli.completion import SHELLS, completion_script
from gpuq.cli.options import Command, Option
from gpuq.cli.verbs import Verb, load_command, visible_verbs

_HEAD = """# gpuq on the command line

Made by `python -m gpuq.cli.reference > docs/cli.md`; do not edit it by hand.

Data goes to standard output, notes to standard error. `--json` gives one document with `"schema": 1`; an error is then
`{"schema": 1, "error": {"kind", "message", "hint", "exit_code"}}`. On a pipe nothing is cut, coloured or drawn.

Durations: a bare number is minutes; `MM:SS`, `HH:MM:SS`, `D-HH[:MM[:SS]]`, `90s`, `2h30m`, `1d`; 0 is no limit.
Sizes: a bare number is MiB; `512M`, `20G`, `1.5TiB`.

Job ids: `12`, `1,3-5`, `12_3` (task 3 of array 12), `12_[0-3]`, `last` (your newest job).

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | an error; an unknown id |
| 2 | the command line is wrong |
| 3 | no daemon answers |
| 124 | `wait --timeout` came first |
| 130 | Ctrl-C |
| the job's | `run`, `submit --wait`, `wait`, `logs -f`, `attach`: its code; 128 + N for signal N; 1 when unknown |

Variables: `GPUQ_HOME` (state), `GPUQ_CONFIG` (settings), `GPUQ_SOCKET`, `GPUQ_FORMAT` (default of `status --format`),
`GPUQ_SUBMIT_<OPTION>` (default of a submit option, such as `GPUQ_SUBMIT_TIME`), `NO_COLOR`, `FORCE_COLOR`, `COLUMNS`.
"""


def reference() -> str:
    """The text of docs/cli.md."""
    verbs = [verb for verb in visible_verbs() if importlib.util.find_spec(verb.module)]
    lines = [_HEAD, "| verb | what it does |", "|---|---|"]
    lines += [f"| [`{verb.name}`](#gpuq-{verb.name}) | {verb.summary} |" for verb in verbs]
    for verb in verbs:
        lines += ["", *_section(verb, load_command(verb.module))]
    return "\n".join(lines) + "\n"


def _section(verb: Verb, command: Command) -> list[str]:
    argument = command.argument
    words = "" if argument is None else f" {argument.metavar}" if argument.required else f" [{argument.metavar}]"
    lines = [f"## gpuq {verb.name}", "", f"`gpuq {verb.name} [OPTIONS]{words}`", "", command.description]
    if verb.aliases:
        lines[-1] += f" Also: {', '.join(f'`{alias}`' for alias in verb.aliases)}."
    if argument is not None:
        lines += ["", f"`{argument.metavar}`: {argument.help}"]
    shown = [option for option in command.options if not option.hidden]
    if shown:
        lines += ["", "| option | |", "|---|---|"]
        lines += [f"| {_spelled(option)} | {_cell(option.help)} |" for option in shown]
    if command.epilog:
        lines += ["", command.epilog]
    return lines


def _spelled(option: Option) -> str:
    flags = ", ".join(f"`{flag}`" for flag in (*option.flags, *option.off))
    return flags if option.metavar is None else f"{flags} `{_cell(option.metavar)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def write_completions(directory: str) -> list[str]:
    """Write the completion files; the paths written."""
    written = []
    for shell in SHELLS:
        file = os.path.join(directory, f"gpuq.{shell}")
        with open(file, "w", encoding="utf-8") as stream:
            stream.write(completion_script(shell))
        written.append(file)
    return written


if __name__ == "__main__":
    if sys.argv[1:2] == ["--completions"]:
        write_completions(sys.argv[2] if len(sys.argv) > 2 else "completions")
    else:
        sys.stdout.write(reference())
