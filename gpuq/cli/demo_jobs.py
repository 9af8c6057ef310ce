"""The jobs of `gpuq demo`, as what a person would type after `gpuq submit`. Imports nothing.

One thing to know: they are ordinary uses of the examples; only `--pause` makes them last long enough to be watched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

_TRAIN: Final = ("python3", "train_numpy.py")
_PACE: Final = ("--pause", "0.02")


class Hardware(NamedTuple):
    """What the demo may ask for."""

    gpus: int
    largest: str  # --gpus of the job that wants several GPUs of one type
    pair: str  # --gpus of the job that wants two


SIMULATED: Final = Hardware(gpus=8, largest="a100:4", pair="v100:2")


def real_hardware(gpus: int) -> Hardware:
    """The demo on `gpus` real GPUs: its large jobs take what there is."""
    return Hardware(gpus=gpus, largest=str(min(4, gpus)), pair=str(min(2, gpus)))


def submit_all(submit: Callable[[list[str]], str], hardware: Hardware) -> list[str]:
    """Submit the demo's jobs in the order a day brings them; their ids (an array has one)."""
    ids = [
        submit(["-J", "warm-up", "--", *_TRAIN, "--steps", "80", *_PACE]),
        submit(["-J", "pretrain", "--gpus", hardware.largest, "--", *_TRAIN, "--steps", "160", *_PACE]),
        submit(["-J", "pair", "--gpus", hardware.pair, "--", *_TRAIN, "--steps", "120", *_PACE]),
        submit(["slurm_train.sbatch", *_PACE]),
        submit(["seeds.sh", "--steps", "100", *_PACE]),
        submit(["-J", "sweep", "--sweep", "lr=0.03,0.1,0.3", "--", *_TRAIN, "--lr", "{lr}", "--steps", "80", *_PACE]),
        submit(["-J", "too-long", "-t", "0:02", "--", *_TRAIN, "--steps", "100000", *_PACE]),
    ]
    return [*ids, *_chain(submit), *_failing(submit)]


def _chain(submit: Callable[[list[str]], str]) -> list[str]:
    prepare = submit(["-J", "prepare", "--gpus", "0", "--", "sh", "-c", "sleep 1; echo prepared the data"])
    train = submit(["-J", "finetune", "-d", f"afterok:{prepare}", "--", *_TRAIN, "--steps", "80", *_PACE])
    evaluate = submit(["-J", "evaluate", "-d", f"afterok:{train}", "--", "sh", "-c", "echo evaluated the model"])
    return [prepare, train, evaluate]


def _failing(submit: Callable[[list[str]], str]) -> list[str]:
    diverges = submit(["-J", "diverges", "--", *_TRAIN, "--fail-at", "60", *_PACE])
    return [diverges, submit(["-J", "after-it", "-d", f"afterok:{diverges}", "--", *_TRAIN])]
