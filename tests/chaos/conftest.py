"""Fixtures of the chaos tests: laboratories that are taken down after each test, with nothing of them left alive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.laboratory import Laboratory
from tests.e2e.harness import Queue

QUICK = {
    "gpuq.daemon.connection.FIRST_BACK_OFF_S": 0.05,
    "gpuq.daemon.main.MEND_EVERY_S": 0.2,
    "gpuq.daemon.loop.RETRY_S": 0.2,
}


@pytest.fixture
def laboratory(tmp_path: Path) -> Iterator[Callable[..., Laboratory]]:
    """A function that makes a laboratory (not started yet); `faults` are failpoints that fire once each."""
    made: list[Laboratory] = []

    def make(faults: str = "", gpus: str = "A100:1", mutant: str = "", settings: str = "", **fields: Any) -> Laboratory:
        directory = tmp_path / f"l{len(made)}"
        (directory / "faults").mkdir(parents=True)
        environment = {
            "GPUQ_FAILPOINTS_DIR": str(directory / "faults"),
            "GPUQ_FAILPOINTS": faults,  # the agent's; each side skips the names of the other one
            "GPUQ_MUTANT": mutant,
        }
        constants = {**QUICK, **fields.pop("constants", {})}
        queue = Queue(directory, (gpus,), settings, environment, constants, failpoints=faults)
        made.append(Laboratory(queue, directory, **fields))
        return made[-1]

    yield make
    for each in made:
        try:
            each.close()
        except AssertionError:
            if not each.queue.daemon_environment["GPUQ_MUTANT"]:
                raise
