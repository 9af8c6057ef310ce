"""What an agent is told to start: environment, output files, the command of a sweep's task, which GPUs are visible."""

from __future__ import annotations

import base64
import os
import pwd
import string
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpuq.core.model import GpuUuid, Job, Node, User, Visible
from gpuq.core.states import JobState
from gpuq.daemon import launch
from tests.builders import cluster, gpu, job, node, place, submit

PLACES = launch.Places(home=Path("/h/gpuq"), logs=Path("/h/gpuq/logs"), log_limit_bytes=1 << 30)
SUBMITTED = b"PATH=/usr/bin\0HOME=/home/anna\0GREETING=hi there\0EMPTY=\0EQUALS=a=b"


def placed(task: int | None = None, **fields: Any) -> tuple[Job, Node]:
    """A job (or one task of an array of 4) placed on the first GPUs of a node named mill."""
    state = cluster(node("mill", "A100:4", "V100:2"))
    tasks = 0 if task is None else 4
    id_ = submit(state, tasks=tasks, **fields)
    one = id_ if task is None else f"{id_}_{task}"
    place(state, one, "mill")
    return job(state, one), state.nodes[job(state, one).attempt.node]  # type: ignore[union-attr]


def variables(one: Job, where: Node, submitted: bytes = SUBMITTED) -> dict[str, str]:
    """The attempt's environment, decoded."""
    found = launch.parse_environment(launch.job_environment(one, where, submitted, PLACES))
    return {os.fsdecode(name): os.fsdecode(value) for name, value in found.items()}


# --- environment ----------------------------------------------------------------------------------------


def test_the_environment_is_the_submitters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job sees what its submitter had and gpuq's own variables, and nothing of the daemon's environment."""
    monkeypatch.setenv("DAEMON_SECRET", "hidden")
    monkeypatch.setenv("VIRTUAL_ENV", "/the/daemons/own")
    found = variables(*placed())
    own = {name for name in found if name.startswith(("GPUQ_", "CUDA_"))}
    account = {"USER", "LOGNAME", "SHELL"}
    assert set(found) - own - account == {"PATH", "HOME", "GREETING", "EMPTY", "EQUALS"}
    assert (found["GREETING"], found["EMPTY"], found["EQUALS"]) == ("hi there", "", "a=b")


def test_gpuqs_variables() -> None:
    """Every variable that a plain job is given, with its value."""
    one, where = placed(gpus=2, name="tune", cwd="/w")
    found = variables(one, where)
    assert {name: value for name, value in found.items() if name.startswith(("GPUQ_", "CUDA_"))} == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-mill-0,GPU-mill-1",
        "GPUQ_JOB_ID": "1",
        "GPUQ_JOB_NAME": "tune",
        "GPUQ_GPUS": "GPU-mill-0,GPU-mill-1",
        "GPUQ_NODENAME": "mill",
        "GPUQ_SUBMIT_DIR": "/w",
        "GPUQ_RESTART_COUNT": "0",
        "GPUQ_CHECKPOINT_DIR": "/h/gpuq/checkpoints/1",
    }


def test_gpuqs_variables_win_over_inherited_ones() -> None:
    """A job submitted from within a job gets its own facts; nothing of the outer job's is left."""
    outer = (
        b"GPUQ_JOB_ID=99\0GPUQ_ARRAY_TASK_ID=7\0GPUQ_JOB_END_TIME=1\0CUDA_VISIBLE_DEVICES=0,1\0GPUQ_GPUS=GPU-x"
        b"\0GPUQ_RESTART_COUNT=3\0GPUQ_HOME=/elsewhere\0CUDA_CACHE_PATH=/cache"
    )
    found = variables(*placed(), submitted=outer)
    assert found["GPUQ_JOB_ID"] == "1"
    assert found["GPUQ_GPUS"] == found["CUDA_VISIBLE_DEVICES"] == "GPU-mill-0"
    assert found["GPUQ_RESTART_COUNT"] == "0"
    assert "GPUQ_ARRAY_TASK_ID" not in found
    assert "GPUQ_JOB_END_TIME" not in found
    assert found["GPUQ_HOME"] == "/elsewhere", "which gpuq is used is the submitter's choice"
    assert found["CUDA_CACHE_PATH"] == "/cache"


