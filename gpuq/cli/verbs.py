"""The verbs: names, one-line help, where each lives. Imports options and errors, and a verb's module on demand.

One thing to know: a verb's module is imported when the verb is called, never before.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpuq.cli.options import Command
from gpuq.errors import InternalError


class Verb(NamedTuple):
    """One verb. Aliases work but are not listed; `prefix` is put before the arguments of the alias."""

    name: str
    summary: str
    group: str
    aliases: tuple[str, ...] = ()
    hidden: bool = False

    @property
    def module(self) -> str:
        """The module with its COMMAND."""
        return f"gpuq.cli.commands.{self.name.replace('-', '_')}"


VERBS: Final = (
    Verb("submit", "Queue a command or a script.", "Jobs", ("add",)),
    Verb("run", "Queue a command, show its output, exit with its code.", "Jobs"),
    Verb("status", "What runs, what waits and why.", "Jobs", ("queue", "ls", "ps")),
    Verb("show", "One job in full.", "Jobs"),
    Verb("logs", "A job's output; -f follows it.", "Jobs", ("log", "follow")),
    Verb("wait", "Wait until jobs end; exit with their code.", "Jobs"),
    Verb("cancel", "End jobs, or send them a signal.", "Jobs", ("kill",)),
    Verb("why", "Why a job waits, and what would start it sooner.", "Jobs"),
    Verb("attach", "Follow a running job's output; Ctrl-C detaches.", "Jobs"),
    Verb("progress", "From inside a job: how much of its work is done.", "Jobs"),
    Verb("hold", "Keep waiting jobs from starting.", "Jobs"),
    Verb("release", "Let held jobs start.", "Jobs"),
    Verb("requeue", "Run jobs again under the same id.", "Jobs"),
    Verb("update", "Change a waiting job, or the time limit of a running one.", "Jobs"),
    Verb("history", "Jobs that have ended.", "Jobs"),
    Verb("report", "How good predictions of run times have been.", "Jobs"),
    Verb("prune", "Forget jobs that ended long ago.", "Jobs"),
    Verb("nodes", "Machines and their state.", "Machines"),
    Verb("gpus", "GPUs: use, memory, power, and who holds them.", "Machines"),
    Verb("drain", "Start nothing more on a machine.", "Machines"),
    Verb("resume", "Let a drained machine work again.", "Machines"),
    Verb("daemon", "Start, stop, look at or install the daemon.", "gpuq itself"),
    Verb("config", "Show or check gpuq.toml.", "gpuq itself"),
    Verb("doctor", "Check this machine and say what to correct.", "gpuq itself"),
    Verb("simulate", "What scheduling policies would make of a job trace.", "gpuq itself"),
    Verb("demo", "Try gpuq with simulated GPUs.", "gpuq itself"),
    Verb("completion", "Print the completion script for a shell.", "gpuq itself"),
    Verb("complete", "Words for the completion scripts.", "gpuq itself", hidden=True),
)
_PREFIXES: Final = {"follow": ("--follow",)}


def find_verb(name: str) -> Verb | None:
    """The verb called `name`, by name or alias."""
    for verb in VERBS:
        if name == verb.name or name in verb.aliases:
            return verb
    return None


def alias_arguments(name: str) -> tuple[str, ...]:
    """What an alias stands for besides the verb: `follow` is `logs --follow`."""
    return _PREFIXES.get(name, ())


def visible_verbs() -> list[Verb]:
    """The verbs people are told about."""
    return [verb for verb in VERBS if not verb.hidden]


def load_command(module: str) -> Command:
    """The COMMAND of a verb's module."""
    import importlib

    command = importlib.import_module(module).COMMAND
    if not isinstance(command, Command):
        raise InternalError(f"{module} has no COMMAND.")
    return command
