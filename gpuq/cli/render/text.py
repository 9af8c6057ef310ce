"""Names and texts from elsewhere, made safe for a terminal. Imports nothing.

One thing to know: a job's name may hold escape sequences, line breaks and bidirectional marks; they are shown as
\\x1b and the like, never sent. Square brackets stay as they are: nothing here is markup.
"""

from __future__ import annotations

import unicodedata


def plain(text: object) -> str:
    """`text` with every control, format and surrogate character written as an escape."""
    line = str(text)
    if line.isascii() and line.isprintable():
        return line
    return "".join(character if _is_harmless(character) else _escaped(character) for character in line)


def _is_harmless(character: str) -> bool:
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def _escaped(character: str) -> str:
    named = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character)
    number = ord(character)
    return named or (f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}")


def cells(text: str) -> int:
    """Columns of a terminal that `text` takes: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def padded(text: str, columns: int, right: bool = False) -> str:
    """`text` filled with blanks to `columns`."""
    gap = " " * max(0, columns - cells(text))
    return gap + text if right else text + gap