def test_a_job_without_gpus_sees_none() -> None:
    """Without GPUs CUDA_VISIBLE_DEVICES is there and empty, so that the program cannot use another job's."""
    found = variables(*placed(gpus=0), submitted=b"CUDA_VISIBLE_DEVICES=0,1,2,3")
    assert found["CUDA_VISIBLE_DEVICES"] == ""
    assert found["GPUQ_GPUS"] == ""


def test_values_are_bytes() -> None:
    """A value that is not UTF-8 reaches the job as it is; entries without a name are left out."""
    one, where = placed()
    found = launch.parse_environment(launch.job_environment(one, where, b"RAW=caf\xe9\xff\0=nameless\0alone", PLACES))
    assert found[b"RAW"] == b"caf\xe9\xff"
    assert b"" not in found
    assert b"alone" not in found


def test_account_variables_fill_gaps_only() -> None:
    """HOME, USER and the like come from the password database when the submitter's environment lacks them."""
    one, where = placed()
    entry = pwd.getpwuid(os.getuid())
    mine = replace(one, owner=User(name=entry.pw_name, uid=os.getuid()))
    found = variables(mine, where, b"HOME=/kept")
    assert found["HOME"] == "/kept"
    assert (found["USER"], found["LOGNAME"]) == (entry.pw_name, entry.pw_name)
    assert found["PATH"] == launch.DEFAULT_PATH


def test_a_user_without_an_account() -> None:
    """A uid that the password database does not know still gets a PATH."""
    one, where = placed()
    stranger = replace(one, owner=User(name="uid-4123456", uid=4123456))
    assert variables(stranger, where, b"A=1")["PATH"] == launch.DEFAULT_PATH


def test_a_time_limit_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job with a time limit knows when it will end, on the wall clock."""
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert variables(*placed(time_limit_s=90.0))["GPUQ_JOB_END_TIME"] == "1090"


def test_array_variables() -> None:
    """A task knows its array, its index, and how many there are."""
    fields = {"array_min": 0, "array_max": 3, "array_size": 4}
    found = variables(*placed(task=2, **fields))
    assert {name: found[name] for name in found if name.startswith("GPUQ_ARRAY")} == {
        "GPUQ_ARRAY_JOB_ID": "1",
        "GPUQ_ARRAY_TASK_ID": "2",
        "GPUQ_ARRAY_TASK_COUNT": "4",
        "GPUQ_ARRAY_TASK_MIN": "0",
        "GPUQ_ARRAY_TASK_MAX": "3",
        "GPUQ_ARRAY_TASK_STEP": "1",
    }
    assert found["GPUQ_JOB_ID"] == "1_2"


def test_slurms_names_only_on_request() -> None:
    """With slurm_env the facts come under Slurm's names too; without, none of those is made up."""
    assert not any(name.startswith("SLURM") for name in variables(*placed(task=1)))
    found = variables(*placed(task=1, slurm_env=True, name="tune"))
    assert found["SLURM_ARRAY_TASK_ID"] == "1"
    assert found["SLURM_ARRAY_JOB_ID"] == "1"
    assert found["SLURM_JOB_ID"].isdigit()
    assert (found["SLURM_JOB_NAME"], found["SLURM_NODELIST"], found["SLURM_NTASKS"]) == ("tune", "mill", "1")


# --- output files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("out.log", "/w/out.log"),
        ("/abs/out.log", "/abs/out.log"),
        ("%j.log", "/w/1_2.log"),
        ("%A-%a.log", "/w/1-2.log"),
        ("%x/%u@%N.log", "/w/a_b/anna@mill.log"),
        ("100%%.log", "/w/100%.log"),
        ("%%j", "/w/%j"),
        ("%q.log", "/w/%q.log"),
        ("end%", "/w/end%"),
        ("", "/w/"),
    ],
)
def test_letters_of_output_paths(pattern: str, path: str) -> None:
    """Slurm's letters are filled in, a slash in a name makes no directory, unknown letters stay, paths are absolute."""
    one, _ = placed(task=2, name="a/b", cwd="/w")
    assert launch.output_path(pattern, one, "mill", "/w") == path


