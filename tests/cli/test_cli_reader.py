"""The fast reader agrees with typer, and leaves to it what needs an explanation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuq.cli.options import Argument, Command, Option, Values
from gpuq.cli.reader import read_values
from gpuq.cli.typed import typer_command

_SEEN: list[Values] = []


def _see(values: Values) -> int:
    _SEEN.append(values)
    return 0


def _command(stops_at_word: bool) -> Command:
    options = (
        Option(("-g", "--gpus"), "", "N"),
        Option(("--env",), "", "K=V", many=True),
        Option(("-q", "--quiet"), ""),
        Option(("-W", "--wait"), ""),
        Option(("--requeue",), "", off=("--no-requeue",)),
    )
    return Command("", _see, options, Argument("words", "WORD", "", many=True, required=False), "", stops_at_word)


_WORDS = st.sampled_from(
    ["-g", "--gpus", "--gpus=2", "-g3", "-q", "-qW", "-qg", "-W", "--env", "--env=A=1", "--requeue", "--no-requeue",
     "--", "-", "x", "2", "A=b", "--nope", "-z", "--quiet=1", "--gpus=", "-gq", "--no-requeue=1", "", "--requeu"]
)  # fmt: skip


def _by_typer(command: Command, words: list[str]) -> dict[str, Any] | None:
    _SEEN.clear()
    try:
        typer_command("verb", command)(args=words, prog_name="verb", standalone_mode=False)
    except Exception as error:
        if hasattr(error, "format_message"):
            return None
        raise
    return _SEEN[0].given()


@settings(max_examples=300, deadline=None)
@given(st.lists(_WORDS, max_size=6), st.booleans())
def test_reader_agrees_with_typer(words: list[str], stops_at_word: bool) -> None:
    """Whatever the fast reader takes, typer takes alike; whatever typer refuses, the reader leaves to it."""
    command = _command(stops_at_word)
    fast = read_values(command, words)
    slow = _by_typer(command, words)
    if fast is not None:
        assert slow == fast.given()
    else:
        assert slow is None


def test_words_after_the_first_belong_to_the_job() -> None:
    """A15: options after the first word reach the job unchanged, `--` included."""
    command = _command(stops_at_word=True)
    values = read_values(command, ["-g", "2", "python", "t.py", "--gpus", "4", "--", "-q"])
    assert values is not None
    assert values.words("words") == ["python", "t.py", "--gpus", "4", "--", "-q"]
    assert values.text("gpus") == "2"
    assert not values.flag("quiet")


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--gpus"], ["--unknown"]])
def test_what_needs_an_explanation_is_left_to_typer(words: list[str]) -> None:
    """The reader never guesses."""
    assert read_values(_command(stops_at_word=True), words) is None
