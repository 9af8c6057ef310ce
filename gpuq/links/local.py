"""The agent of this machine, as a child process. Imports errors; the agent's files only by path.

One thing to know: the agent lives in a session of its own and ends when its stdin ends, so neither Ctrl-C in the
daemon's terminal nor a crash of the daemon reaches a job.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from gpuq.errors import NodeError

MAX_FRAME_BYTES = 16 * 2**20
CLOSE_WITHIN_S = 5.0

AGENT = Path(__file__).resolve().parent.parent / "agent" / "__main__.py"


class LocalLink:
    """Frames over the stdin and stdout of a child process."""

    def __init__(self, process: asyncio.subprocess.Process, on_log: Callable[[str], None]) -> None:
        self._process = process
        self._log_reader = asyncio.create_task(self._copy_log(on_log))

    @classmethod
    async def open(cls, on_log: Callable[[str], None]) -> LocalLink:
        """Start the agent; raises NodeError when it cannot be executed."""
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-S",
                "-E",
                str(AGENT),
                "serve",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=MAX_FRAME_BYTES,
                start_new_session=True,
                cwd="/",
                env=dict(os.environ),
            )
        except OSError as error:
            raise NodeError(f"The agent could not be started: {error}.") from None
        return cls(process, on_log)

    @property
    def pid(self) -> int:
        """The agent's process id."""
        return self._process.pid

    async def _copy_log(self, on_log: Callable[[str], None]) -> None:
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            on_log(line.decode("utf-8", "replace").rstrip())

    async def send(self, frame: dict[str, Any]) -> None:
        """Write one frame; raises NodeError when the agent is gone."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(frame, separators=(",", ":")).encode() + b"\n")
            await self._process.stdin.drain()
        except (ConnectionError, RuntimeError) as error:
            raise NodeError(f"The local agent is gone: {error}.") from None

    async def frames(self) -> AsyncIterator[dict[str, Any]]:
        """Frames until the agent closes its stdout; raises NodeError on one that cannot be read."""
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:
                raise NodeError("The local agent sent a frame that is too long.") from None
            if not line.endswith(b"\n"):
                return
            try:
                frame = json.loads(line)
            except ValueError:
                raise NodeError("The local agent sent a line that is not JSON.") from None
            if isinstance(frame, dict):
                yield frame

    async def close(self) -> None:
        """End the agent by ending its stdin, and by force when it does not answer to that.

        Not asyncio.wait_for: before Python 3.12 it loses a cancellation that comes as the agent ends, and the daemon
        would start another agent instead of stopping.
        """
        if self._process.stdin is not None:
            self._process.stdin.close()
        ended = asyncio.ensure_future(self._process.wait())
        await asyncio.wait({ended}, timeout=CLOSE_WITHIN_S)
        if not ended.done():
            self._process.kill()
            await ended
        self._log_reader.cancel()