def test_a_plain_jobs_letters() -> None:
    """For a job that is no array %A is its id and %a is 0."""
    one, _ = placed()
    assert launch.output_path("%A_%a_%j", one, "mill", "/") == "/1_0_1"


def test_output_is_kept_when_no_file_is_named() -> None:
    """Without -o the log is gpuq's own, by id and restart; with -e alone only stderr goes elsewhere."""
    one, where = placed(stderr="err-%j", cwd="/w")
    assert launch.output_paths(one, PLACES) == ("/h/gpuq/logs/1.log", "/w/err-1")
    assert one.attempt is not None
    again = replace(one, attempt=replace(one.attempt, number=2), restarts=2)
    assert launch.output_paths(again, PLACES)[0] == "/h/gpuq/logs/1-restart-2.log"
    assert launch.log_path(again, PLACES, 1) == "/h/gpuq/logs/1-restart-1.log"
    assert launch.start_spec(one, where, b"", None, PLACES)["log_limit_bytes"] == 1 << 30


def test_the_node_of_a_waiting_job_is_not_guessed() -> None:
    """Before a job has a node %N stays as it is."""
    state = cluster(node("mill", "A100"))
    one = job(state, submit(state, stdout="%N.log", cwd="/w"))
    assert launch.output_paths(one, PLACES) == ("/w/%N.log", None)


# --- the command ----------------------------------------------------------------------------------------


def test_sweep_values() -> None:
    """Task N gets the N-th value of every placeholder, wherever it stands, as often as it stands there."""
    values = (("lr", ("1e-3", "1e-4", "1e-5", "1e-6")), ("seed", ("1", "2", "3", "4")))
    argv = ("train", "--lr", "{lr}", "--out={seed}-{lr}", "{other}", "{}")
    one, _ = placed(task=2, argv=argv, values=values)
    assert launch.argv_of(one) == ["train", "--lr", "1e-5", "--out=3-1e-5", "{other}", "{}"]


def test_a_value_that_looks_like_a_placeholder_is_left_alone() -> None:
    """Values are put in once: what stands in a value is never replaced again."""
    values = (("a", ("{b}",) * 4), ("b", ("{a}",) * 4))
    one, _ = placed(task=0, argv=("{a}", "{b}"), values=values)
    assert launch.argv_of(one) == ["{b}", "{a}"]


def test_sweep_values_with_a_step() -> None:
    """The position of a task follows from where its array begins and from its step."""
    state = cluster(node("mill", "A100"))
    id_ = submit(state, tasks=3, array_min=0, array_step=1, argv=("{x}",), values=(("x", ("p", "q", "r")),))
    stepped = replace(
        job(state, f"{id_}_1"), task=14,
        spec=replace(job(state, f"{id_}_1").spec, array_min=10, array_step=2),
    )  # fmt: skip
    assert launch.argv_of(stepped) == ["r"]


def test_without_a_sweep_nothing_is_replaced() -> None:
    """Braces in the command of an ordinary job or array are the program's business."""
    one, _ = placed(argv=("echo", "{x}"))
    task, _ = placed(task=1, argv=("echo", "{x}"))
    assert launch.argv_of(one) == launch.argv_of(task) == ["echo", "{x}"]


# --- visible GPUs ---------------------------------------------------------------------------------------


def test_visible_by_uuid() -> None:
    """By default GPUs are named by UUID, in the order they were given."""
    where = node("mill", "A100:4")
    held = (GpuUuid("GPU-mill-2"), GpuUuid("GPU-mill-0"))
    assert launch.visible_devices(where, held, Visible.UUID) == "GPU-mill-2,GPU-mill-0"


