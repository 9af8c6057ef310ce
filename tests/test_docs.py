"""Nothing is undocumented: every verb and option has help, a place in docs/cli.md and a completion."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuq.cli.app import load_command
from gpuq.cli.completion import SHELLS, completion_script
from gpuq.cli.reference import reference
from gpuq.cli.verbs import VERBS, Verb, find_verb, visible_verbs

ROOT = Path(__file__).parents[1]
_VISIBLE = [pytest.param(verb, id=verb.name) for verb in visible_verbs()]


def test_reference_is_up_to_date() -> None:
    """docs/cli.md is what `python -m gpuq.cli.reference` makes."""
    assert (ROOT / "docs/cli.md").read_text() == reference()


@pytest.mark.parametrize("shell", SHELLS)
def test_completions_are_up_to_date(shell: str) -> None:
    """completions/ holds what `python -m gpuq.cli.reference --completions` makes."""
    assert (ROOT / f"completions/gpuq.{shell}").read_text() == completion_script(shell)


@pytest.mark.parametrize("verb", _VISIBLE)
def test_every_verb_is_documented(verb: Verb) -> None:
    """A verb has a summary, a description, a section and help for each option; every option is completed."""
    command = load_command(verb.module)
    assert verb.summary.endswith(".")
    assert command.description.endswith(".")
    assert f"## gpuq {verb.name}\n" in reference()
    for option in command.options:
        assert option.help.endswith("."), option
        for flag in (*option.flags, *option.off):
            assert f"`{flag}`" in reference(), flag
            assert flag in completion_script("bash"), flag


@pytest.mark.parametrize("verb", _VISIBLE)
def test_no_spelling_is_used_twice(verb: Verb) -> None:
    """Within a verb each spelling means one option, and each option has its own name."""
    options = load_command(verb.module).options
    flags = [flag for option in options for flag in (*option.flags, *option.off)]
    assert len(flags) == len(set(flags))
    assert len(options) == len({option.name for option in options})


def test_names_and_aliases_are_unique() -> None:
    """No alias hides a verb."""
    names = [name for verb in VERBS for name in (verb.name, *verb.aliases)]
    assert len(names) == len(set(names))
    assert all(find_verb(verb.name) is verb for verb in VERBS)
