"""The link to this machine's agent: how it ends. May import: links, the standard library."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from gpuq.links import local
from gpuq.links.local import LocalLink

pytestmark = pytest.mark.e2e

WITHIN_S = 10.0


class _EndlessStream:
    """The stderr of a process that says nothing, and a stdin that can be closed."""

    def __init__(self) -> None:
        self.closed = False

    async def readline(self) -> bytes:
        """Nothing, for ever."""
        await asyncio.Event().wait()
        return b""

    def close(self) -> None:
        """Remember it."""
        self.closed = True


class _Process:
    """A child that ends when told to by the test, or when killed."""

    def __init__(self) -> None:
        self.stdin = _EndlessStream()
        self.stderr = _EndlessStream()
        self.ended = asyncio.Event()
        self.kills = 0

    async def wait(self) -> int:
        """The exit code, at the end."""
        await self.ended.wait()
        return 0

    def kill(self) -> None:
        """End at once."""
        self.kills += 1
        self.ended.set()


def _link(process: _Process) -> LocalLink:
    return LocalLink(cast(asyncio.subprocess.Process, process), lambda _: None)


async def _turns(count: int) -> None:
    """Let everything that can go on do so."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_cancelled_close_stays_cancelled_when_the_agent_ends_at_that_moment() -> None:
    """When daemon and agent are told to end at once, the daemon's own end is not forgotten over the agent's."""

    async def end_both() -> None:
        process = _Process()
        closing = asyncio.create_task(_link(process).close())
        await _turns(5)
        process.ended.set()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(closing, WITHIN_S)
        assert process.stdin.closed

    asyncio.run(end_both())


def test_close_waits_for_the_agent() -> None:
    """An agent that ends by itself is not killed, and close returns only then."""

    async def end() -> None:
        process = _Process()
        closing = asyncio.create_task(_link(process).close())
        await _turns(5)
        assert not closing.done()
        process.ended.set()
        await asyncio.wait_for(closing, WITHIN_S)
        assert process.kills == 0

    asyncio.run(end())


def test_an_agent_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its time to end, close kills the agent."""
    monkeypatch.setattr(local, "CLOSE_WITHIN_S", 0.05)

    async def end() -> None:
        process = _Process()
        await asyncio.wait_for(_link(process).close(), WITHIN_S)
        assert process.kills == 1

    asyncio.run(end())
