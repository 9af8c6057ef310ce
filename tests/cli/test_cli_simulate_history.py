"""`gpuq simulate --history`: gpuq's own past, from a daemon of canned answers."""

from __future__ import annotations

import json
from typing import Any

from fake_daemon import Asked, FakeDaemon

GPUS = {"gpus": [{"type": "A100"}, {"type": "A100"}, {"type": "V100"}]}


def ended(number: int) -> dict[str, Any]:
    return {
        "id": str(number), "submitted_at": 1000.0 + number, "begin_at": None, "started_at": 2000.0, "elapsed_s": 60.0,
        "user": "anna", "name": "train", "gpus": [{"uuid": "GPU-1"}], "time_limit_s": None, "order": number,
    }  # fmt: skip


def test_history_is_read_page_by_page_and_run_on_the_gpus_of_now(gpuq: Any, fake: FakeDaemon) -> None:
    """1,200 jobs are two pages; all of them end."""

    def history(asked: Asked) -> dict[str, Any]:
        before = int(asked.query.get("before", "1201"))
        return {"jobs": [ended(number) for number in range(before - 1, max(before - 1001, 0), -1)]}

    fake.answer("GET", "/v1/history", history)
    fake.answer("GET", "/v1/gpus", GPUS)
    done = gpuq("simulate", "--history", "30d", "--policy", "fifo")
    assert done.code == 0, done.err
    assert "1,200 jobs of history on 2 x A100, 1 x V100" in done.out
    assert [query.get("before") for query in fake.queries("/v1/history")] == [None, "201"]
    asked = json.loads(gpuq("simulate", "--history", "30d", "--gpus", "A100:4", "--policy", "fifo", "--json").out)
    assert asked["rows"][0]["policy"] == "fifo"


def test_no_history_is_said_in_a_sentence(gpuq: Any, fake: FakeDaemon) -> None:
    """No job ended, no GPUs are there, or a trace is given as well."""
    fake.answer("GET", "/v1/history", {"jobs": []})
    done = gpuq("simulate", "--history", "30d")
    assert (done.code, done.out) == (1, "")
    assert "No job of gpuq's history ended since 30d." in done.err
    fake.answer("GET", "/v1/history", {"jobs": [ended(1)]})
    fake.answer("GET", "/v1/gpus", {"gpus": []})
    assert "no GPUs to replay" in gpuq("simulate", "--history", "30d").err
    assert "--history is a trace of its own" in gpuq("simulate", "small", "--history", "30d").err
