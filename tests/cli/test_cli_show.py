"""What the verbs that show things print: golden files, columns, colours, JSON.

`GPUQ_WRITE_GOLDEN=1 pytest tests/cli/test_cli_show.py` writes the golden files anew; read the difference before
committing it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from cli_cases import GPUS, JOBS, NODES, NOW, SUMMARY, WHY, ended, gpu, job, waiting
from fake_daemon import Asked, Failure, FakeDaemon

from gpuq.cli import output
from gpuq.cli.render.jobs import spans, use_bar
from gpuq.cli.render.text import cells, plain

GOLDEN = Path(__file__).parents[1] / "golden"
_WRITE = os.environ.get("GPUQ_WRITE_GOLDEN") == "1"
_VIEWS = {"status": ["status"], "why": ["why", "46"], "gpus": ["gpus"], "nodes": ["nodes"]}


@pytest.fixture
def full(fake: FakeDaemon, frozen: None) -> FakeDaemon:
    """A fake daemon with jobs, nodes and GPUs."""
    fake.answer("GET", "/v1/status", SUMMARY)
    fake.answer("GET", "/v1/jobs", {"jobs": JOBS, "more": 0})
    fake.answer("GET", "/v1/gpus", {"gpus": GPUS})
    fake.answer("GET", "/v1/nodes", {"nodes": NODES})
    fake.answer("GET", "/v1/jobs/46/why", {"why": WHY})
    return fake


def _compare(name: str, text: str) -> None:
    file = GOLDEN / name
    if _WRITE:
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize("view", _VIEWS)
def test_golden_plain(full: FakeDaemon, gpuq: Any, view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A13: on a pipe each view is full lines, whatever COLUMNS and TERM say; no colour, no cut."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "dumb")
    ran = gpuq(*_VIEWS[view])
    assert (ran.code, ran.err) == (0, "")
    assert "\x1b" not in ran.out
    assert "…" not in ran.out
    _compare(f"{view}.plain.txt", ran.out)


@pytest.mark.parametrize("view", _VIEWS)
def test_golden_terminal(full: FakeDaemon, gpuq: Any, view: str, terminal: None) -> None:
    """On a terminal of 100 columns each view is drawn, and no line is wider than that."""
    ran = gpuq(*_VIEWS[view])
    assert ran.code == 0
    assert max(map(cells, ran.out.splitlines())) <= 100
    _compare(f"{view}.terminal.txt", ran.out)


@pytest.mark.parametrize("view", _VIEWS)
def test_golden_json(full: FakeDaemon, gpuq: Any, view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """--json is one document with a schema number and ISO times with offset."""
    ran = gpuq(*_VIEWS[view], "--json")
    assert ran.json["schema"] == 1
    _compare(f"{view}.json", ran.out)


def test_why_stays_short(full: FakeDaemon, gpuq: Any) -> None:
    """However much there is to say, at most 25 lines are; what is left out is counted, with where to find it."""
    many = {**WHY, "options": WHY["options"] * 9, "blockers": WHY["blockers"] * 9, "nodes": WHY["nodes"] * 9}
    full.answer("GET", "/v1/jobs/46/why", {"why": many})
    lines = gpuq("why", "46").out.splitlines()
    assert len(lines) <= 25
    assert sum("more; all of them: gpuq why 46 --json" in line for line in lines) == 3


def test_a14_brackets_and_escapes_in_names(full: FakeDaemon, gpuq: Any, terminal: None) -> None:
    """A14: brackets stay, and an escape sequence in a name is shown, never sent."""
    full.answer("GET", "/v1/jobs", {"jobs": [job("1", name="lr[0.1] [/red] \x1b]0;x\x07")], "more": 0})
    for arguments in (["status"], ["status", "--format", "name"]):
        out = gpuq(*arguments).out
        assert "lr[0.1] [/red] \\x1b]0;x\\x07" in out
        assert "\x1b" not in out


def test_colour_only_beside_a_word(
    full: FakeDaemon, gpuq: Any, terminal: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taking the colours out changes no word."""
    drawn = gpuq("status").out
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = gpuq("status").out
    assert coloured != drawn
    import re

    assert [line.rstrip() for line in re.sub(r"\x1b\[\d*m", "", coloured).splitlines()] == drawn.splitlines()


def test_empty_is_said_with_the_next_step(full: FakeDaemon, gpuq: Any, terminal: None) -> None:
    """No jobs on a terminal: words and what to type; on a pipe the headings alone."""
    full.answer("GET", "/v1/jobs", {"jobs": [], "more": 0})
    assert "no jobs; try: gpuq submit" in gpuq("status").out
    assert gpuq("status", "--noheader", "-o", "name").out == ""


def test_filters_reach_the_daemon(full: FakeDaemon, gpuq: Any) -> None:
    """-u, -t, -n, -w, --all and ids become the query, with what the columns need; states may be words or codes."""
    words = ("-t", "pd,RUNNING", "-u", "tom", "-n", "a b&c", "-w", "mill", "-a", "-o", "user")
    assert gpuq("status", *words, "1,3-4").code == 0
    assert full.queries("/v1/jobs")[0] == {
        "ids": "1,3,4", "states": "PENDING,RUNNING", "user": "tom", "name": "a b&c", "node": "mill", "all": "1",
        "fields": "array,array_limit,held,id,reason,state,task,user",
    }  # fmt: skip
    assert gpuq("status", "--me", "--json").code == 0
    assert full.queries("/v1/jobs")[1] == {"user": "anna"}


def test_unknown_state_names_all(full: FakeDaemon, gpuq: Any) -> None:
    """An unknown state is exit 2 with the list."""
    ran = gpuq("status", "-t", "DONE")
    assert ran.code == 2
    assert "COMPLETED (CD)" in ran.err


