"""gpuq config with a running daemon: settings and their origin, changes, rehearsals, history."""

from __future__ import annotations

import re
from typing import Any

import pytest
from cli_cases import NOW
from fake_daemon import Asked, Failure, FakeDaemon

_SET = {"key": "impact.age", "field": "impact.age", "value": 2.0, "source": "set", "by": "ana", "set_at": NOW,
        "otherwise": 1.0, "range": "a number from 0 to 100"}  # fmt: skip


def too_old(asked: Asked) -> Any:
    """What a daemon says that has no such path."""
    raise Failure(404, "not_found", "There is no GET /v1/config in this version of the API.")


def test_config_shows_what_the_running_daemon_has(fake: FakeDaemon, gpuq: Any) -> None:
    """A setting's value and origin are the daemon's; a daemon too old to tell changes nothing."""
    fake.answer("GET", "/v1/config", {"file": None, "settings": [_SET]})
    ran = gpuq("config")
    assert re.search(r"^age = 2\.0 +# set by ana on 20\d\d-\d\d-\d\d \d\d:\d\d$", ran.out, re.MULTILINE)
    assert re.search(r"^every_s = 30\.0 +# default$", ran.out, re.MULTILINE)
    document = gpuq("config", "show", "--json").json
    assert document["config"]["impact"]["age"] == 2.0
    assert document["sources"]["impact.age"]["by"] == "ana"
    assert document["sources"]["submit.gpus"]["source"] == "default"
    fake.answer("GET", "/v1/config", too_old)
    assert "age = 1.0" in gpuq("config").out


def test_config_set_unset_and_history(fake: FakeDaemon, gpuq: Any) -> None:
    """The words reach the daemon as they are; its answer is one line, its notes go to standard error."""
    before = _SET | {"value": 1.0, "source": "default", "by": None, "set_at": None}
    fake.answer("POST", "/v1/config", {"before": before, "setting": _SET, "notes": ["a remark"]})
    ran = gpuq("config", "set", "impact.age", "2")
    assert ran.out.startswith("impact.age = 2 (set by ana on ")
    assert ran.out.endswith("; it was 1 (default)\n")
    assert "a remark" in ran.err
    fake.answer("POST", "/v1/config", {"before": _SET, "setting": before, "notes": []})
    assert gpuq("config", "unset", "impact.age").out.startswith("impact.age = 1 (default); it was 2 (set by ana on ")
    assert fake.bodies("/v1/config") == [{"key": "impact.age", "value": "2"}, {"key": "impact.age", "value": None}]
    change = {"key": "impact.age", "field": "impact.age", "value": None, "by": "ana", "changed_at": NOW}
    fake.answer("GET", "/v1/config/history", {"changes": [change]})
    assert gpuq("config", "history").out.splitlines()[1].split()[2:] == ["ana", "impact.age", "unset"]


@pytest.mark.parametrize("words", [["set"], ["set", "impact.age"], ["unset"], ["unset", "a", "b"], ["show", "x"],
                                   ["history", "--dry-run"], ["begin"]])  # fmt: skip
def test_config_with_wrong_words(gpuq: Any, words: list[str]) -> None:
    """Too few, too many, or no such action: a usage error, and no daemon is asked."""
    assert gpuq("config", *words).code == 2


def test_config_rehearses(fake: FakeDaemon, gpuq: Any) -> None:
    """--dry-run lists who would change place, at most twenty of them, and the predicted Impact Factor."""
    moved = {"id": "7", "name": "vit", "user": "ana", "place_before": 2, "place_after": 1,
             "start_before_at": NOW + 9000, "start_after_at": NOW,
             "node_before": "mill", "node_after": "mill"}  # fmt: skip
    answer = {"key": "impact.age", "before": 1.0, "value": 2.0, "jobs": [moved] * 25, "planned": 40,
              "impact_factor_before": 0.5, "impact_factor_after": 0.625, "notes": []}  # fmt: skip
    fake.answer("POST", "/v1/config/dry-run", answer)
    lines = gpuq("config", "set", "impact.age", "2", "--dry-run").out.splitlines()
    assert lines[0] == "impact.age: 1 -> 2, not carried out: 25 jobs would change place"
    assert lines[-2:] == ["and 5 more; all of them: --json", "predicted Impact Factor of 40 jobs: 0.500 -> 0.625"]
    assert " 2 -> 1 " in lines[2]
    assert "mill ->" not in lines[2]
    fake.answer("POST", "/v1/config/dry-run", answer | {"jobs": []})
    assert "nothing would change" in gpuq("config", "unset", "impact.age", "--dry-run").out
