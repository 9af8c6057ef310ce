"""Entry of the agent: `serve` (the frame loop), `forker` (forks shims) and `sampler` (reads the GPUs).

May import: the modules of this package, one verb's at a time so that the forker stays small.
One thing to know: it also runs as a plain script (`python -S -E .../agent/__main__.py serve`); it then puts
the directory that holds the package on the path and imports itself by its package name.
"""

from __future__ import annotations

import os
import sys
from typing import List, Optional


def main(arguments: Optional[List[str]] = None) -> int:
    """Run one verb; returns the exit code of the process."""
    words = sys.argv[1:] if arguments is None else arguments
    verb = words[0] if words else "serve"
    if verb == "serve":
        from .main import serve

        return serve()
    if verb == "forker":
        from .forker import run_forker

        return run_forker(words[1])
    if verb == "sampler":
        from .sampler import run

        return run()
    sys.stderr.write(f"gpuq agent: unknown verb {verb!r}; use serve, forker or sampler.\n")
    return 2


def _import_by_package() -> int:
    """Run as a script: put the parent of the package on the path and run `main` from there."""
    here = os.path.dirname(os.path.abspath(__file__))
    outer = os.path.dirname(here)
    package = os.path.basename(here)
    if os.path.exists(os.path.join(outer, "__init__.py")):
        package = f"{os.path.basename(outer)}.{package}"
        outer = os.path.dirname(outer)
    sys.path[:] = [outer, *(entry for entry in sys.path if os.path.abspath(entry or ".") != here)]
    import importlib

    code: int = importlib.import_module(f"{package}.__main__").main()
    return code


if __name__ == "__main__":
    sys.exit(main() if __package__ else _import_by_package())
