"""Aligned columns, with or without colour. Imports render.text.

One thing to know: a Cell is plain text plus the name of a style; colour is only added around it at the end, so what
a cell says never depends on it. On a pipe nothing is cut; on a terminal the columns that may shrink do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from gpuq.cli.render.text import cells, padded, plain

STYLES: Final = {"running": "32", "waiting": "33", "trouble": "31", "faint": "2", "head": "1"}
_GAP: Final = 2
_LEAST: Final = 8  # a shrinking column keeps at least this


class Cell(NamedTuple):
    """One field: its text and its meaning (a key of STYLES, or none)."""

    text: str
    style: str = ""


class Column(NamedTuple):
    """A column: its heading, whether it is right-aligned, and what it does when the terminal is narrow."""

    head: str
    right: bool = False
    shrinks: bool = False  # cut with … when it must be
    wraps: bool = False  # goes on in the next line instead


def styled(text: str, style: str, colour: bool) -> str:
    """`text` in the colour of `style`, if colour is wanted."""
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if colour and style else text


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], *, colour: bool = False, width: int | None = None,
    indent: int = 0, heads: bool = True,
) -> list[str]:  # fmt: skip
    """The lines of a table; `width` None means: as wide as it takes."""
    texts = [[Cell(plain(cell.text), cell.style) for cell in row] for row in rows]
    widths = [cells(column.head) if heads else 0 for column in columns]
    for row in texts:
        for place, cell in enumerate(row):
            size = cells(cell.text)
            if size > widths[place]:
                widths[place] = size
    if width is not None:
        _shrink(columns, widths, width - indent)
    lines = []
    if heads:
        head = [Cell(column.head, "faint") for column in columns]
        lines.append(_line(columns, head, widths, colour, indent))
    for row in texts:
        for part in _wrapped(columns, row, widths):
            lines.append(_line(columns, part, widths, colour, indent))
    return lines


def _shrink(columns: Sequence[Column], widths: list[int], width: int) -> None:
    """Take what is too much from the columns that may give, the widest first."""
    excess = sum(widths) + _GAP * (len(widths) - 1) - width
    giving = [place for place, column in enumerate(columns) if column.shrinks or column.wraps]
    while excess > 0 and giving:
        widest = max(giving, key=lambda place: widths[place])
        if widths[widest] <= _LEAST:
            return
        second = max((widths[place] for place in giving if place != widest), default=_LEAST)
        step = max(1, min(excess, widths[widest] - max(second, _LEAST)))
        widths[widest] -= step
        excess -= step


def _line(columns: Sequence[Column], row: Sequence[Cell], widths: list[int], colour: bool, indent: int) -> str:
    fields = []
    for place, cell in enumerate(row):
        text = shortened(cell.text, widths[place])
        last = place == len(row) - 1
        filled = text if last and not columns[place].right else padded(text, widths[place], columns[place].right)
        fields.append(styled(filled, cell.style, colour))
    return (" " * indent + (" " * _GAP).join(fields)).rstrip()


def _wrapped(columns: Sequence[Column], row: list[Cell], widths: list[int]) -> list[list[Cell]]:
    """The row as one or several rows, where a wrapping column is too wide."""
    wide = [place for place, column in enumerate(columns) if column.wraps and cells(row[place].text) > widths[place]]
    if not wide:
        return [row]
    import textwrap

    parts = {place: textwrap.wrap(row[place].text, max(_LEAST, widths[place])) or [""] for place in wide}
    rows = []
    for number in range(max(map(len, parts.values()))):
        line = [cell if number == 0 else Cell("") for cell in row]
        for place, pieces in parts.items():
            line[place] = Cell(pieces[number] if number < len(pieces) else "", row[place].style)
        rows.append(line)
    return rows


def shortened(text: str, columns: int) -> str:
    """`text`, cut with … to `columns`."""
    if cells(text) <= columns:
        return text
    kept = ""
    for character in text:
        if cells(kept + character) > columns - 1:
            break
        kept += character
    return kept + "…"
