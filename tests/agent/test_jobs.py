"""Starting programs: exit status, output, environment, descriptors, and what is refused before anything runs."""

from __future__ import annotations

import base64
import json
import os
import signal
import stat
import sys
import time
from pathlib import Path

import pytest

from tests.agent.driver import AgentDriver, eventually

pytestmark = pytest.mark.e2e


def test_exit_code_and_record(agent: AgentDriver) -> None:
    """The record carries the job's exit code and measured, plausible figures."""
    run = agent.start("echo hello; exit 3")
    assert run.running()["shim_pid"] == agent.shim_pid(run.attempt)
    record = run.ended()
    assert (record["status"], record["exit_code"], record["signal"], record["reason"]) == ("exited", 3, None, None)
    assert record["error"] is None
    assert record["started_at"] <= record["ended_at"] <= time.time()
    assert 0 < record["run_s"] < 10
    assert record["cpu_s"] >= 0
    assert record["max_rss_mib"] > 0
    assert (record["log_bytes"], record["log_dropped_bytes"]) == (6, 0)
    assert run.output() == "hello\n"


def test_signal_is_reported(agent: AgentDriver) -> None:
    """A job that dies of a signal is `signaled`, with the number and no exit code."""
    record = agent.start("kill -SEGV $$").ended()
    assert (record["status"], record["exit_code"], record["signal"]) == ("signaled", None, signal.SIGSEGV)


def test_unknown_program_is_127(agent: AgentDriver) -> None:
    """A program that is not in the job's PATH gives 127, and the same sentence in record and log."""
    run = agent.start(["no-such-program"])
    record = run.ended()
    assert (record["status"], record["exit_code"]) == ("exited", 127)
    assert "no-such-program" in record["error"]
    assert record["error"] in run.output()


def test_not_executable_is_126(agent: AgentDriver, tmp_path: Path) -> None:
    """A file without execute permission, or without a known format, gives 126."""
    plain = tmp_path / "plain"
    plain.write_text("true\n")
    assert agent.start([str(plain)]).ended()["exit_code"] == 126
    plain.chmod(0o755)
    record = agent.start([str(plain)]).ended()
    assert record["exit_code"] == 126
    assert "#!" in record["error"]


def test_missing_interpreter_is_named(agent: AgentDriver, tmp_path: Path) -> None:
    """A script whose first line names a missing interpreter says so, instead of "not found"."""
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    record = agent.start([str(script)]).ended()
    assert record["exit_code"] == 127
    assert "interpreter" in record["error"]


def test_path_of_the_job_counts(agent: AgentDriver, tmp_path: Path) -> None:
    """The program is looked up in the job's PATH, relative entries below its working directory."""
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "only-here"
    tool.write_text("#!/bin/sh\nexit 7\n")
    tool.chmod(0o755)
    record = agent.start(["only-here"], environment={"PATH": "nowhere:bin"}, cwd=str(tmp_path)).ended()
    assert record["exit_code"] == 7


def test_missing_directory_is_not_started(agent: AgentDriver) -> None:
    """A missing working directory starts nothing, names itself, and has no start time."""
    record = agent.start(["/bin/true"], cwd="/no/such/directory").ended()
    assert (record["status"], record["started_at"], record["exit_code"]) == ("not_started", None, None)
    assert "/no/such/directory" in record["error"]


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_output_must_be_a_file(agent: AgentDriver, tmp_path: Path, kind: str) -> None:
    """An output path that is a link, a FIFO or a directory is refused, and what it leads to stays as it is."""
    target, output = tmp_path / "target", tmp_path / "output"
    target.write_text("precious")
    if kind == "link":
        output.symlink_to(target)
    elif kind == "fifo":
        os.mkfifo(output)
    else:
        output.mkdir()
    record = agent.start("echo overwritten", stdout=str(output)).ended()
    assert record["status"] == "not_started"
    assert str(output) in record["error"]
    assert target.read_text() == "precious"


