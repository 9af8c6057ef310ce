"""The command: finds the verb, runs it, turns errors into one sentence and an exit code. Imports verbs and errors.

One thing to know: typer is imported only when a line needs it (help, a mistake); see `reader`. Exit codes: 0 done,
1 error, 2 usage, 3 no daemon, 124 time over, 130 Ctrl-C; `run`, `wait` and `logs -f` pass the job's code on.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from gpuq import __version__
from gpuq.cli import output
from gpuq.cli.verbs import alias_arguments, find_verb, load_command
from gpuq.errors import GpuqError, InternalError

INTERRUPTED = 130


def run() -> NoReturn:
    """Carry out sys.argv and end the process."""
    # A stream that was closed by the caller (`>&-`) is None, and its number would go to the next file opened.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (kept open until the process ends)
    # Names from elsewhere may hold what this terminal's encoding lacks: shown escaped, never a crash.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    code = main(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
    except OSError as error:
        _drop_output()
        output.note(f"The output could not be written: {error.strerror}.")
        code = 1
    # Nothing is left to clean up, and skipping the interpreter's teardown saves some milliseconds.
    sys.stderr.flush()
    os._exit(code)


def main(arguments: list[str]) -> int:
    """Carry out one command line and return its exit code; no exception leaves."""
    try:
        return _dispatch(arguments)
    except BrokenPipeError:
        _drop_output()
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except GpuqError as error:
        return _reported(error, arguments)
    except Exception as error:  # a fault of ours: the traceback goes to a file, a sentence to the person
        return _reported(_internal(error), arguments)


def _dispatch(arguments: list[str]) -> int:
    verb = find_verb(arguments[0]) if arguments else None
    if verb is None:
        if arguments in (["--version"], ["-V"]):
            output.write(f"gpuq {__version__}")
            return 0
        return _typed(arguments)
    rest = [*alias_arguments(arguments[0]), *arguments[1:]]
    command = load_command(verb.module)
    from gpuq.cli.reader import read_values

    values = read_values(command, rest)
    return command.function(values) if values is not None else _typed([verb.name, *rest])


def _typed(arguments: list[str]) -> int:
    from gpuq.cli.typed import run_typed

    return run_typed(arguments)


def _reported(error: GpuqError, arguments: list[str]) -> int:
    """Say `error` on standard error, or as the JSON document; its exit code."""
    try:
        if wants_json(arguments):
            output.write_json({"error": error.as_json()})
        else:
            output.note(error.message if not error.hint else f"{error.message}\n      {error.hint}")
    except BrokenPipeError:
        _drop_output()
    return error.exit_code


def wants_json(arguments: list[str]) -> bool:
    """Whether --json was among gpuq's own options (not the job's words)."""
    verb = find_verb(arguments[0]) if arguments else None
    if verb is None:
        return "--json" in arguments
    own = arguments[1 : arguments.index("--")] if "--" in arguments else arguments[1:]
    if verb.name not in ("submit", "run"):
        return "--json" in own
    takes_value = {flag for option in load_command(verb.module).options if not option.is_flag for flag in option.flags}
    skip = False
    for word in own:
        if word == "--json" and not skip:
            return True
        if not word.startswith("-") and not skip:
            return False
        skip = word in takes_value and not skip
    return False


def _internal(error: Exception) -> InternalError:
    """The sentence for a fault of ours, after its traceback was kept in the state directory."""
    import time
    import traceback

    from gpuq.config import find_paths

    text = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} gpuq {__version__}\n{traceback.format_exc()}\n"
    sentence = f"gpuq itself failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no text'}."
    try:
        home = find_paths().home
        os.makedirs(home, mode=0o700, exist_ok=True)
        file = os.path.join(home, "cli.log")
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace") as log:
            log.write(text)
    except (OSError, GpuqError):
        return InternalError(sentence, "The details could not be written to a log file.")
    return InternalError(sentence, f"Please report it with the end of {file}.")


def _drop_output() -> None:
    """The reader went away (`| head`): what is still buffered goes nowhere, quietly."""
    empty = os.open(os.devnull, os.O_WRONLY)
    os.dup2(empty, sys.stdout.fileno())
