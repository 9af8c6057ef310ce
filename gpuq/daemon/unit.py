"""The systemd user unit: its text, where it goes, and what to tell the person. Imports errors and config.

One thing to know: KillMode=process, so that stopping or restarting the daemon never touches running jobs, and
Delegate=yes, so that jobs may have control groups of their own below it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from gpuq.config import Paths
from gpuq.errors import GpuqError

UNIT = "gpuq.service"
GPUQ = (sys.executable, "-m", "gpuq")


def unit_text(environment: dict[str, str] | None = None, command: list[str] | None = None) -> str:
    """The unit file; `environment` is what the daemon needs to find the same home and settings."""
    program, *arguments = command or [*GPUQ, "daemon", "run"]
    # Only in arguments does systemd replace $VARIABLES; in Environment= and in the program a dollar sign is just that.
    words = [_quoted(program), *(_quoted(word.replace("$", "$$")) for word in arguments)]
    settings = "".join(f"Environment={_quoted(f'{name}={value}')}\n" for name, value in (environment or {}).items())
    return f"""[Unit]
Description=gpuq, a job queue for GPUs
Documentation=man:gpuq(1)

[Service]
Type=simple
{settings}ExecStart={" ".join(words)}
Restart=on-failure
RestartSec=2
# Stopping the daemon leaves the jobs alone; it finds them again when it starts.
KillMode=process
Delegate=yes
TimeoutStopSec=30

[Install]
WantedBy=default.target
"""


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if any(letter in word for letter in " \t\"'\\;") else escaped


def unit_file() -> str:
    """Where systemd looks for this user's units."""
    settings = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(settings, "systemd", "user", UNIT)


def install(paths: Paths, start: bool) -> list[str]:
    """Write the unit and let systemd read it; with `start` enable and start it. Lines to show."""
    kept = {name: os.environ[name] for name in ("GPUQ_HOME", "GPUQ_CONFIG", "GPUQ_SOCKET") if os.environ.get(name)}
    file = unit_file()
    os.makedirs(os.path.dirname(file), exist_ok=True)
    with open(file, "w", encoding="utf-8") as stream:
        stream.write(unit_text(kept))
    lines = [f"Wrote {file}"]
    if start:
        _systemctl("daemon-reload")
        _systemctl("enable", UNIT)
        _stop_running()
        _systemctl("restart", UNIT)  # `start` would do nothing while the unit's own daemon is still ending
        return [*lines, f"Started {UNIT}; it listens at {paths.socket}"]
    return [*lines, f"Start it with: systemctl --user daemon-reload && systemctl --user enable --now {UNIT}"]


def _stop_running() -> None:
    """End a daemon that runs already: one that a submit started keeps the unit's out, an older unit's is outdated."""
    done = subprocess.run([*GPUQ, "daemon", "stop"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        hint = f"End it, then: systemctl --user start {UNIT}"
        raise GpuqError(f"The running daemon could not be stopped: {said}.", hint)


def _systemctl(*words: str) -> None:
    if shutil.which("systemctl") is None:
        raise GpuqError("This machine has no systemctl.", "Start the daemon with: gpuq daemon start")
    done = subprocess.run(["systemctl", "--user", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise GpuqError(f"systemctl --user {' '.join(words)} failed: {said}.", "Start it with: gpuq daemon start")


def linger_note() -> str | None:
    """What to say when the unit would end with the last login; None when lingering is on or cannot be known."""
    user = os.environ.get("USER") or str(os.getuid())
    if shutil.which("loginctl") is None or os.path.exists(f"/var/lib/systemd/linger/{user}"):
        return None
    return f"the daemon ends when you log out; to keep it: loginctl enable-linger {user}"