def test_environment_is_exact(agent: AgentDriver) -> None:
    """The job sees the given environment, its marker and where to write its progress: nothing else, bytes unchanged."""
    os.environ["GPUQ_TEST_LEAK"] = "daemon"
    given = {"FOO": "me", "EMPTY": "", "RAW": "caf\udce9"}
    run = agent.start([sys.executable, "-S", "-E", "-c", PRINT_ENVIRONMENT], environment=given)
    assert run.ended()["exit_code"] == 0
    found = json.loads(run.output())
    progress = str(agent.directory(run.attempt) / "progress")
    assert found == {
        "FOO": "me", "EMPTY": "", "RAW": "caf\udce9", "GPUQ_ATTEMPT_ID": run.attempt, "GPUQ_PROGRESS_FILE": progress,
    }  # fmt: skip


def test_progress_in_the_file_is_reported(agent: AgentDriver) -> None:
    """A number that the job writes comes with the next look at its attempt, and again when it changes."""
    program = "for done in 0.25 0.5; do echo $done >$GPUQ_PROGRESS_FILE; read line <$FIFO; done"
    run = agent.start(program, environment={"PATH": os.environ["PATH"], "FIFO": str(make_fifo(agent))})
    for done in (0.25, 0.5):
        agent.wait_for(lambda frame, done=done: frame.get("progress") == done, f"progress {done}")  # type: ignore[misc]
        (agent.spool.parent / "fifo").write_text("on\n")
    assert run.ended()["exit_code"] == 0


def make_fifo(agent: AgentDriver) -> Path:
    """A FIFO beside the spool, over which the test lets a job go on."""
    path = agent.spool.parent / "fifo"
    os.mkfifo(path)
    return path


PRINT_ENVIRONMENT = (
    "import json; data = open('/proc/self/environ','rb').read().decode('utf-8','surrogateescape');"
    "print(json.dumps(dict(e.split('=',1) for e in data.split(chr(0)) if e)))"
)


def test_descriptors_are_exactly_three(agent: AgentDriver) -> None:
    """The job starts with descriptors 0, 1 and 2 only; stdin is at its end."""
    run = agent.start([sys.executable, "-S", "-E", "-c", PRINT_DESCRIPTORS])
    run.ended()
    assert run.output().splitlines() == ["[0, 1, 2]", "b''", "/dev/null"]


# The listing's own descriptor is closed again when the second look is taken.
PRINT_DESCRIPTORS = (
    "import os; fds = [int(name) for name in os.listdir('/proc/self/fd')];"
    "print(sorted(fd for fd in fds if os.path.exists(f'/proc/self/fd/{fd}')));"
    "print(os.read(0, 1)); print(os.readlink('/proc/self/fd/0'))"
)


def test_signals_are_at_their_default(agent: AgentDriver) -> None:
    """The job ignores and blocks no signal; 32 and 33 are the C library's own, which nobody can set."""
    run = agent.start(["/bin/cat", "/proc/self/status"])
    run.ended()
    masks = dict(line.split(":\t") for line in run.output().splitlines() if line.startswith("Sig") and "/" not in line)
    own = 1 << 31 | 1 << 32
    assert {name: int(masks[name], 16) & ~own for name in ("SigBlk", "SigIgn")} == {"SigBlk": 0, "SigIgn": 0}


def test_own_session_and_umask(agent: AgentDriver, tmp_path: Path) -> None:
    """The job leads a session of its own and has the given umask, which its log has too."""
    run = agent.start("umask; ps -o sid= -p $$ | tr -d ' '; echo $$", umask=0o027)
    run.ended()
    umask, session, pid = run.output().splitlines()
    assert umask == "0027"
    assert session == pid
    assert stat.S_IMODE(Path(run.spec["stdout"]).stat().st_mode) == 0o640


def test_own_logs_are_private_and_their_folder_is_made(agent: AgentDriver, tmp_path: Path) -> None:
    """A log that gpuq keeps gets its folder made and is readable by its owner only."""
    log = tmp_path / "kept" / "1" / "out.log"
    run = agent.start("echo x", stdout=str(log), log_limit_bytes=1 << 20)
    assert run.ended()["exit_code"] == 0
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_stderr_joined_or_apart(agent: AgentDriver, tmp_path: Path) -> None:
    """Without a path stderr goes to stdout's file in order; with one it has its own."""
    joined = agent.start("echo a; echo b >&2; echo c")
    joined.ended()
    assert joined.output() == "a\nb\nc\n"
    apart = agent.start("echo a; echo b >&2", stderr=str(tmp_path / "err"))
    apart.ended()
    assert (apart.output(), (tmp_path / "err").read_text()) == ("a\n", "b\n")


