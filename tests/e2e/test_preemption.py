"""Preemptible jobs give way, keep what they did, and go on: with a real daemon, real processes and simulated GPUs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.harness import Queue

pytestmark = pytest.mark.e2e

COUNTING = """
file="$GPUQ_CHECKPOINT_DIR/count"
count=$(cat "$file" 2>/dev/null || echo 0)
echo "from $count, restart $GPUQ_RESTART_COUNT"
while [ "$count" -lt 8 ]; do
  sleep 0.3; count=$((count + 1)); echo "$count" > "$file.new"; mv "$file.new" "$file"; echo "$count"
done
"""


def test_free_time_gives_way_and_goes_on(new_queue: Callable[..., Queue]) -> None:
    """A job in free time is stopped for one that may not be, runs on from its checkpoint, and nothing runs twice."""
    queue = new_queue(gpus=("A100:1",)).start()
    free = queue.submit(COUNTING, preemptible=True)
    queue.lines(free, 3)
    fixed = queue.submit("echo here; sleep 1")
    queue.reaches(fixed, "RUNNING")
    waiting = queue.job(free)
    assert waiting["state"] == "PENDING"
    assert waiting["evictions"] == 1
    why = queue.api.get(f"/v1/jobs/{free}/why")["why"]
    assert "done before it was stopped" in why["prediction"]["basis"]
    assert queue.ended(fixed, free)
    assert [queue.job(each)["state"] for each in (fixed, free)] == ["COMPLETED", "COMPLETED"]
    told = queue.output(free).splitlines()
    done = int(told[0].removeprefix("from ").removesuffix(", restart 1"))
    assert done >= 2
    assert told[1:] == [str(count) for count in range(done + 1, 9)]
    stops = [each["event"] for each in queue.api.get("/v1/events")["events"] if each["event"]["type"] == "RoomMade"]
    assert [(each["job"], each["gain_s"] > 0) for each in stops] == [(fixed, True)]


def test_the_contract_holds(new_queue: Callable[..., Queue]) -> None:
    """Neither a fixed job nor one within its --min-runtime is stopped, and equals do not stop each other."""
    queue = new_queue(gpus=("A100:3",)).start()
    fixed = queue.submit("sleep 600")
    protected = queue.submit("sleep 600", preemptible=True, min_runtime_s=3600.0)
    running = queue.submit("sleep 600", preemptible=True, min_runtime_s=0.2)
    for id_ in (fixed, protected, running):
        queue.reaches(id_, "RUNNING")
    equal = queue.submit("true", preemptible=True, min_runtime_s=0.2)
    urgent = queue.submit("sleep 600", priority=30)
    queue.reaches(urgent, "RUNNING")
    states = {id_: queue.job(id_)["state"] for id_ in (fixed, protected, running, equal)}
    assert states == {fixed: "RUNNING", protected: "RUNNING", running: "PENDING", equal: "PENDING"}
    assert queue.job(running)["evictions"] == 1
    assert f"stopped to make room for job {urgent}" in queue.gpuq("why", running).text
    queue.cancel(fixed, protected, running, equal, urgent)


def test_room_survives_a_crash_of_the_daemon(new_queue: Callable[..., Queue]) -> None:
    """GPUs that are being emptied for a job stay its own over a kill of the daemon, and nobody else slips in."""
    queue = new_queue(gpus=("A100:1",)).start()
    slow = queue.submit("trap 'sleep 3; exit 0' TERM; echo ready; while :; do sleep 0.1; done", preemptible=True)
    queue.lines(slow, 1)
    urgent = queue.submit("sleep 600", priority=30)
    queue.reaches(slow, "COMPLETING")
    assert "to make room for it" in queue.gpuq("why", urgent).text
    queue.kill()
    queue.start()
    other = queue.submit("sleep 600", priority=300)
    queue.reaches(urgent, "RUNNING")
    assert queue.job(other)["state"] == "PENDING"
    queue.cancel(slow, urgent, other)
