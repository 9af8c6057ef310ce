"""What jobs use of their GPUs, from the samples of a node to what `why` expects of the next job."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.harness import Queue, eventually


def test_the_draw_of_ended_jobs_is_expected_of_the_next(new_queue: Callable[..., Queue]) -> None:
    """Ended jobs carry utilisation, draw and memory, the next one expects them, over a killed daemon, too."""
    queue = new_queue(gpus=("A100:1",)).start()
    queue.node_ready()
    queue.simulate(g0={"utilization": 0.5, "power_w": 150.0, "memory_used_mib": 3000})
    eventually(lambda: queue.gpus()[0]["power_w"], "the simulated draw to be read")
    ended = [queue.submit("sleep 4", name="fit") for _ in range(2)]
    queue.ended(*ended)
    for id_ in ended:
        job = queue.job(id_)
        assert (job["used_utilization"], job["used_power_w"], job["used_memory_mib"]) == (0.5, 150.0, 3000.0)
        assert job["used_samples"] >= 1
    assert "150 W" in queue.gpuq("show", ended[0]).text
    for verb in (("history",), ("status", "--all")):
        line = queue.gpuq(*verb, "-o", "jobid,usedgpu,draw,usedgpumem").text.splitlines()[-1]
        assert line.split()[1:4] == ["50%", "150", "W"], line

    for again in (False, True):
        if again:
            queue.kill()
            queue.start()
            queue.node_ready()
        id_ = queue.submit("true", name="fit", begin_at=4e9)
        why = queue.gpuq("why", id_, "--json").document["why"]
        (draw,) = why["expected_use"]["draws"]
        assert draw["runs"] == 2
        assert 150.0 < draw["power_w"] < 220.0  # between what was drawn and 0.57 of the limit
        assert why["expected_use"]["utilization"] == pytest.approx(0.5, abs=0.05)
        assert why["expected_use"]["memory_mib"] == 3000.0
        assert "(2 runs)" in queue.gpuq("why", id_).text
