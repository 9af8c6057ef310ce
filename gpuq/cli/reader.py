"""Reads a well-formed command line by a verb's table, fast. Imports options.

One thing to know: anything that needs an explanation (an unknown option, a missing value, --help) is not judged
here: the answer is None, and typer, which takes tens of milliseconds to import, reads the line again and says it.
Both read by the same rules; a test compares them on random lines.
"""

from __future__ import annotations

from typing import Any

from gpuq.cli.options import Command, Option, Values


def read_values(command: Command, arguments: list[str]) -> Values | None:
    """The values in `arguments`, or None when typer has to look at them."""
    return _Reading(command, arguments).values()


class _Reading:
    """One pass over the words of a command line."""

    def __init__(self, command: Command, arguments: list[str]) -> None:
        self._command = command
        self._left = list(reversed(arguments))  # a stack: the next word is the last one
        self._given: dict[str, Any] = {}
        self._words: list[str] = []
        self._yes = {flag: option for option in command.options for flag in option.flags}
        self._no = {flag: option for option in command.options for flag in option.off}

    def values(self) -> Values | None:
        """Read all words; None as soon as one of them is not plain."""
        while self._left:
            word = self._left.pop()
            if word == "--":
                self._words.extend(reversed(self._left))
                break
            if word.startswith("--"):
                plain = self._long(word)
            elif word.startswith("-") and word != "-":
                plain = self._short(word)
            else:
                self._words.append(word)
                if self._command.stops_at_word:
                    self._words.extend(reversed(self._left))
                    break
                continue
            if not plain:
                return None
        return self._with_argument()

    def _long(self, word: str) -> bool:
        flag, equals, value = word.partition("=")
        option = self._yes.get(flag)
        if option is None:
            option = self._no.get(flag)
            if option is None or equals:
                return False
            self._given[option.name] = False
            return True
        if option.is_flag:
            self._given[option.name] = True
            return not equals
        return self._take(option, value if equals else None)

    def _short(self, word: str) -> bool:
        for place in range(1, len(word)):
            option = self._yes.get(f"-{word[place]}")
            if option is None:
                return False
            if not option.is_flag:
                return self._take(option, word[place + 1 :] or None)
            self._given[option.name] = True
        return True

    def _take(self, option: Option, value: str | None) -> bool:
        if value is None:
            if not self._left:
                return False
            value = self._left.pop()
        if option.many:
            self._given.setdefault(option.name, []).append(value)
        else:
            self._given[option.name] = value
        return True

    def _with_argument(self) -> Values | None:
        argument = self._command.argument
        if argument is None:
            return None if self._words else Values(self._given)
        if (argument.required and not self._words) or (len(self._words) > 1 and not argument.many):
            return None
        if argument.many:
            self._given[argument.name] = self._words
        elif self._words:
            self._given[argument.name] = self._words[0]
        return Values(self._given)
