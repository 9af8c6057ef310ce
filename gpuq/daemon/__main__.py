"""The background daemon: `python -m gpuq.daemon`. Says in one line why it cannot start."""

from __future__ import annotations

import sys

from gpuq.daemon.main import run
from gpuq.errors import GpuqError


def main() -> int:
    """Exit code of the daemon."""
    try:
        return run(foreground=False, allow_rollback="--allow-rollback" in sys.argv[1:])
    except GpuqError as error:
        print(error.message, error.hint or "", file=sys.stderr)  # noqa: T201  (read by whoever started it)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
