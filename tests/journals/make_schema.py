"""Write the journal of the present schema next to this file: `python tests/journals/make_schema.py`.

Run once when a schema is released; the file is then kept for ever, so an existing one is not overwritten
unless `--again` is given (before the release).
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "journal")]

from journal_cases import BLOB, ENVIRONMENT, STAMP, ended_job, one_of_each, released  # noqa: E402 - found by the line above

from gpuq.journal import Journal  # noqa: E402 - as above
from gpuq.journal.schema import newest_schema  # noqa: E402 - as above


def main() -> None:
    """Write schema-N.db."""
    target = HERE / f"schema-{newest_schema()}.db"
    if target.exists() and "--again" not in sys.argv:
        sys.exit(f"{target} exists")
    with tempfile.TemporaryDirectory() as home:
        journal = Journal.open(Path(home))
        journal.append([(STAMP, released(1))])
        journal.snapshot(b"a snapshot", 1)
        archive = [ended_job("7", 1), ended_job("8_2", 2, task=2)]
        journal.append([(STAMP, event) for event in one_of_each()], blobs={BLOB: ENVIRONMENT}, archive=archive)
        journal.close()
        shutil.copyfile(Path(home) / "journal.db", target)


if __name__ == "__main__":
    main()