def test_format_sort_and_headings(full: FakeDaemon, gpuq: Any) -> None:
    """-o takes field names, -S sorts (unknown values last), --noheader and GPUQ_FORMAT are heard."""
    lines = gpuq("status", "--noheader", "-o", "jobid,time", "-S", "-time,jobid").out.split("\n")
    assert [line.split()[0] for line in lines if line][:3] == ["41", "43_3", "43_[4-12%3]"]
    ran = gpuq("status", "-o", "jobid,naem")
    assert ran.code == 2
    assert "Did you mean name" in ran.err


def test_format_variable(full: FakeDaemon, gpuq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUQ_FORMAT is the default of --format."""
    monkeypatch.setenv("GPUQ_FORMAT", "user,jobid")
    assert gpuq("status").out.splitlines()[0].split() == ["USER", "JOBID"]


def test_one_id_is_that_job_in_full(full: FakeDaemon, gpuq: Any) -> None:
    """`status ID` is `show ID`, with files and how it ended."""
    full.answer("GET", "/v1/jobs/40", {"job": ended("40", 3, message="exit code 3")})
    shown = gpuq("show", "40").out
    assert gpuq("status", "40").out == shown
    for text in ("FAILED (F)", "/nowhere/40.log", "exit code 3", "python train.py"):
        assert text in shown
    assert gpuq("show", "40", "--json").json["job"]["ended_at"] == "2026-03-01T15:59:00.000+00:00"


def test_an_array_shows_its_tasks(full: FakeDaemon, gpuq: Any) -> None:
    """The tasks of an array follow its first one."""
    tasks = [waiting(f"45_{number}", array="45", task=number) for number in range(3)]
    full.answer("GET", "/v1/jobs/45", {"job": tasks[0], "tasks": tasks})
    assert "45_[0-2]" in gpuq("show", "45").out


def test_an_unknown_id(full: FakeDaemon, gpuq: Any) -> None:
    """An unknown id is exit 1, as text and as JSON."""

    def unknown(asked: Asked) -> dict[str, Any]:
        raise Failure(404, "not_found", "There is no job 99.")

    full.answer("GET", "/v1/jobs/99", unknown)
    assert gpuq("show", "99").code == 1
    assert gpuq("show", "99", "--json").json["error"]["message"] == "There is no job 99."


def test_ten_thousand_jobs(full: FakeDaemon, gpuq: Any, terminal: None) -> None:
    """A long queue is listed in full on a pipe, and on a terminal it is counted."""
    many = [waiting(str(number)) for number in range(1, 10001)]
    full.answer("GET", "/v1/jobs", {"jobs": many, "more": 0})
    ran = gpuq("status")
    assert len(ran.out.splitlines()) < 250
    assert "9800 more" in ran.err
    assert len(gpuq("status", "-l").out.splitlines()) == 10001


def test_warnings_are_on_standard_error(full: FakeDaemon, gpuq: Any, terminal: None) -> None:
    """What the daemon worries about is said, beside the data."""
    full.answer("GET", "/v1/status", {**SUMMARY, "degraded": "the disk is full", "warnings": ["state is on nfs"]})
    ran = gpuq("status")
    assert "the disk is full" in ran.err
    assert "state is on nfs" in ran.err
    assert "disk" not in ran.out


def test_history(full: FakeDaemon, gpuq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """history asks for ended jobs since a moment and prints how each ended."""
    full.answer("GET", "/v1/history", {"jobs": [ended("40", 3), ended("39", None, exit_signal=9, state="CANCELLED")]})
    ran = gpuq("history", "--since", "2h", "-t", "F", "--limit", "5", "3-4")
    query = full.queries("/v1/history")[0]
    assert query == {"states": "FAILED", "limit": "5", "since": f"{NOW - 7200:.3f}", "ids": "3,4"}
    assert ran.out.splitlines()[1].split()[:4] == ["40", "probe", "anna", "FAILED"]
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    assert "KILL" in gpuq("history").out


def test_spans() -> None:
    """Numbers are put together as ranges."""
    assert spans([5, 1, 2, 3, 9, 8]) == "1-3,5,8-9"


@pytest.mark.parametrize(
    ("share", "text"), [(None, "-"), (0.0, "        0%"), (1.0, "█████ 100%"), (0.91, "████▌  91%")]
)
def test_use_bar(share: float | None, text: str) -> None:
    """Use is a bar and a number; unknown is no 0."""
    assert use_bar(share) == text


def test_unknown_counters_are_dashes(full: FakeDaemon, gpuq: Any) -> None:
    """A GPU without a sample shows -, never 0, and null in JSON."""
    full.answer("GET", "/v1/gpus", {"gpus": [gpu("den", 0, memory_total_mib=None, power_limit_w=None)]})
    assert " ".join(gpuq("gpus").out.splitlines()[1].split()) == "den 0 A100-80G - -/- GiB -/- W - free"
    assert gpuq("gpus", "--json").json["gpus"][0]["utilization"] is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\nb", "a\\nb"), ("\u202eabc", "\\u202eabc"), ("[x] é 漢", "[x] é 漢"), ("\x9b1m", "\\x9b1m")],
)
def test_plain(text: str, shown: str) -> None:
    """Control and direction characters are shown as escapes, everything else as it is."""
    assert plain(text) == shown


def test_local_times_in_lines(full: FakeDaemon, gpuq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """People see local time, JSON has the offset."""
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    assert "2026-03-01T18:10:00" in gpuq("status", "-o", "submit").out
    assert gpuq("status", "--json").json["jobs"][0]["submitted_at"].endswith("+05:30")
