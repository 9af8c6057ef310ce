"""Fixtures of the end-to-end tests: queues that are ended after each test, and whose leftovers fail it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import Queue


@pytest.fixture
def new_queue(tmp_path: Path) -> Iterator[Callable[..., Queue]]:
    """A function that makes a queue (not started yet) in a directory of its own; all are ended after the test."""
    queues: list[Queue] = []

    def make(**fields: Any) -> Queue:
        queues.append(Queue(tmp_path / f"q{len(queues)}", **fields))
        return queues[-1]

    yield make
    faults = []
    for queue in reversed(queues):
        try:
            queue.close()
        except AssertionError as error:
            faults.append(str(error))
    assert not faults, "; ".join(faults)


@pytest.fixture
def queue(new_queue: Callable[..., Queue]) -> Queue:
    """A running queue with two simulated GPUs."""
    queue: Queue = new_queue()
    return queue.start()


@pytest.fixture(scope="module")
def shared_queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    """One running queue for all tests of a module that leave it as it was: what is refused changes nothing."""
    queue = Queue(tmp_path_factory.mktemp("shared"))
    queue.start()
    yield queue
    queue.close()
