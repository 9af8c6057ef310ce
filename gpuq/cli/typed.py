"""The verbs as typer commands: help, messages for mistaken lines, and the generated reference. Imports typer.

One thing to know: imported only when needed. Commands are made of the verbs' tables and only for the verb in
question; rich stays out of it (rich_markup_mode=None), so help is plain text that can be piped and grepped.
"""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Final

import typer
import typer.core
import typer.main

from gpuq import __version__
from gpuq.cli.options import Command, Option, Values
from gpuq.cli.verbs import VERBS, find_verb, load_command, visible_verbs
from gpuq.errors import GpuqError, UsageError

ABOUT: Final = "A job queue for GPUs: submit, and the scheduler decides who runs where, and says why."
_FIRST_STEPS: Final = "First steps:  gpuq submit --gpus 1 -- python train.py;  gpuq status;  gpuq logs -f last"
_HELP_FLAGS: Final = ["-h", "--help"]


class VerbGroup(typer.core.TyperGroup):
    """The `gpuq` command: its sub-commands come from the table of verbs."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The verbs in the table's order."""
        return [verb.name for verb in visible_verbs()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The typer command of one verb, or None."""
        verb = find_verb(cmd_name)
        return None if verb is None else typer_command(verb.name, load_command(verb.module))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Verbs by group, without importing any of them."""
        for group in dict.fromkeys(verb.group for verb in visible_verbs()):
            with formatter.section(group):
                formatter.write_dl([(v.name, v.summary) for v in visible_verbs() if v.group == group])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb that `args` begin with; a mistyped one is an error that names the nearest."""
        if find_verb(args[0]) is None:
            from difflib import get_close_matches

            known = [name for verb in VERBS if not verb.hidden for name in (verb.name, *verb.aliases)]
            near = get_close_matches(args[0], known, 1)
            raise UsageError(
                f"There is no command '{args[0]}'.",
                f"Did you mean: gpuq {near[0]}?" if near else "See all of them: gpuq --help",
            )
        return super().resolve_command(ctx, args)


def typer_group() -> Any:
    """The whole command line as one typer (click) group."""
    application = typer.Typer(
        name="gpuq", cls=VerbGroup, add_completion=False, rich_markup_mode=None, no_args_is_help=False,
        context_settings={"help_option_names": _HELP_FLAGS}, pretty_exceptions_enable=False,
    )  # fmt: skip

    @application.callback(invoke_without_command=True, help=ABOUT, epilog=_FIRST_STEPS)
    def gpuq(
        context: typer.Context,
        version: Annotated[bool, typer.Option("--version", "-V", help="Show the version.")] = False,
    ) -> None:
        if version:
            typer.echo(f"gpuq {__version__}")
        elif context.invoked_subcommand is None:
            typer.echo(context.get_help())

    return typer.main.get_command(application)


def typer_command(name: str, command: Command) -> Any:
    """One verb as a typer command."""

    def carry_out(**given: Any) -> None:
        raise typer.Exit(command.function(Values(given)))

    parameters = [_parameter(option.name, _option_type(option), _option_info(option)) for option in command.options]
    argument = command.argument
    if argument is not None:
        words: Any = list[str] if argument.many else str
        info = typer.Argument(metavar=argument.metavar, help=argument.help, show_default=False)
        parameters.append(_parameter(argument.name, words, info, argument.required))
    carry_out.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    carry_out.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    application = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    settings = {"help_option_names": _HELP_FLAGS, "allow_interspersed_args": not command.stops_at_word}
    application.command(name, help=command.description, epilog=command.epilog, context_settings=settings)(carry_out)
    return typer.main.get_command(application)


def _parameter(name: str, kind: Any, info: Any, required: bool = False) -> inspect.Parameter:
    annotation = Annotated[kind, info] if required else Annotated[kind | None, info]
    default = inspect.Parameter.empty if required else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _option_type(option: Option) -> Any:
    if option.is_flag:
        return bool
    return list[str] if option.many else str


def _option_info(option: Option) -> Any:
    flags = list(option.flags)
    if option.off:  # click's spelling of a flag with a no-form
        flags = [*flags[:-1], f"{flags[-1]}/{option.off[0]}"]
    return typer.Option(*flags, help=option.help, metavar=option.metavar, hidden=option.hidden, show_default=False)


def run_typed(arguments: list[str]) -> int:
    """Read `arguments` with typer and carry them out; its complaints become UsageError."""
    verb = find_verb(arguments[0]) if arguments else None
    try:
        if verb is None:
            outcome = typer_group()(args=arguments, prog_name="gpuq", standalone_mode=False)
        else:  # not by way of the group: reading its options makes typer import pydantic
            command = typer_command(verb.name, load_command(verb.module))
            outcome = command(args=arguments[1:], prog_name=f"gpuq {verb.name}", standalone_mode=False)
    except typer.Abort:  # an older click's word for Ctrl-C
        raise KeyboardInterrupt from None
    except SystemExit:  # click's own answer to a reader that went away
        raise BrokenPipeError from None
    except (GpuqError, BrokenPipeError):
        raise
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        raise _usage_error(error, arguments) from error
    return outcome if isinstance(outcome, int) else 0


def _usage_error(error: Any, arguments: list[str]) -> UsageError:
    """What typer complains about, as one sentence with the way to the help text."""
    verb = find_verb(arguments[0]) if arguments else None
    place = verb.name if verb else "gpuq"
    help_line = f"gpuq {verb.name} --help" if verb else "gpuq --help"
    if hasattr(error, "possibilities"):  # click's NoSuchOption, wherever this typer has put it
        from difflib import get_close_matches

        wrong = error.option_name
        near = get_close_matches(wrong, error.possibilities or (), 2, 0.6)
        hint = f"Did you mean {' or '.join(near)}? " if near else ""
        return UsageError(f"{place} has no option '{wrong}'.", f"{hint}See: {help_line}")
    sentence = " ".join(str(error.format_message()).split()).rstrip(".")
    return UsageError(f"{place}: {sentence}.", f"See: {help_line}")