def test_visible_by_index_is_the_pci_order() -> None:
    """With `index` the numbers are positions by PCI address, whatever order the driver lists cards in."""
    cards = tuple(
        gpu("mill", index, "A100", pci_bus_id=f"00000000:{bus}:00.0") for index, bus in enumerate(("C1", "41", "81"))
    )
    where = node("mill", gpus=cards)
    every = tuple(card.uuid for card in cards)
    assert launch.visible_devices(where, every, Visible.INDEX) == "2,0,1"
    assert launch.visible_devices(where, every[:1], Visible.INDEX) == "2"


def test_slices_have_no_index() -> None:
    """A MIG slice can only be named by its UUID, and takes no position away from the cards."""
    cards = (
        gpu("mill", 0, "A100", pci_bus_id="0000:01", usable=False),
        gpu("mill", 1, "A100-MIG-1g.5gb", uuid=GpuUuid("MIG-1"), pci_bus_id="0000:01", parent=GpuUuid("GPU-mill-0")),
        gpu("mill", 2, "A100", pci_bus_id="0000:02"),
    )
    where = node("mill", gpus=cards)
    assert launch.visible_devices(where, (GpuUuid("MIG-1"), GpuUuid("GPU-mill-2")), Visible.INDEX) == "MIG-1,1"


# --- the whole frame ------------------------------------------------------------------------------------


def test_the_spec_is_the_protocols() -> None:
    """A start frame has every field that docs/agent-protocol.md names for `spec`, and no other."""
    text = (Path(__file__).parents[2] / "docs" / "agent-protocol.md").read_text()
    paragraph = text.partition("\n`spec`: ")[2].partition("\n## ")[0]
    one, where = placed(script=None)
    spec = launch.start_spec(one, where, SUBMITTED, b"#!/bin/sh\n", PLACES)
    missing = [name for name in spec if f"`{name}`" not in paragraph]
    assert missing == []
    words = {word for word in paragraph.split("`")[1::2] if set(word) <= set(string.ascii_lowercase + "_")}
    documented = words - {"append", "truncate", "uuid", "index", "spec"}
    assert documented <= set(spec)


def test_script_and_environment_travel_as_base64() -> None:
    """Both are bytes and survive JSON; without a script the field is null."""
    one, where = placed()
    spec = launch.start_spec(one, where, b"RAW=\xff", b"\x7fscript\0", PLACES)
    assert base64.b64decode(spec["script"]) == b"\x7fscript\0"
    assert b"RAW=\xff" in base64.b64decode(spec["environment"]).split(b"\0")
    assert launch.start_spec(one, where, b"", None, PLACES)["script"] is None


@pytest.mark.parametrize(
    ("fields", "mode", "limit"),
    [
        ({}, "append", 1 << 30),
        ({"append": False}, "append", 1 << 30),
        ({"stdout": "o"}, "append", None),
        ({"stdout": "o", "append": False}, "truncate", None),
    ],
)
def test_open_mode_and_limit(fields: dict[str, Any], mode: str, limit: int | None) -> None:
    """Kept logs are appended to and limited; a person's own file is opened as asked and never cut."""
    one, where = placed(**fields)
    spec = launch.start_spec(one, where, b"", None, PLACES)
    assert (spec["open_mode"], spec["log_limit_bytes"]) == (mode, limit)


def test_what_was_asked_is_passed_on() -> None:
    """Limits, grace, warning signal, umask and memory reach the agent as submitted."""
    one, where = placed(
        time_limit_s=60.0, grace_s=5.0, warn_signal=10, warn_before_s=20.0, warn_all=False, umask=0o077,
        memory_mib=512, visible=Visible.INDEX,
    )  # fmt: skip
    assert one.state is JobState.RUNNING
    spec = launch.start_spec(one, where, b"", None, PLACES)
    wanted = {
        "time_limit_s": 60.0, "grace_s": 5.0, "warn_signal": 10, "warn_before_s": 20.0, "warn_all": False,
        "umask": 0o077, "memory_limit_mib": 512, "visible": "index", "gpus": ["GPU-mill-0"],
    }  # fmt: skip
    assert {name: spec[name] for name in wanted} == wanted
