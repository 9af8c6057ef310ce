"""Settings of a real daemon: set, rehearsed, shown, undone, kept over a restart."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.harness import Queue

pytestmark = pytest.mark.e2e


def test_a_setting_is_changed_in_a_running_daemon(new_queue: Callable[..., Queue]) -> None:
    """The change is rehearsed, made, shown with its author, journalled, and in force after a restart."""
    queue = new_queue(gpus=("A100:1",), settings='[planner]\nevery = "20s"\n').start()
    queue.reaches(queue.submit("sleep 600"), "RUNNING")
    guessed, limited = queue.submit("true"), queue.submit("true", time_limit_s=600.0)

    found = queue.gpuq("config", "set", "planner.default_runtime", "60s", "--dry-run", "--json").document
    places = {each["id"]: (each["place_before"], each["place_after"]) for each in found["jobs"]}
    assert places == {guessed: (2, 1), limited: (1, 2)}
    assert found["impact_factor_before"] != found["impact_factor_after"]
    shown = queue.gpuq("config", "set", "planner.default_runtime", "60s", "--dry-run").text
    assert "2 jobs would change place" in shown
    assert "2 -> 1" in shown
    assert "predicted Impact Factor of 2 jobs" in shown
    assert "nothing would change" in queue.gpuq("config", "set", "impact.energy", "0.2", "--dry-run").text
    assert queue.gpuq("config", "history").text == "no setting was changed\n"

    said = queue.gpuq("config", "set", "planner.default_runtime", "60s").text
    assert said.startswith("planner.default_runtime_s = 60 (set by ")
    queue.gpuq("config", "set", "impact.age", "0.5")
    queue.gpuq("config", "set", "impact.restart", "0.1")
    queue.gpuq("config", "unset", "impact.restart")
    for action in (queue.stop, queue.kill):
        action()
        queue.start()
        lines = queue.gpuq("config", "show").text.splitlines()
        by_field = {line.partition(" ")[0]: line for line in lines}
        assert by_field["default_runtime_s"].startswith("default_runtime_s = 60.0  ")
        assert "# set by " in by_field["default_runtime_s"]
        assert by_field["every_s"].endswith("# gpuq.toml")
        assert by_field["restart"].endswith("# default")
    history = queue.gpuq("config", "history", "--json").document["changes"]
    assert [(each["key"], each["value"]) for each in history] == [
        ("planner.default_runtime", 60.0), ("impact.age", 0.5), ("impact.restart", 0.1), ("impact.restart", None),
    ]  # fmt: skip
    events = [each["event"] for each in queue.api.get("/v1/events")["events"]]
    assert [each["key"] for each in events if each["type"] == "SettingChanged"] == [each["key"] for each in history]


def test_a_deadline_lets_a_job_go_first(new_queue: Callable[..., Queue]) -> None:
    """--deadline reaches the plan and `why`, can be taken away by update, and a missed one is said to be missed."""
    queue = new_queue(gpus=("A100:1",)).start()
    queue.reaches(queue.submit("sleep 600"), "RUNNING")
    plain = queue.gpuq("submit", "-t", "10", "--parsable", "--", "true").text.strip()
    urgent = queue.gpuq("submit", "-t", "10", "--deadline", "now+30min", "--parsable", "--", "true").text.strip()
    missed = queue.gpuq("submit", "-t", "10", "--deadline", "now+2min", "--parsable", "--", "true").text.strip()

    def start_at(id_: str) -> float:
        return float(queue.api.get(f"/v1/jobs/{id_}/why")["why"]["planned"]["start_at"])

    assert start_at(urgent) < start_at(plain) < start_at(missed)
    assert "to spare if it started now; planned to end " in queue.gpuq("why", urgent).text
    assert "cannot be met any more" in queue.gpuq("why", missed).text
    queue.gpuq("update", urgent, "deadline=none")
    assert "Deadline" not in queue.gpuq("why", urgent).text
    assert start_at(plain) < start_at(urgent)
    assert "--deadline 'soonish' is not a moment" in queue.gpuq("update", urgent, "deadline=soonish", code=2).error


def test_what_cannot_be_set_is_one_sentence(shared_queue: Queue) -> None:
    """Unknown keys, wrong types and values out of range name the key and what is allowed; nothing changes."""
    cases = {
        ("impact.enrgy", "1"): "Did you mean 'impact.energy'?",
        ("impact.age", "much"): "impact.age must be a number from 0 to 100, not 'much'.",
        ("impact.age", "1000"): "impact.age must be a number from 0 to 100, not '1000'.",
        ("planner.every", "0s"): "planner.every must be a duration from 1 s to 86400 s, not '0s'.",
    }
    for (key, value), words in cases.items():
        ran = shared_queue.gpuq("config", "set", key, value, code=None)
        assert ran.code in (1, 2)
        assert words in ran.error
    assert "takes KEY VALUE" in shared_queue.gpuq("config", "set", "impact.age", code=2).error
    assert "--dry-run goes with" in shared_queue.gpuq("config", "show", "--dry-run", code=2).error
    assert shared_queue.gpuq("config", "history").text == "no setting was changed\n"
