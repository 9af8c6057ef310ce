"""The daemon's log: one JSON object a line, rotated. Imports the standard library only.

One thing to know: environments, scripts and commands of jobs are never logged; people paste logs into issues.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import sys
from datetime import datetime, timezone
from pathlib import Path

MAX_BYTES = 5 * 2**20
BACKUPS = 3


class JsonLines(logging.Formatter):
    """A record as one line: at, level, logger, message, and traceback when there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON, ASCII only, so that no name or message can forge a second line."""
        line = {
            "at": datetime.fromtimestamp(record.created, timezone.utc).astimezone().isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def open_log(path: Path, level: str, to_terminal: bool) -> None:
    """Send gpuq's log to a rotating file, and to stderr too when the daemon runs in the foreground."""
    root = logging.getLogger()
    root.setLevel(logging.WARNING)
    logging.getLogger("gpuq").setLevel(level.upper())
    file = logging.handlers.RotatingFileHandler(path, maxBytes=MAX_BYTES, backupCount=BACKUPS, delay=True)
    file.setFormatter(JsonLines())
    root.handlers = [file]
    if to_terminal:
        terminal = logging.StreamHandler(sys.stderr)
        terminal.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
        root.addHandler(terminal)
