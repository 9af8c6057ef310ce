"""The unit that `gpuq daemon install` writes, under a real systemd. May import: the harness, the systemd machine.

One thing to know: `test_control_...` takes away the line that spares the jobs and sees one die; so the other tests
would notice its loss.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import Queue, eventually, is_alive, pids_with
from tests.e2e.systemd_machine import Machine, need_systemd

pytestmark = pytest.mark.e2e

UNIT = "gpuq.service"
EXITED = "1"  # ExecMainCode of a process that ended by itself (CLD_EXITED)
LONG_JOB = ["sleep", "60"]

StartMachine = Callable[[Queue], Machine]


@pytest.fixture
def start_machine(tmp_path: Path, new_queue: Callable[..., Queue]) -> Iterator[StartMachine]:
    """A function that boots a machine in which the given queue (not started) belongs to the one user."""
    need_systemd()
    machines: list[Machine] = []

    def start(queue: Queue) -> Machine:
        variables = {name: value for name, value in queue.environment.items() if name != "PYTHONPATH"}
        machines.append(Machine(tmp_path, variables))
        return machines[-1].boot()

    yield start
    for machine in machines:
        machine.close()


@pytest.fixture
def queue(new_queue: Callable[..., Queue]) -> Queue:
    """A queue whose daemon systemd is to start."""
    queue: Queue = new_queue()
    return queue


@pytest.fixture
def machine(queue: Queue, start_machine: StartMachine) -> Machine:
    """A machine on which the unit of the queue is installed and started."""
    machine = start_machine(queue)
    machine.gpuq("daemon", "install", "--now")
    _comes_up(machine, queue)
    return machine


def _comes_up(machine: Machine, queue: Queue) -> None:
    """Wait until the unit's daemon answers and has its node."""
    eventually(queue.answers, lambda: f"the daemon of {UNIT} answers: {machine.properties(UNIT)} {queue.log()}")
    queue.node_ready()
    assert machine.properties(UNIT)["ActiveState"] == "active"


def _becomes(machine: Machine, state: str) -> dict[str, str]:
    """What systemd says of the unit once it is in the state."""
    eventually(
        lambda: machine.properties(UNIT)["ActiveState"] == state, lambda: f"{state}: {machine.properties(UNIT)}"
    )
    return machine.properties(UNIT)


def _long_job(queue: Queue) -> tuple[str, int]:
    """A job that runs, and the pid of its one process."""
    id_ = queue.submit(LONG_JOB)
    queue.reaches(id_, "RUNNING")
    pids: list[int] = eventually(lambda: queue.job_pids(id_), f"job {id_} has a process")
    assert len(pids) == 1
    return id_, pids[0]


def _daemon_pid(queue: Queue) -> int:
    """The daemon's pid outside of the machine."""
    found = [pid for pid in pids_with(f"GPUQ_HOME={queue.home}") if _words(pid)[1:] == ["-m", "gpuq", "daemon", "run"]]
    assert len(found) == 1
    return found[0]


