"""Fixtures of the agent's tests: agents that are ended, and whose leftovers are checked, after each test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.driver import AgentDriver

LEVELS = ("A", "B", "C")


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[Callable[..., AgentDriver]]:
    """A function that starts an agent on `<tmp_path>/spool`; all are ended after the test."""
    agents: list[AgentDriver] = []

    def start(**fields: Any) -> AgentDriver:
        agents.append(AgentDriver(tmp_path / "spool", **fields))
        return agents[-1]

    yield start
    for agent in agents:
        agent.close()
    if agents:
        agents[-1].clean()


@pytest.fixture
def agent(start_agent: Callable[..., AgentDriver]) -> AgentDriver:
    """One ready agent at the level that the machine offers."""
    driver = start_agent()
    driver.ready()
    return driver


@pytest.fixture(params=LEVELS)
def leveled(request: pytest.FixtureRequest, start_agent: Callable[..., AgentDriver]) -> AgentDriver:
    """One ready agent at each containment level; a level this machine lacks is skipped with the reason."""
    driver = start_agent(environment={"GPUQ_CONTAINMENT": request.param})
    end = time.monotonic() + 20
    while not driver.frames and time.monotonic() < end:
        driver.read(0.1)
    if driver.frames[0]["type"] == "refused":
        pytest.skip(driver.frames[0]["error"])
    assert driver.ready()["containment"]["level"] == request.param
    return driver