def test_append_and_truncate(agent: AgentDriver, tmp_path: Path) -> None:
    """`append` keeps what a log holds, `truncate` drops it."""
    log = tmp_path / "log"
    for word, mode in (("one", "append"), ("two", "append"), ("three", "truncate")):
        agent.start(f"echo {word}", stdout=str(log), open_mode=mode).ended()
        if word == "two":
            assert log.read_text() == "one\ntwo\n"
    assert log.read_text() == "three\n"


def test_output_to_dev_null(agent: AgentDriver) -> None:
    """A character device is a valid output, and has no size."""
    record = agent.start("echo x", stdout="/dev/null").ended()
    assert (record["exit_code"], record["log_bytes"]) == (0, None)


def test_script_runs_from_the_spool(agent: AgentDriver) -> None:
    """A script is run by its own first line with the other arguments."""
    run = agent.start(["train.sh", "x y"], script=b'#!/bin/sh\necho "$1"; exit 5\n')
    assert run.ended()["exit_code"] == 5
    assert run.output() == "x y\n"


def test_secrets_leave_the_spool(agent: AgentDriver) -> None:
    """After exec no file of the spool holds the environment; after the end none holds the script."""
    run = agent.start(["s"], script=b"#!/bin/sh\n# hush\nsleep 60\n", environment={"TOKEN": "hush"})
    directory = agent.directory(run.attempt)
    run.running()
    eventually(lambda: not (directory / "environment").exists(), "the environment file to go")
    secret = base64.b64encode(b"hush").decode()[:5]
    texts = {path.name: path.read_text() for path in directory.iterdir() if path.is_file()}
    assert not [name for name, text in texts.items() if name != "script" and ("hush" in text or secret in text)]
    run.stop(grace_s=0)
    run.ended()
    assert not (directory / "script").exists()
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in directory.iterdir())


def test_damaged_specs_start_nothing(agent: AgentDriver) -> None:
    """A spec that lacks fields, or whose environment is not base64, ends as not started and says why."""
    broken = agent.spec(["/bin/true"])
    del broken["cwd"]
    agent.send(type="start", attempt=(one := "00000000-0000-4000-8000-000000000001"), spec=broken)
    garbled = {**agent.spec(["/bin/true"]), "environment": "%%%"}
    agent.send(type="start", attempt=(two := "00000000-0000-4000-8000-000000000002"), spec=garbled)
    for attempt, word in ((one, "cwd"), (two, "damaged")):
        record = agent.phase(attempt, "ended")
        assert record["status"] == "not_started"
        assert word in record["error"]
        agent.send(type="release", attempt=attempt)
        agent.phase(attempt, "absent")


def test_visible_index_uses_pci_order(agent: AgentDriver, start_agent: object, tmp_path: Path) -> None:
    """With `visible` index the job gets the cards' places in PCI order, over any value given."""
    assert callable(start_agent)
    agent.close()
    model = {"name": "A100", "memory_mib": 40960, "power_limit_w": 400, "compute_capability": "8.0"}
    driver: AgentDriver = start_agent(simulate=[{**model, "bandwidth_gbps": 1555}] * 3)
    gpus = driver.ready()["gpus"]
    assert len(gpus) == 3
    run = driver.start(
        "echo $CUDA_VISIBLE_DEVICES",
        visible="index",
        gpus=[gpus[2]["uuid"], gpus[0]["uuid"]],
        environment={"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "GPU-x"},
    )
    run.ended()
    assert run.output() == f"{gpus[2]['index']},{gpus[0]['index']}\n"


def test_resources_are_counted(agent: AgentDriver) -> None:
    """CPU seconds of children count too."""
    code = "import time\nwhile time.process_time() < 0.3: pass"
    record = agent.start(["/bin/sh", "-c", f"{sys.executable} -S -E -c '{code}'"]).ended()
    assert 0.3 <= record["cpu_s"] < 3
