"""gpuq submit: what reaches the daemon, and what the person reads."""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_cases import NOW, ended
from fake_daemon import Asked, Failure, FakeDaemon, HangUp

from gpuq.cli import client


def _spec(fake: FakeDaemon) -> dict[str, Any]:
    return fake.bodies("/v1/jobs")[-1]["spec"]


def _environment(fake: FakeDaemon) -> dict[bytes, bytes]:
    packed = base64.b64decode(fake.bodies("/v1/jobs")[-1]["environment"])
    return dict(line.split(b"=", 1) for line in packed.split(b"\0"))


def test_a_plain_command(fake: FakeDaemon, gpuq: Any) -> None:
    """The sentence that scripts grep, and a spec with the defaults of one GPU that nobody asked for."""
    ran = gpuq("submit", "--", "true")
    assert (ran.code, ran.out, ran.err) == (0, "Submitted batch job 42\n", "")
    body = fake.bodies("/v1/jobs")[0]
    assert body["gpus_given"] is False
    assert body["tasks"] == []
    assert body["held"] is False
    assert body["script"] is None
    assert len(body["key"]) >= 32
    spec = body["spec"]
    assert (spec["argv"], spec["name"], spec["cwd"]) == (["true"], "true", os.getcwd())
    assert spec["resources"] == {"gpus": 1}


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        (["-t", "2h30m"], "time_limit_s", 9000.0),
        (["-t", "0"], "time_limit_s", None),
        (["--grace", "90s"], "grace_s", 90.0),
        (["--nice", "-5"], "nice", -5),
        (["--priority", "7"], "priority", 7),
        (["--requeue"], "requeue", True),
        (["--no-requeue"], "requeue", False),
        (["--retries", "3"], "retries", 3),
        (["--preemptible"], "preemptible", True),
        (["--min-runtime", "1h"], "min_runtime_s", 3600.0),
        (["--signal", "USR1"], "warn_before_s", 60.0),
        (["--signal", "B:USR1@120"], "warn_all", False),
        (["--signal", "USR1@2m"], "warn_before_s", 120.0),
        (["-o", "out/%j.txt"], "stdout", "{cwd}/out/%j.txt"),
        (["-e", "/dev/null"], "stderr", "/dev/null"),
        (["--open-mode", "truncate"], "append", False),
        (["--visible", "index"], "visible", "index"),
        (["--cuda-index"], "visible", "index"),
        (["--comment", "note [x]"], "comment", "note [x]"),
        (["--slurm-env"], "slurm_env", True),
        (["-J", "lr[0.1] [/red]"], "name", "lr[0.1] [/red]"),
        (["-D", "/"], "cwd", "/"),
        (["-d", "afterok:1:2,afterany:3_4"], "dependencies", {
            "terms": [{"kind": "afterok", "job": "1"}, {"kind": "afterok", "job": "2"},
                      {"kind": "afterany", "job": "3_4"}], "any_of": False, "keep_on_failed": False}),
        (["-d", "afterok:1?afternotok:2", "--keep-on-failed-dep"], "dependencies", {
            "terms": [{"kind": "afterok", "job": "1"}, {"kind": "afternotok", "job": "2"}], "any_of": True,
            "keep_on_failed": True}),
        (["-d", "singleton", "--after", "5,6"], "dependencies", {
            "terms": [{"kind": "singleton", "job": ""}, {"kind": "afterok", "job": "5"},
                      {"kind": "afterok", "job": "6"}], "any_of": False, "keep_on_failed": False}),
    ],
)  # fmt: skip
def test_options_reach_the_spec(fake: FakeDaemon, gpuq: Any, options: list[str], field: str, value: Any) -> None:
    """Each option sets its field of the JobSpec, in the field's unit."""
    assert gpuq("submit", *options, "--", "true").code == 0
    wanted = value.format(cwd=os.getcwd()) if isinstance(value, str) else value
    assert _spec(fake)[field] == wanted


