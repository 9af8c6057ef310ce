"""The other Pythons of this machine, and gpuq installed for one of them. May import: the standard library.

Owns: finding interpreters (pyenv, PATH) and the environments below .venv, one for each version and state of
pyproject.toml. Used by the tests of this directory.

One thing to know: environments are kept, since making one downloads and unpacks what gpuq depends on; a lock lets
tests that run side by side share them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INSTALL_WITHIN_S = 240.0
ASK_WITHIN_S = 10.0

Version = tuple[int, int]


def others(versions: Iterable[Version]) -> dict[str, Path]:
    """Interpreters of these versions that are installed here, without the running one: `3.10` to its path."""
    found: dict[str, Path] = {}
    for version in versions:
        if version != sys.version_info[:2] and (path := _interpreter(version)) is not None:
            found["{}.{}".format(*version)] = path
    return found


def _interpreter(version: Version) -> Path | None:
    """The newest one of a version; a name on PATH may be a stand-in that runs nothing, so each is asked."""
    major, minor = version
    kept = Path("~/.pyenv/versions").expanduser().glob(f"{major}.{minor}.*/bin/python3")
    candidates = sorted(kept, key=lambda path: _numbers(path.parts[-3]), reverse=True)
    named = shutil.which(f"python{major}.{minor}")
    for path in [*candidates, *([Path(named)] if named else [])]:
        if _version_of(path) == version:
            return path
    return None


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _version_of(path: Path) -> Version | None:
    program = "import sys; print(*sys.version_info[:2])"
    try:
        done = subprocess.run([path, "-c", program], capture_output=True, text=True, timeout=ASK_WITHIN_S)
        major, minor = done.stdout.split()
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return int(major), int(minor)


def installed(name: str, python: Path) -> Path:
    """The interpreter of an environment of `python` in which gpuq is installed, as a user would, from this checkout.

    name: the version, as in `3.10`. Raises AssertionError with the last words of pip.
    """
    described = (ROOT / "pyproject.toml").read_bytes() + os.fsencode(python)
    cache = ROOT / ".venv"
    cache.mkdir(exist_ok=True)
    directory = cache / f"compat-{name}-{hashlib.sha256(described).hexdigest()[:8]}"
    with open(cache / f"compat-{name}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "complete").exists():
            for outdated in cache.glob(f"compat-{name}-*"):
                shutil.rmtree(outdated)
            _install(python, directory)
            (directory / "complete").touch()
    return directory / "bin" / "python"


def _install(python: Path, directory: Path) -> None:
    """The running Python's pip does it: an environment with a pip of its own takes seconds more to make."""
    pip = [sys.executable, "-m", "pip", "--python", str(directory / "bin" / "python"), "--disable-pip-version-check"]
    for command in (
        [str(python), "-m", "venv", "--without-pip", str(directory)],
        [*pip, "install", "--no-compile", "--editable", str(ROOT)],
    ):
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=INSTALL_WITHIN_S, cwd=ROOT,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout[-2000:]}"
