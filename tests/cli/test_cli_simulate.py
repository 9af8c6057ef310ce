"""`gpuq simulate`: what it prints, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROW_KEYS = [
    "policy", "seed", "mean_jct_s", "p50_jct_s", "p99_jct_s", "max_slowdown", "impact_factor", "lower_bound_s",
    "energy_joules", "restarts", "dropped",
]  # fmt: skip


def simulate(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpuq", "simulate", *words], capture_output=True, text=True, check=False
    )


def test_json_has_a_row_per_policy_and_seed() -> None:
    """The document is stable: schema 1 and these keys in this order; energy is null without a power model."""
    done = simulate("--policy", "sjf,fifo", "--seeds", "2", "--json")
    document = json.loads(done.stdout)
    assert document["schema"] == 1
    assert [(row["policy"], row["seed"]) for row in document["rows"]] == [
        ("sjf", 0), ("sjf", 1), ("fifo", 0), ("fifo", 1)
    ]  # fmt: skip
    assert all(list(row) == ROW_KEYS and row["energy_joules"] is None for row in document["rows"])
    assert done.stderr == ""
    assert simulate("--policy", "sjf,fifo", "--seeds", "2", "--json").stdout == done.stdout


def test_table_names_the_bound_the_load_and_what_was_left_out(tmp_path: Path) -> None:
    """A person sees the policies, best first, and what the figures rest on."""
    trace = tmp_path / "mine.csv"
    trace.write_text("submit_s,duration_s,gpus\n0,600,1\n60,600,1\n90,60,1\n90,60,64\n5,x,1\n")
    picture = tmp_path / "out.html"
    done = simulate(str(trace), "--gpus", "A100:1", "--policy", "fifo,sjf", "--plot", str(picture))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["POLICY", "sjf", "fifo"]
    assert "3 jobs of mine on 1 x A100" in done.stdout
    assert "No schedule has a mean JCT below" in done.stdout
    assert "JCT: from submission to completion" in done.stdout
    assert "IMPACT FACTOR: sum of shortest run times" in done.stdout
    assert "1 jobs fit on no set" in done.stdout
    assert "1 rows with a duration_s that is no number" in done.stdout
    assert picture.read_text().count("<svg") == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--load", "many"), "--load many"),
        (("--preemptible", "2"), "--preemptible 2 is not a number from 0 to 1"),
        (("--preemptible", "nan"), "--preemptible nan"),
        (("--preemptible", "0.5", "--fixed"), "--fixed says"),
        (("--policy", "srsf", "--preemptible", "0"), "srsf stops running jobs"),
        (("--gpus", "V100"), "TYPE:COUNT"),
        (("--policy", "magic"), "There is no policy 'magic'"),
        (("--policy", ","), "names no policy"),
        (("--policy", "srsf", "--fixed"), "srsf stops running jobs"),
        (("--seeds", "0"), "--seeds 0"),
        (("--predictions", "oracle"), "oracle"),
        (("gone.csv",), "needs --gpus"),
        (("gone.csv", "--gpus", "A100:1"), "gone.csv cannot be read"),
        (("--speeds", "gone.csv"), "gone.csv cannot be read"),
    ],
)
def test_mistakes_get_a_sentence_and_a_way_out(words: tuple[str, ...], said: str) -> None:
    """What is wrong, and on a second line what would do."""
    done = simulate(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr.splitlines()[0]
    assert len(done.stderr.splitlines()) == 2


def test_energy_and_sharing_show_in_the_table(tmp_path: Path) -> None:
    """A sacct export with energy gets a column in kWh; sharing jobs end sooner; a type of unknown draw is refused."""
    export = tmp_path / "week.txt"
    rows = "".join(f"{number}|{100 * number}|3600|gres/gpu=1|anna\n" for number in range(1, 30))
    export.write_text("JobIDRaw|Submit|ElapsedRaw|AllocTRES|User\n" + rows)
    words = (str(export), "--gpus", "A100:4", "--policy", "lucid", "--predictions", "learnt", "--energy")
    done = simulate(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].endswith("ENERGY")
    assert done.stdout.splitlines()[1].endswith("kWh")
    alone, shared = (
        json.loads(simulate(*words, "--json", *more).stdout)["rows"][0] for more in ((), ("--sharing",))
    )
    assert 0 < shared["energy_joules"] < alone["energy_joules"]
    assert shared["mean_jct_s"] < alone["mean_jct_s"]
    assert "Nobody knows how much power a K80 draws." in simulate("mixed", "--policy", "fifo", "--energy").stderr
