"""What a verb's command line looks like, as data. Imports errors.

One thing to know: this table is read twice. `reader` takes well-formed lines by it in a millisecond; `typed` makes
typer's commands of it, which give the help texts, the error messages and the generated reference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple


class Option(NamedTuple):
    """One option of a verb. Without a metavar it is a flag; `off` are the flag's spellings for no."""

    flags: tuple[str, ...]
    help: str
    metavar: str | None = None
    many: bool = False
    off: tuple[str, ...] = ()
    completes: str = ""  # what fits as its value: "files", "directories", "jobs", "nodes", or words with spaces
    hidden: bool = False

    @property
    def name(self) -> str:
        """The key of its value: the first long spelling, with underscores."""
        long = next((flag for flag in self.flags if flag.startswith("--")), self.flags[0])
        return long.lstrip("-").replace("-", "_")

    @property
    def is_flag(self) -> bool:
        """Whether it takes no value."""
        return self.metavar is None


class Argument(NamedTuple):
    """The positional words of a verb."""

    name: str
    metavar: str
    help: str
    many: bool = False
    required: bool = True
    completes: str = ""


class Values:
    """What was typed, by option and argument name."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given

    def flag(self, name: str) -> bool:
        """Whether the flag was given (and not taken back)."""
        return bool(self._given.get(name))

    def switch(self, name: str) -> bool | None:
        """A flag with a no-form: True, False, or None when neither was given."""
        value = self._given.get(name)
        return None if value is None else bool(value)

    def text(self, name: str) -> str | None:
        """The value of an option, the last one if repeated; None when it was not given."""
        value = self._given.get(name)
        return None if value is None else str(value)

    def words(self, name: str) -> list[str]:
        """All values of a repeatable option, or all words of an argument."""
        return list(self._given.get(name) or ())

    def given(self) -> dict[str, Any]:
        """All that was typed, by name."""
        return {name: value for name, value in self._given.items() if value not in (None, [], ())}

    def merged(self, lower: dict[str, Any]) -> Values:
        """These values, with `lower` where nothing was given here."""
        return Values({**lower, **self.given()})


class Command(NamedTuple):
    """A verb: its texts, what it takes, and the function that carries it out and returns the exit code."""

    description: str
    function: Callable[[Values], int]
    options: tuple[Option, ...] = ()
    argument: Argument | None = None
    epilog: str = ""
    stops_at_word: bool = False  # options end at the first word: the rest belongs to the job


JSON: Final = Option(("--json",), "One JSON document on standard output; errors too.")
YES: Final = Option(("-y", "--yes"), "Do not ask.")
QUIET: Final = Option(("-q", "--quiet"), "Nothing on success; errors are still said.")
JOBS: Final = Argument("jobs", "JOB...", "Job ids: 12, 1,3-5, 12_3, 12_[0-3], last.", many=True, completes="jobs")
MAYBE_JOBS: Final = JOBS._replace(required=False)
WHOSE: Final = (
    Option(("-u", "--user"), "Only jobs of this user.", "USER"),
    Option(("--me",), "Only your own jobs."),
    Option(("-t", "--states", "--state"), "Only jobs in these states: words or codes, with commas.", "STATE,..."),
    Option(("-n", "--name"), "Only jobs of this name.", "NAME"),
    Option(("-w", "--nodelist", "--node"), "Only jobs on this node.", "NODE", completes="nodes"),
)