def _words(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")


def _is_still_running(queue: Queue, id_: str, pid: int) -> None:
    """The job is known as running, by its first attempt, and its process is the one that it had."""
    job = queue.job(id_)
    assert (job["state"], job["restarts"]) == ("RUNNING", 0)
    assert queue.job_pids(id_) == [pid]


def _can_be_cancelled(queue: Queue, id_: str, pid: int) -> None:
    """The daemon that found the job has it in hand."""
    queue.cancel(id_)
    assert queue.ended(id_)["state"] == "CANCELLED"
    assert not is_alive(pid)


def test_a23_restart_of_the_unit_keeps_jobs(machine: Machine, queue: Queue) -> None:
    """`systemctl restart`: another daemon, an active unit, the same process of the job, which a cancel still ends."""
    id_, pid = _long_job(queue)
    first = machine.properties(UNIT)
    machine.systemctl("restart", UNIT)
    _comes_up(machine, queue)
    second = machine.properties(UNIT)
    assert second["MainPID"] != first["MainPID"]
    assert (second["Result"], second["NRestarts"]) == ("success", "0")
    _is_still_running(queue, id_, pid)
    _can_be_cancelled(queue, id_, pid)
    assert machine.properties(UNIT)["ActiveState"] == "active"


def test_a23_stop_of_the_unit_leaves_jobs_alone(machine: Machine, queue: Queue) -> None:
    """`systemctl stop`: inactive and not failed, the job lives on, and what ended meanwhile has its exit code later."""
    id_, pid = _long_job(queue)
    meanwhile = queue.submit("until test -e go; do sleep 0.05; done; touch gone; exit 5")
    queue.reaches(meanwhile, "RUNNING")
    machine.systemctl("stop", UNIT)
    stopped = machine.properties(UNIT)
    assert (stopped["ActiveState"], stopped["Result"]) == ("inactive", "success")
    assert is_alive(pid)
    (queue.work / "go").touch()
    eventually((queue.work / "gone").exists, "the second job ends without a daemon")
    machine.systemctl("start", UNIT)
    _comes_up(machine, queue)
    assert queue.ended(meanwhile)["exit_code"] == 5
    _is_still_running(queue, id_, pid)
    _can_be_cancelled(queue, id_, pid)


def test_a23_term_by_hand_is_no_failure(machine: Machine, queue: Queue) -> None:
    """SIGTERM at the daemon: exit code 0, so the unit is inactive, not failed and not started again."""
    _, pid = _long_job(queue)
    os.kill(_daemon_pid(queue), signal.SIGTERM)
    ended = _becomes(machine, "inactive")
    assert (ended["ExecMainCode"], ended["ExecMainStatus"]) == (EXITED, "0")
    assert (ended["Result"], ended["NRestarts"]) == ("success", "0")
    assert is_alive(pid)


def test_a_killed_daemon_is_started_again(machine: Machine, queue: Queue) -> None:
    """`kill -9` at the daemon: systemd starts another one by itself, which finds the job."""
    id_, pid = _long_job(queue)
    killed = _daemon_pid(queue)
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: machine.properties(UNIT)["NRestarts"] == "1", "systemd starts the unit again")
    _comes_up(machine, queue)
    assert _daemon_pid(queue) != killed
    _is_still_running(queue, id_, pid)
    _can_be_cancelled(queue, id_, pid)


def test_control_without_its_kill_mode_the_unit_ends_jobs(machine: Machine, queue: Queue) -> None:
    """With systemd's own KillMode a restart kills the job: this machine kills as a real one does."""
    id_, pid = _long_job(queue)
    settings = Path(machine.environment["HOME"]) / ".config/systemd/user" / f"{UNIT}.d"
    settings.mkdir()
    (settings / "kill.conf").write_text("[Service]\nKillMode=control-group\n")
    machine.systemctl("daemon-reload")
    machine.systemctl("restart", UNIT)
    assert not is_alive(pid)
    _comes_up(machine, queue)
    assert queue.ended(id_)["state"] != "COMPLETED"


def test_install_takes_over_from_the_daemon_in_the_background(queue: Queue, start_machine: StartMachine) -> None:
    """`install --now` while a daemon that a submit started owns the queue: the unit's daemon follows, jobs go on."""
    machine = start_machine(queue)
    machine.gpuq("daemon", "start")
    queue.node_ready()
    id_, pid = _long_job(queue)
    machine.gpuq("daemon", "install", "--now")
    _comes_up(machine, queue)
    assert queue.api.get("/v1/status")["pid"] == int(machine.properties(UNIT)["MainPID"])
    _is_still_running(queue, id_, pid)
    machine.gpuq("daemon", "install", "--now")
    _comes_up(machine, queue)
    _is_still_running(queue, id_, pid)
    _can_be_cancelled(queue, id_, pid)


def test_the_unit_finds_a_home_of_any_name(
    tmp_path: Path, new_queue: Callable[..., Queue], start_machine: StartMachine
) -> None:
    """Blanks, quotes, percent and dollar signs in the home reach the daemon as they are."""
    queue = new_queue(home=tmp_path / "a \"b'" / "100%h$x\\n;")
    machine = start_machine(queue)
    machine.gpuq("daemon", "install", "--now")
    _comes_up(machine, queue)
    assert queue.api.get("/v1/status")["home"] == str(queue.home)
    _can_be_cancelled(queue, *_long_job(queue))
