"""The file in which a job says how much is done, without a process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuq.agent import progress


@pytest.mark.parametrize(
    ("text", "fraction"),
    [("0.42", 0.42), ("0.1\n0.2\n0.3\n", 0.3), (" 1 ", 1.0), ("0", 0.0), ("0.12345", 0.123), ("x " * 100 + "0.5", 0.5),
     ("", None), ("half", None), ("1.5", None), ("-0.1", None), ("nan", None), ("42%", None), ("\udcff", None)],
)  # fmt: skip
def test_the_last_word_counts(tmp_path: Path, text: str, fraction: float | None) -> None:
    """Overwritten or appended; whatever is no number from 0 to 1 is no progress."""
    (tmp_path / progress.FILE).write_bytes(os.fsencode(text))
    assert progress.fraction(str(tmp_path)) == fraction


@pytest.mark.parametrize("kind", ["nothing", "fifo", "link", "directory"])
def test_only_a_file_is_read(tmp_path: Path, kind: str) -> None:
    """Anything else neither blocks nor leads elsewhere."""
    path = tmp_path / progress.FILE
    (tmp_path / "elsewhere").write_text("0.5")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "directory":
        path.mkdir()
    assert progress.fraction(str(tmp_path)) is None


def test_the_variable_is_the_attempts_own(tmp_path: Path) -> None:
    """One that was inherited from another job is replaced."""
    found = progress.with_variable(b"A=1\0GPUQ_PROGRESS_FILE=/old\0", "/spool/x")
    assert found == b"A=1\0GPUQ_PROGRESS_FILE=/spool/x/progress"
