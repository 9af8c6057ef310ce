"""docs/benchmarks.md, of which each program here writes its own part. Imports the standard library.

One thing to know: a part stands between two comments that name it, so one can be measured anew and the others stay.
"""

from __future__ import annotations

import re
from typing import Final

from bench.machine import ROOT

DOCUMENT: Final = ROOT / "docs" / "benchmarks.md"
SUITES: Final = ("H", "F", "T", "S", "FT", "FC", "M")
PARTS: Final = ("speed", "policies", *(f"suite {suite}" for suite in SUITES), "solver", "published")
HEAD: Final = """# Benchmarks

Every number below was printed by the program that is named with it; each part says when and of which commit.
"""


def write_part(name: str, text: str) -> None:
    """Put a part in its place, its headings one level below the document's; the other parts stay as they are."""
    known = DOCUMENT.read_text("utf-8") if DOCUMENT.exists() else ""
    parts = {part: found for part in PARTS if (found := _part(known, part)) is not None}
    parts[name] = re.sub(r"^(#+ )", r"#\1", text.strip(), flags=re.MULTILINE)
    blocks = [f"<!-- {part} -->\n{parts[part]}\n<!-- end of {part} -->" for part in PARTS if part in parts]
    DOCUMENT.write_text("\n\n".join((HEAD.strip(), *blocks)) + "\n", "utf-8")


def _part(document: str, name: str) -> str | None:
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- end of {name} -->", document, re.DOTALL)
    return found[1] if found else None
