"""gpuq report."""

from __future__ import annotations

from typing import Any

from cli_cases import NOW, ended
from fake_daemon import FakeDaemon

from gpuq.cli.commands import report

BANDS = [10.0, 25.0, 50.0, 75.0, 90.0]


def done(identity: str, run_s: float | None, predicted_s: list[float] | None = BANDS, **changes: Any) -> dict[str, Any]:
    """A completed job, its run time and what was predicted."""
    return ended(identity, run_s=run_s, predicted_s=predicted_s, order=int(identity), **changes)


def test_predictions(fake: FakeDaemon, gpuq: Any, frozen: None) -> None:
    """All jobs first, then by owner and name; those without a prediction are only counted."""
    jobs = [done("6", 50.0), done("5", 80.0), done("4", 500.0, name="vit"), done("3", 5.0, None), done("2", None)]
    fake.answer("GET", "/v1/history", {"jobs": jobs})
    ran = gpuq("report", "--predictions", "--since", "2d", "-u", "anna")
    assert ran.code == 0
    rows = [line.split() for line in ran.out.splitlines()]
    assert ran.out.startswith("3 of 5 jobs that completed since 2d")
    assert rows[3:] == [
        ["all", "3", "33%", "67%", "0%", "33%"],
        ["anna:probe", "2", "50%", "100%", "0%", "0%"],
        ["anna:vit", "1", "0%", "0%", "0%", "100%"],
    ]
    assert fake.queries("/v1/history") == [
        {"states": "COMPLETED", "since": f"{NOW - 2 * 86400:.3f}", "limit": "1000", "user": "anna"}
    ]
    found = gpuq("report", "--predictions", "--json").json["predictions"]
    assert (found["completed"], found["jobs"], found["below_90"]) == (5, 3, 0.0)
    assert [(each["user"], each["name"], each["in_90"]) for each in found["groups"]] == [
        ("anna", "probe", 1.0), ("anna", "vit", 0.0),
    ]  # fmt: skip


def test_nothing_known_is_a_dash(fake: FakeDaemon, gpuq: Any) -> None:
    """Not 0%."""
    fake.answer("GET", "/v1/history", {"jobs": []})
    assert gpuq("report", "--predictions").out.splitlines()[-1].split() == ["all", "0", "-", "-", "-", "-"]
    assert gpuq("report", "--predictions", "--json").json["predictions"]["in_50"] is None


def test_long_histories_come_page_by_page(fake: FakeDaemon, gpuq: Any, monkeypatch: Any) -> None:
    """The next page goes on before the last job of this one."""
    monkeypatch.setattr(report, "_PAGE", 2)
    pages = iter([[done("9", 50.0), done("8", 50.0)], [done("7", 50.0)]])
    fake.answer("GET", "/v1/history", lambda *_: {"jobs": next(pages)})
    assert gpuq("report", "--predictions", "--json").json["predictions"]["jobs"] == 3
    assert [query.get("before") for query in fake.queries("/v1/history")] == [None, "8"]


def test_report_of_what(fake: FakeDaemon, gpuq: Any) -> None:
    """Without saying what of it is a usage error, and so is a moment that is none."""
    assert "--predictions" in gpuq("report").err
    assert gpuq("report").code == 2
    assert gpuq("report", "--predictions", "--since", "soon").code == 2
    assert fake.asked == []
