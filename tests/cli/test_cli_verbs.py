"""The verbs that change or wait: what they send, say and exit with."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from cli_cases import NODES, NOW, SUMMARY, ended, job
from fake_daemon import Asked, FakeDaemon

from gpuq.cli import output
from gpuq.daemon import unit

_FINAL = {
    "COMPLETED": 0, "FAILED": 3, "CANCELLED": 1, "TIMEOUT": 137, "OUT_OF_MEMORY": 137, "NODE_FAIL": 1, "PREEMPTED": 143,
    "DEADLINE": 1,
}  # fmt: skip


@pytest.mark.parametrize("state", _FINAL)
def test_a25_wait_ends_in_every_final_state(fake: FakeDaemon, gpuq: Any, state: str) -> None:
    """A25: wait returns for each final state with the code that the daemon gives it."""
    fake.answer("GET", "/v1/wait", {"done": True, "jobs": [ended("5", state=state, wait_exit_code=_FINAL[state])]})
    assert gpuq("wait", "5").code == _FINAL[state]


def test_wait_takes_the_largest_code(fake: FakeDaemon, gpuq: Any) -> None:
    """Over several jobs the largest code counts; one that nobody knows is 1, never 0."""
    jobs = [ended("5", 0), ended("6", 0, wait_exit_code=None)]
    fake.answer("GET", "/v1/wait", {"done": True, "jobs": jobs})
    assert gpuq("wait", "5", "6").code == 1
    fake.answer("GET", "/v1/wait", {"done": True, "jobs": [*jobs, ended("7", 42)]})
    ran = gpuq("wait", "5-7")
    assert ran.code == 42
    assert fake.queries("/v1/wait")[-1]["ids"] == "5,6,7"
    assert "exit code 42" in ran.err


def test_wait_asks_again_until_done(fake: FakeDaemon, gpuq: Any) -> None:
    """A long poll that is over before the job is simply asked again."""
    answers = [{"done": False, "jobs": [job("5")]}, {"done": True, "jobs": [ended("5", 0)]}]
    fake.answer("GET", "/v1/wait", lambda asked: answers.pop(0))
    assert gpuq("wait", "5").code == 0
    assert answers == []


def test_wait_timeout_is_124(fake: FakeDaemon, gpuq: Any) -> None:
    """--timeout that comes first is 124, as coreutils has it."""

    def slow(asked: Asked) -> dict[str, Any]:
        time.sleep(min(0.05, float(asked.query["timeout_s"])))
        return {"done": False, "jobs": [job("5")]}

    fake.answer("GET", "/v1/wait", slow)
    ran = gpuq("wait", "--timeout", "0.1s", "5")
    assert ran.code == 124
    assert "the time is over" in ran.err
    assert gpuq("wait", "--timeout", "0.1s", "--json", "5").json == {"schema": 1, "done": False, "jobs": []}


def test_wait_any(fake: FakeDaemon, gpuq: Any) -> None:
    """--any asks the daemon so, and counts only jobs that have ended."""
    fake.answer("GET", "/v1/wait", {"done": True, "jobs": [ended("5", 4), job("6")]})
    assert gpuq("wait", "--any", "5", "6").code == 4
    assert fake.queries("/v1/wait")[0]["any"] == "1"


def test_wait_ctrl_c(fake: FakeDaemon, gpuq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in wait is 130."""

    def interrupted(*arguments: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpuq.cli.commands.wait.wait_for", interrupted)
    assert gpuq("wait", "5").code == 130


def test_cancel(fake: FakeDaemon, gpuq: Any) -> None:
    """cancel sends the ids; one that has ended is a note and 0, with --strict 1."""
    fake.answer("POST", "/v1/cancel", {"cancelled": ["5"], "already_ended": ["4"]})
    ran = gpuq("cancel", "4-5")
    assert (ran.code, ran.out) == (0, "Cancelled job 5\n")
    assert "already ended: 4" in ran.err
    assert gpuq("cancel", "--strict", "4-5").code == 1
    assert gpuq("kill", "--grace", "5s", "5").code == 0
    assert fake.bodies("/v1/cancel")[-1] == {"ids": ["5"], "grace_s": 5.0}
    assert gpuq("cancel", "5", "--json").json["already_ended"] == ["4"]


def test_cancel_signal_only_sends(fake: FakeDaemon, gpuq: Any) -> None:
    """cancel -s sends the signal and cancels nothing."""
    fake.answer("POST", "/v1/signal", {"signalled": ["5"]})
    assert gpuq("cancel", "-s", "usr1", "5").code == 0
    assert fake.bodies("/v1/signal") == [{"ids": ["5"], "signal": 10}]
    assert fake.bodies("/v1/cancel") == []


def test_cancel_by_filter(fake: FakeDaemon, gpuq: Any) -> None:
    """Filters choose living jobs first; none that fits is said and is no error."""
    fake.answer("GET", "/v1/jobs", {"jobs": [job("5"), job("6")], "more": 0})
    fake.answer("POST", "/v1/cancel", {"cancelled": ["5", "6"], "already_ended": []})
    assert gpuq("cancel", "-n", "llama-ft", "-t", "R").code == 0
    assert fake.queries("/v1/jobs")[0] == {"name": "llama-ft", "states": "RUNNING"}
    assert fake.bodies("/v1/cancel")[0] == {"ids": ["5", "6"]}
    fake.answer("GET", "/v1/jobs", {"jobs": [], "more": 0})
    ran = gpuq("cancel", "--me")
    assert (ran.code, ran.out) == (0, "")
    assert len(fake.bodies("/v1/cancel")) == 1


def test_cancel_all_asks(fake: FakeDaemon, gpuq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """--all asks unless -y, and without a terminal to ask it does nothing."""
    fake.answer("GET", "/v1/jobs", {"jobs": [job("5")], "more": 0})
    fake.answer("POST", "/v1/cancel", {"cancelled": ["5"], "already_ended": []})
    ran = gpuq("cancel", "--all")
    assert ran.code == 1
    assert "Nothing was cancelled" in ran.err
    monkeypatch.setattr(output, "confirmed", lambda question: "1 jobs" in question)
    assert gpuq("cancel", "--all").code == 0
    assert gpuq("cancel", "--all", "-y").code == 0
    assert len(fake.bodies("/v1/cancel")) == 2


def test_cancel_nothing(fake: FakeDaemon, gpuq: Any) -> None:
    """cancel without anything is a usage error, not everything."""
    assert gpuq("cancel").code == 2
    assert fake.asked == []


@pytest.mark.parametrize("verb", ["hold", "release", "requeue"])
def test_simple_verbs(fake: FakeDaemon, gpuq: Any, verb: str) -> None:
    """hold, release and requeue send ids and name what changed."""
    fake.answer("POST", f"/v1/{verb}", {"changed": ["3", "4"]})
    ran = gpuq(verb, "3-4")
    assert ran.code == 0
    assert "2 jobs: 3, 4" in ran.out
    assert fake.bodies(f"/v1/{verb}")[0]["ids"] == ["3", "4"]
    assert gpuq(verb, "-q", "3").out == ""
    assert gpuq(verb, "--json", "3").json["changed"] == ["3", "4"]


def test_update(fake: FakeDaemon, gpuq: Any) -> None:
    """Options and key=value mean the same; an unknown key names the nearest."""
    fake.answer("POST", "/v1/update", {"changed": ["3"], "notes": []})
    assert gpuq("update", "3", "--time", "2h", "--gpus", "a100:2").code == 0
    assert gpuq("update", "3", "time=2h", "gpus=a100:2").code == 0
    first, second = fake.bodies("/v1/update")
    assert first == second
    assert first == {"ids": ["3"], "changes": {"time_limit_s": 7200.0, "resources": {"gpus": 2, "gpu_type": "a100"}}}
    assert gpuq("update", "3", "requeue=no", "name=x").code == 0
    assert fake.bodies("/v1/update")[2]["changes"] == {"requeue": False, "name": "x"}
    ran = gpuq("update", "3", "tiem=2h")
    assert ran.code == 2
    assert "Did you mean time" in ran.err
    assert gpuq("update", "3").code == 2


def test_drain_and_resume(fake: FakeDaemon, gpuq: Any) -> None:
    """drain and resume go to the node's own path, whatever its name holds."""
    fake.answer("POST", "/v1/nodes/a%2Fb/drain", {"node": "a/b"})
    fake.answer("POST", "/v1/nodes/mill/resume", {"node": "mill"})
    assert gpuq("drain", "a/b", "--reason", "new fan").code == 0
    assert fake.bodies("/v1/nodes/a%2Fb/drain") == [{"reason": "new fan"}]
    assert "takes jobs again" in gpuq("resume", "mill").out


def test_prune(fake: FakeDaemon, gpuq: Any, frozen: None) -> None:
    """prune asks, sends the moment, and names what is kept and why."""
    fake.answer("POST", "/v1/prune", {"pruned": ["1"], "kept": [{"id": "2", "reason": "job 9 waits for it"}]})
    assert gpuq("prune", "--older-than", "30d").code == 1
    assert fake.asked == []
    ran = gpuq("prune", "--older-than", "30d", "-t", "F", "-y")
    assert ran.code == 0
    assert "job 2 is kept: job 9 waits for it" in ran.err
    body = fake.bodies("/v1/prune")[0]
    assert (body["ended_before"], body["states"]) == (NOW - 30 * 86400, ["FAILED"])
    assert body["user"]
    assert gpuq("prune").code == 2


def test_daemon_status_and_stop(fake: FakeDaemon, gpuq: Any) -> None:
    """daemon status shows the daemon; stop waits until it is gone; start with one running says so."""
    fake.answer("GET", "/v1/status", SUMMARY)
    assert "pid 77" in gpuq("daemon", "status").out
    assert gpuq("daemon", "status", "--json").json["gpus_total"] == 8
    assert "already running" in gpuq("daemon", "start").out

    def stop(asked: Asked) -> dict[str, Any]:
        fake.socket.close()
        return {"stopping": True}

    fake.answer("POST", "/v1/shutdown", stop)
    assert "has stopped" in gpuq("daemon", "stop").out
    assert "not running" in gpuq("daemon", "stop").out


def test_daemon_action_is_checked(fake: FakeDaemon, gpuq: Any) -> None:
    """An unknown action is a usage error with the list."""
    ran = gpuq("daemon", "begin")
    assert ran.code == 2
    assert "start" in ran.err


def test_daemon_install(gpuq: Any, tmp_path: Path, home: Path) -> None:
    """install writes a unit that leaves jobs alone and finds the same home."""
    ran = gpuq("daemon", "install")
    assert ran.code == 0
    text = (tmp_path / "settings/systemd/user/gpuq.service").read_text()
    assert "KillMode=process\n" in text
    assert "Delegate=yes\n" in text
    assert f"GPUQ_HOME={home}" in text
    assert "gpuq daemon run" in text
    assert "systemctl --user" in ran.out


def test_unit_quotes_what_systemd_would_expand() -> None:
    """Blanks, percent and dollar signs in paths survive systemd's own expansion, of dollars in arguments only."""
    text = unit.unit_text({"GPUQ_HOME": "/a b/100%$x"}, ["/opt/my $py", "-m", "$gpuq"])
    assert 'Environment="GPUQ_HOME=/a b/100%%$x"' in text
    assert 'ExecStart="/opt/my $py" -m $$gpuq' in text


def test_config(gpuq: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """show has every setting, check says what is wrong, path works even then."""
    shown = gpuq("config", "show").out
    assert "[submit]" in shown
    assert "limit_bytes = 1073741824" in shown
    assert gpuq("config", "show", "--json").json["config"]["submit"]["gpus"] == 1
    assert "absent" in gpuq("config", "check").out
    file = tmp_path / "g.toml"
    file.write_text("[submit]\ngpuz = 1\n")
    monkeypatch.setenv("GPUQ_CONFIG", str(file))
    wrong = gpuq("config", "check")
    assert wrong.code == 1
    assert "gpuz" in wrong.err
    assert gpuq("config", "path").out == f"{file}\n"


def test_doctor(fake: FakeDaemon, gpuq: Any) -> None:
    """doctor says ok, warn or fail for each thing, what to do, and exits 1 when something fails."""
    fake.answer("GET", "/v1/status", SUMMARY)
    fake.answer("GET", "/v1/nodes", {"nodes": [NODES[0]]})
    fine = gpuq("doctor", "--json")
    assert (fine.code, fine.json["ok"]) == (0, True)
    fake.answer("GET", "/v1/nodes", {"nodes": NODES})
    bad = gpuq("doctor")
    assert bad.code == 1
    assert "fail  node den" in bad.out
    assert "ok    Python" in bad.out


def test_doctor_without_a_daemon(gpuq: Any, home: Path) -> None:
    """No daemon is a warning with the next step; a directory open to others is a failure."""
    assert "The first gpuq submit starts it" in gpuq("doctor").out
    home.chmod(0o777)
    ran = gpuq("doctor")
    assert ran.code == 1
    assert "chmod 700" in ran.out


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (["12"], ["12"]), (["1,3-5"], ["1", "3", "4", "5"]), (["12_3"], ["12_3"]), (["2-10:4"], ["2", "6", "10"]),
        (["12_[0-2]"], ["12_0", "12_1", "12_2"]), (["12_[0,2-3%2],7"], ["12_0", "12_2", "12_3", "7"]),
        (["last", "@"], ["last", "@"]),
        (["3", "2,3"], ["3", "2"]),
    ],
)  # fmt: skip
def test_ids(words: list[str], ids: list[str]) -> None:
    """All spellings of ids, each id once."""
    from gpuq.cli.selectors import expanded_ids

    assert expanded_ids(words) == ids


@pytest.mark.parametrize("word", ["x", "1-", "5-3", "12_", "1_[x]", "", "-", "1 2", "1-999999999"])
def test_bad_ids(fake: FakeDaemon, gpuq: Any, word: str) -> None:
    """What is no id is a usage error before anything is asked."""
    assert gpuq("hold", "--", word).code == 2
    assert fake.asked == []