@pytest.mark.parametrize(
    ("options", "resources"),
    [
        (["--gpus", "2"], {"gpus": 2}),
        (["-G", "a100:2"], {"gpus": 2, "gpu_type": "a100"}),
        (["--gres=gpu:V100:3"], {"gpus": 3, "gpu_type": "V100"}),
        (["--gres", "gpu"], {"gpus": 1}),
        (["--gpu-ids", "0,GPU-x"], {"gpus": 2, "gpu_ids": ["0", "GPU-x"]}),
        (["--gpu-type", "H100"], {"gpus": 1, "gpu_type": "H100"}),
        (["--vram", "20G", "--mem", "4096", "-c", "8"],
         {"gpus": 1, "gpu_memory_mib": 20480, "memory_mib": 4096, "cpus": 8}),
        (["-w", "mill,den", "-x", "attic"], {"gpus": 1, "nodes": ["mill", "den"], "exclude": ["attic"]}),
    ],
)  # fmt: skip
def test_resources(fake: FakeDaemon, gpuq: Any, options: list[str], resources: dict[str, Any]) -> None:
    """What is asked for, and nothing else, stands in resources."""
    assert gpuq("submit", *options, "true").code == 0
    assert _spec(fake)["resources"] == resources


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--gpus", "many"], "--gpus 'many' is not a number of GPUs"),
        (["-t", "soon"], "'soon' is not a time limit"),
        (["--mem", "lots"], "'lots' is not a size for --mem"),
        (["-c", "0"], "--cpus-per-task 0 is below 1"),
        (["-d", "afterok"], "names no job"),
        (["-d", "afterko:1"], "there is no condition 'afterko'"),
        (["-d", "afterok:x"], "'x' is not a job id"),
        (["-d", "afterok:1,afterok:2?afterok:3"], "mixes 'and' with 'or'"),
        (["--visible", "name"], "--visible 'name' is not known"),
        (["--signal", "NOPE@3"], "'NOPE' is not a signal"),
        (["-a", "5-1"], "it must rise"),
        (["-a", "0-200000"], "more than 100000"),
        (["--gpus", "1", "--gres", "gpu:2"], "cannot be combined"),
        (["--sweep", "lr=1,2"], "the command has no {lr}"),
        (["--retries", "-1"], "--retries -1 is below 0"),
    ],
)
def test_impossible_values_are_one_sentence(fake: FakeDaemon, gpuq: Any, options: list[str], sentence: str) -> None:
    """A value that cannot be meant is exit 2 with what was wrong, and nothing is submitted."""
    ran = gpuq("submit", *options, "--", "true")
    assert ran.code == 2
    assert sentence in ran.err
    assert ran.out == ""
    assert fake.asked == []


def test_a15_a_mistyped_option_is_refused_with_a_suggestion(fake: FakeDaemon, gpuq: Any) -> None:
    """A15: an unknown option before the command is exit 2 and names the nearest one."""
    ran = gpuq("submit", "--gpsu", "1", "python", "t.py")
    assert ran.code == 2
    assert "no option '--gpsu'" in ran.err
    assert "--gpus" in ran.err
    assert fake.asked == []


def test_a15_the_job_keeps_its_options(fake: FakeDaemon, gpuq: Any) -> None:
    """A15: with and without `--`, everything from the first word on is the job's."""
    words = ["python", "t.py", "--gpus", "4", "--name", "x", "-v", "--help"]
    for dashes in ([], ["--"]):
        assert gpuq("submit", *dashes, *words).code == 0
        assert _spec(fake)["argv"] == words
    assert _spec(fake)["name"] == "t.py"


