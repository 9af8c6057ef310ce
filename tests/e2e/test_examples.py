"""Every file in examples/ is run as its comment says, by a real daemon with simulated GPUs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuq.daemon.unit import unit_text
from tests.e2e.harness import ROOT, Queue, eventually

pytestmark = pytest.mark.e2e

EXAMPLES = ROOT / "examples"
# The examples say `gpuq` and `python3`: those of this environment.
PATH = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])


@pytest.fixture
def queue(new_queue: Callable[..., Queue]) -> Queue:
    """A running queue with two GPUs, and a copy of the examples in its working directory."""
    queue = new_queue().start()
    shutil.copytree(EXAMPLES, queue.work, dirs_exist_ok=True)
    return queue


def submit(queue: Queue, *words: str) -> str:
    """`gpuq submit WORDS` among the examples; the id."""
    return queue.gpuq("submit", *words, environment={"PATH": PATH}).id


def run_script(queue: Queue, name: str) -> str:
    """`sh NAME` among the examples; its output."""
    done = subprocess.run(
        ["sh", name], cwd=queue.work, env=queue.command_environment({"PATH": PATH}), capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_training_learns(queue: Queue) -> None:
    """The training script runs to its end, and its loss falls."""
    job = submit(queue, "--gpus", "1", "--", "python3", "train_numpy.py", "--steps", "200")
    assert queue.ended(job)["state"] == "COMPLETED"
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", queue.output(job))]
    assert len(losses) == 5
    assert losses[-1] < losses[0] / 2


def test_training_does_the_same_without_numpy(queue: Queue, tmp_path: Path) -> None:
    """Without numpy the script says so and comes to the same loss."""
    pytest.importorskip("numpy")
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "numpy.py").write_text("raise ImportError\n")
    words = ("--", "python3", "train_numpy.py", "--steps", "60")
    with_numpy = submit(queue, *words)
    without = submit(queue, "--env", f"PYTHONPATH={hidden}", *words)
    assert queue.ended(with_numpy, without)["state"] == "COMPLETED"
    assert "training with numpy on GPU-" in queue.output(with_numpy)
    assert "training with plain Python (numpy is not installed) on GPU-" in queue.output(without)
    last = queue.output(with_numpy).splitlines()[-1]
    assert last.startswith("done: ")
    assert queue.output(without).splitlines()[-1] == last


def test_training_goes_on_from_its_checkpoint(queue: Queue) -> None:
    """Queued again in the middle, the script saves on SIGTERM and goes on from that step under the same id."""
    job = submit(queue, "--", "python3", "train_numpy.py", "--steps", "120", "--pause", "0.02")
    eventually(lambda: "step 0" in queue.output(job), "the training has begun")
    first_log = Path(queue.job(job)["stdout"])
    queue.gpuq("requeue", job)
    ended = queue.ended(job)
    assert (ended["state"], ended["restarts"]) == ("COMPLETED", 1)
    saved = re.search(r"told to stop: saved step (\d+)", first_log.read_text())
    assert saved is not None
    assert int(saved[1]) > 0
    assert f"resumed at step {saved[1]} (restart 1)" in queue.output(job)


def test_seeds_run_as_an_array_of_eight(queue: Queue) -> None:
    """The #GPUQ lines make eight tasks, at most four at once; each sees its own seed."""
    array = submit(queue, "seeds.sh", "--steps", "20")
    queue.ended(array)
    tasks = queue.jobs(array)
    assert [task["state"] for task in tasks] == ["COMPLETED"] * 8
    assert {task["name"] for task in tasks} == {"seeds"}
    assert {task["array_limit"] for task in tasks} == {4}
    for task in tasks:
        assert f"done: seed {task['task']}," in queue.output(task["id"])


def test_pipeline_runs_in_order(queue: Queue) -> None:
    """Each stage starts after the one before it has ended; the alarm is cancelled, since nothing failed."""
    said = run_script(queue, "pipeline.sh")
    assert said.endswith("evaluated the model\n")
    jobs = {job["name"]: job for job in queue.jobs()}
    assert jobs["prepare"]["ended_at"] <= jobs["train"]["started_at"]
    assert jobs["train"]["ended_at"] <= jobs["evaluate"]["started_at"]
    assert (jobs["alarm"]["state"], jobs["alarm"]["reason"]) == ("CANCELLED", "DependencyNeverSatisfied")


def test_sweep_tries_every_combination(queue: Queue) -> None:
    """Three learning rates times two seeds are six runs, each with its own pair."""
    said = run_script(queue, "sweep.sh")
    pairs = re.findall(r"^done: seed (\d), lr ([\d.]+),", said, re.MULTILINE)
    assert sorted(pairs) == sorted((seed, rate) for seed in "12" for rate in ("0.03", "0.1", "0.3"))


def test_slurm_script_runs_unchanged(queue: Queue) -> None:
    """What gpuq knows of the #SBATCH lines is applied, what it does not know is named."""
    ran = queue.gpuq("submit", "slurm_train.sbatch", environment={"PATH": PATH})
    for ignored in ("--partition", "--mail-type"):
        assert f"#SBATCH {ignored}" in ran.error
    ended = queue.ended(ran.id)
    assert (ended["state"], ended["name"], ended["time_limit_s"]) == ("COMPLETED", "slurm-train", 600.0)
    written = (queue.work / f"slurm-train-{ran.id}.out").read_text()
    assert written.startswith(f"job {ran.id} on ")
    assert "done: seed 0" in written


def test_workstation_settings_are_read(new_queue: Callable[..., Queue]) -> None:
    """A daemon starts with examples/gpuq.toml and runs a job under the limits it states."""
    queue = new_queue(gpus=(), settings=(EXAMPLES / "gpuq.toml").read_text()).start()
    assert queue.gpuq("config", "check").code == 0
    job = queue.gpuq("submit", "--gpus", "0", "--", "true").id
    ended = queue.ended(job)
    assert (ended["state"], ended["time_limit_s"]) == ("COMPLETED", 86400.0)


def test_unit_is_the_one_that_gpuq_installs() -> None:
    """examples/gpuq.service is `gpuq daemon install`'s text, but for where gpuq lies."""
    lines = (EXAMPLES / "gpuq.service").read_text().splitlines(keepends=True)
    text = "".join(lines[next(at for at, line in enumerate(lines) if line.startswith("[")) :])
    assert text == unit_text(command=["GPUQ", "daemon", "run"]).replace("GPUQ", "%h/.local/bin/gpuq")
    assert "KillMode=process\n" in text
    assert "Delegate=yes\n" in text


def test_every_example_is_run_here() -> None:
    """A file that is added to examples/ needs a test in this module."""
    here = Path(__file__).read_text()
    missing = [path.name for path in EXAMPLES.iterdir() if path.is_file() and path.name not in here]
    assert missing == []
