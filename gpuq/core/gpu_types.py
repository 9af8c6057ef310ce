"""Whether a GPU is of the type a person typed. Pure string matching; imports the standard library only.

One thing to know: names are compared as runs of letters and runs of digits, so "RTX 3090", "rtx3090" and "3090"
mean the same, while "a10" is not the beginning of "A100" and "l40" is not an L40S.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

_RUNS: Final = re.compile(r"[a-z]+|[0-9]+")
_GIGABYTES: Final = re.compile(r"(?<=[0-9])\s*gi?b(?![a-z0-9])")
_ANY: Final = frozenset({"", "any"})
_VARIANTS: Final = frozenset({"ti", "super"})  # "RTX 3080 Ti" is another GPU than "RTX 3080"


class _Run(NamedTuple):
    text: str
    glued: bool  # nothing stands between it and the run before


def is_any(asked: str | None) -> bool:
    """Whether the request leaves the type open: None, "" or "any"."""
    return asked is None or asked.strip().lower() in _ANY


@lru_cache(maxsize=4096)
def type_matches(asked: str, short_type: str, full_name: str = "", is_slice: bool = False) -> bool:
    """Whether `asked` names this GPU by its short label or by the driver's name.

    Words after the first may stand anywhere in either name ("a100-sxm"). A slice of a card is_slice: it is matched
    only by a name that reaches to the end of its label, so that who asks for an A100 does not get a seventh of one.
    """
    if is_any(asked):
        return True
    labels = [_runs(label) for label in (short_type, full_name) if label]
    wanted = [run.text for run in _runs(asked)]
    if not wanted:
        return False
    if any(_names(wanted, label, is_slice) for label in labels):
        return True
    first, *further = _words(asked)
    if not further or is_slice or not any(_names(first, label, False) for label in labels):
        return False
    return all(any(_mentions(label, word) for label in labels) for word in further)


def _runs(text: str) -> list[_Run]:
    plain = _GIGABYTES.sub("g", text.lower())
    found: list[_Run] = []
    end = -1
    for match in _RUNS.finditer(plain):
        found.append(_Run(match.group(), match.start() == end))
        end = match.end()
    return found


def _words(asked: str) -> list[list[str]]:
    words: list[list[str]] = []
    for run in _runs(asked):
        if run.glued:
            words[-1].append(run.text)
        else:
            words.append([run.text])
    return words


def _places(wanted: list[str], label: list[_Run]) -> list[int]:
    """Where in the label the wanted runs begin."""
    size = len(wanted)
    return [
        first
        for first in range(len(label) - size + 1)
        if [run.text for run in label[first : first + size]] == wanted
    ]


def _names(wanted: list[str], label: list[_Run], to_the_end: bool) -> bool:
    for first in _places(wanted, label):
        last = first + len(wanted)
        if not _may_begin(label, first):
            continue
        if last == len(label):
            return True
        if not to_the_end and not label[last].glued and label[last].text not in _VARIANTS:
            return True
    return False


def _mentions(label: list[_Run], word: list[str]) -> bool:
    """Whether a qualifier stands in the label as a word; a number may follow its letters ("sxm" in "SXM4")."""
    for first in _places(word, label):
        last = first + len(word)
        if label[first].glued:
            continue
        if last == len(label) or not label[last].glued:
            return True
        if word[-1].isalpha() and label[last].text.isdigit():
            return True
    return False


def _may_begin(label: list[_Run], first: int) -> bool:
    """A match begins a word or follows a family name of several letters: "3090" in "RTX3090", no "100" in "A100"."""
    if first == 0 or not label[first].glued:
        return True
    before = label[first - 1].text
    return before.isalpha() and len(before) > 1 and label[first].text.isdigit()