def test_a16_the_environment_is_the_submitters(
    fake: FakeDaemon, gpuq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A16: all variables go along as bytes, but not those of gpuq itself, of an outer job, or the GPUs in sight."""
    monkeypatch.setitem(os.environb, b"RAW", b"\xff\xfe")
    for name in ("FOO", "CUDA_VISIBLE_DEVICES", "GPUQ_FORMAT", "GPUQ_JOB_ID", "GPUQ_ARRAY_TASK_ID"):
        monkeypatch.setenv(name, "me")
    assert gpuq("submit", "true").code == 0
    sent = _environment(fake)
    assert sent[b"FOO"] == b"me"
    assert sent[b"RAW"] == b"\xff\xfe"
    assert sent[b"PATH"] == os.environb[b"PATH"]
    assert sent[b"GPUQ_HOME"] == os.environb[b"GPUQ_HOME"]
    for name in (b"CUDA_VISIBLE_DEVICES", b"GPUQ_FORMAT", b"GPUQ_JOB_ID", b"GPUQ_ARRAY_TASK_ID"):
        assert name not in sent


@pytest.mark.parametrize(
    ("options", "there", "absent"),
    [
        (["--env", "K=V=W"], {b"K": b"V=W", b"FOO": b"me"}, b"-"),
        (["--no-env"], {}, b"FOO"),
        (["--export", "NONE"], {}, b"FOO"),
        (["--export", "ALL,K=1"], {b"K": b"1", b"FOO": b"me"}, b"-"),
        (["--export", "FOO,GONE"], {b"FOO": b"me"}, b"BAR"),
    ],
)
def test_export(
    fake: FakeDaemon,
    gpuq: Any,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    there: dict[bytes, bytes],
    absent: bytes,
) -> None:
    """--export as Slurm reads it: a list without ALL takes only what it names (and PATH, HOME and their like)."""
    monkeypatch.setenv("FOO", "me")
    monkeypatch.setenv("BAR", "too")
    assert gpuq("submit", *options, "true").code == 0
    sent = _environment(fake)
    assert there.items() <= sent.items()
    assert absent not in sent
    assert b"PATH" in sent


def test_env_file(fake: FakeDaemon, gpuq: Any) -> None:
    """--env-file takes NAME=VALUE lines, with comments, export and quotes; --env wins over it."""
    Path("vars").write_text('# note\nexport A="x y"\nB=2\n\n')
    assert gpuq("submit", "--env-file", "vars", "--env", "B=3", "true").code == 0
    sent = _environment(fake)
    assert (sent[b"A"], sent[b"B"]) == (b"x y", b"3")


def test_an_environment_beyond_the_limit_is_refused(fake: FakeDaemon, gpuq: Any) -> None:
    """More than 8 MiB of environment is one sentence, with the way out."""
    ran = gpuq("submit", "--env", "BIG=" + "x" * (9 << 20), "true")
    assert ran.code == 2
    assert "the most is 8 MiB" in ran.err


def test_a_non_utf8_argument_is_refused(fake: FakeDaemon, gpuq: Any) -> None:
    """An argument that JSON cannot carry is one sentence, not a crash."""
    ran = gpuq("submit", "--", "echo", os.fsdecode(b"caf\xe9"))
    assert ran.code == 2
    assert "not valid UTF-8" in ran.err


def test_array(fake: FakeDaemon, gpuq: Any) -> None:
    """-a in Slurm's grammar."""
    assert gpuq("submit", "-a", "0-31:2%4", "true").code == 0
    body, spec = fake.bodies("/v1/jobs")[0], _spec(fake)
    assert body["tasks"] == list(range(0, 32, 2))
    assert [spec[f"array_{name}"] for name in ("size", "min", "max", "step", "limit")] == [16, 0, 30, 2, 4]


def test_sweep(fake: FakeDaemon, gpuq: Any) -> None:
    """--sweep makes one task for each element of the product."""
    assert gpuq("submit", "--sweep", "lr=1,2", "--sweep", "m=a,b", "-a", "%2", "--", "t", "--lr={lr}", "{m}").code == 0
    assert fake.bodies("/v1/jobs")[0]["tasks"] == [0, 1, 2, 3]
    assert _spec(fake)["values"] == [["lr", ["1", "1", "2", "2"]], ["m", ["a", "b", "a", "b"]]]
    assert _spec(fake)["array_limit"] == 2


def test_each_line(fake: FakeDaemon, gpuq: Any) -> None:
    """--each-line puts the line last unless {line} stands in the command; empty lines make no task."""
    Path("lines").write_text("a b\n\n{c}\r\n")
    assert gpuq("submit", "--each-line", "lines", "--", "echo", "-n").code == 0
    assert _spec(fake)["argv"] == ["echo", "-n", "{line}"]
    assert _spec(fake)["values"] == [["line", ["a b", "{c}"]]]
    assert gpuq("submit", "--each-line", "lines", "--", "echo", "<{line}>", "x").code == 0
    assert _spec(fake)["argv"] == ["echo", "<{line}>", "x"]


def test_the_reply_is_lost_once(fake: FakeDaemon, gpuq: Any) -> None:
    """When the connection breaks before the answer, the client asks again with the same key."""
    seen: list[str] = []

    def first_lost(asked: Asked) -> dict[str, Any]:
        seen.append(asked.body["key"])
        if len(seen) < 3:
            raise HangUp
        return {"id": "42", "tasks": 0, "state": "PENDING", "notes": [], "existing": True}

    fake.answer("POST", "/v1/jobs", first_lost)
    ran = gpuq("submit", "true")
    assert (ran.code, ran.out) == (0, "Submitted batch job 42\n")
    assert len(seen) == 3
    assert len(set(seen)) == 1


def test_forms_of_the_answer(fake: FakeDaemon, gpuq: Any) -> None:
    """--parsable is the id, -q nothing, --json one document; notes are on standard error."""
    fake.answer("POST", "/v1/jobs", {"id": "42", "tasks": 0, "state": "PENDING", "notes": ["mind the gap"]})
    assert gpuq("submit", "--parsable", "true").out == "42\n"
    quiet = gpuq("submit", "-q", "true")
    assert (quiet.out, quiet.err) == ("", "")
    answered = gpuq("submit", "--json", "true")
    assert answered.json["id"] == "42"
    assert answered.json["schema"] == 1
    assert "mind the gap" in gpuq("submit", "true").err


def test_a21_a_refusal_in_json(fake: FakeDaemon, gpuq: Any) -> None:
    """A09, A21: the daemon's refusal is the one document on standard output, with its exit code."""

    def refuse(asked: Asked) -> dict[str, Any]:
        raise Failure(409, "refused", "asked 5 GPUs; the largest node has 2.", "Ask for at most 2.")

    fake.answer("POST", "/v1/jobs", refuse)
    ran = gpuq("submit", "--json", "--gpus", "5", "true")
    assert ran.code == 1
    assert ran.json["error"]["kind"] == "refused"
    plain = gpuq("submit", "--gpus", "5", "true", "--json")
    assert plain.out == ""
    assert "the largest node has 2" in plain.err
    assert "at most 2" in plain.err


def test_dry_run(fake: FakeDaemon, gpuq: Any, frozen: None) -> None:
    """--dry-run says where and when, and submits nothing."""
    start = {"now": False, "at": NOW + 3600, "node": "mill", "gpus": [], "reason": "Resources", "message": "41 holds 4"}
    fake.answer("POST", "/v1/jobs/dry-run", {"start": start, "notes": []})
    ran = gpuq("submit", "--dry-run", "true")
    assert ran.out == "It would start about 17:00 on mill: 41 holds 4\n"
    assert fake.bodies("/v1/jobs") == []
    assert gpuq("submit", "--test-only", "--json", "true").json["start"]["node"] == "mill"


def test_wait_gives_the_jobs_code(fake: FakeDaemon, gpuq: Any) -> None:
    """-W waits and exits with the job's code."""
    fake.answer("GET", "/v1/wait", {"done": True, "jobs": [ended("42", 7)]})
    assert gpuq("submit", "-W", "false").code == 7
    assert gpuq("submit", "-W", "--json", "false").json["jobs"][0]["exit_code"] == 7


def test_like(fake: FakeDaemon, gpuq: Any) -> None:
    """--like takes the earlier job's spec, and what is given here over it."""
    spec = {"name": "old", "argv": ["python", "t.py"], "cwd": "/old", "resources": {"gpus": 4, "gpu_type": "A100"},
            "time_limit_s": 60.0, "umask": 18, "array_size": 3, "retries": 2}  # fmt: skip
    fake.answer("GET", "/v1/jobs/7", {"job": {**ended("7"), "spec": spec}})
    assert gpuq("submit", "--like", "7", "--gpus", "2", "-t", "2h").code == 0
    sent = _spec(fake)
    assert (sent["argv"], sent["cwd"], sent["name"], sent["retries"]) == (["python", "t.py"], "/old", "old", 2)
    assert sent["resources"] == {"gpus": 2, "gpu_type": "A100"}
    assert sent["time_limit_s"] == 7200.0
    assert "array_size" not in sent


def test_last_in_a_dependency_is_written_out(fake: FakeDaemon, gpuq: Any) -> None:
    """`-d afterok:last` names the job that is the newest now, an array as a whole."""
    fake.answer("GET", "/v1/jobs", {"jobs": [ended("9_0", array="9", task=0), ended("9_1", array="9", task=1)]})
    assert gpuq("submit", "-d", "afterok:last", "true").code == 0
    assert _spec(fake)["dependencies"]["terms"] == [{"kind": "afterok", "job": "9"}]


def test_defaults_of_the_settings(fake: FakeDaemon, gpuq: Any, tmp_path: Path) -> None:
    """[submit] is what an option that was not given means."""
    (tmp_path / "settings/gpuq").mkdir(parents=True)
    (tmp_path / "settings/gpuq/gpuq.toml").write_text('[submit]\ngpus = 2\ntime = "1h"\ngrace = "5s"\n')
    assert gpuq("submit", "true").code == 0
    spec = _spec(fake)
    assert (spec["resources"]["gpus"], spec["time_limit_s"], spec["grace_s"]) == (2, 3600.0, 5.0)
    assert fake.bodies("/v1/jobs")[0]["gpus_given"] is False


def test_a_missing_output_directory_is_said(fake: FakeDaemon, gpuq: Any) -> None:
    """-o into a directory that is not there is said at submit, not found out at the start."""
    assert "does not exist" in gpuq("submit", "-o", "nowhere/x.txt", "true").err


def test_a_past_begin_time_is_said(fake: FakeDaemon, gpuq: Any) -> None:
    """A begin time already past is said aloud."""
    assert "has passed" in gpuq("submit", "-b", "2020-01-01", "true").err


def test_no_command(fake: FakeDaemon, gpuq: Any) -> None:
    """submit without a command says what to write."""
    ran = gpuq("submit", "--gpus", "1")
    assert ran.code == 2
    assert "gpuq submit -- python train.py" in ran.err


def test_wrap(fake: FakeDaemon, gpuq: Any) -> None:
    """--wrap runs a line with /bin/sh, named wrap as sbatch does."""
    assert gpuq("submit", "--wrap", "a | b").code == 0
    assert (_spec(fake)["argv"], _spec(fake)["name"]) == (["/bin/sh", "-c", "a | b"], "wrap")


def test_the_first_submit_starts_the_daemon(gpuq: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a daemon, submit starts one and goes on."""
    import types

    started: list[FakeDaemon] = []

    def start() -> None:
        fake = FakeDaemon(str(home / "gpuq.sock"))
        fake.answer("POST", "/v1/jobs", {"id": "1", "tasks": 0, "state": "PENDING", "notes": []})
        started.append(fake)

    module = types.ModuleType("gpuq.daemon.main")
    monkeypatch.setattr(module, "start_in_background", start, raising=False)
    monkeypatch.setitem(sys.modules, "gpuq.daemon.main", module)
    try:
        assert gpuq("submit", "true").out == "Submitted batch job 1\n"
        assert len(started) == 1
        assert client.connect().answers()
    finally:
        for fake in started:
            fake.close()
