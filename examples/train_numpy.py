#!/usr/bin/env python3
"""A plain training script: logistic regression by gradient descent on data it makes itself.

    gpuq submit --gpus 1 -- python3 train_numpy.py --steps 500 --lr 0.3

What a queue needs of it is what any training script should have: it keeps a checkpoint in GPUQ_CHECKPOINT_DIR,
goes on from there when it is started again (GPUQ_RESTART_COUNT says how often that was), and on SIGTERM saves and
ends. Without gpuq it runs as well. numpy is used when it is there; otherwise plain Python does the same sums.
"""

import argparse
import json
import math
import os
import random
import signal
import sys
import time

try:
    import numpy
except ImportError:
    numpy = None

FEATURES = 8


def parse_options():
    options = argparse.ArgumentParser(description="Train a small model; made to be queued.")
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--lr", type=float, default=0.3)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--samples", type=int, default=256)
    options.add_argument("--pause", type=float, default=0.0, help="seconds of rest after each step")
    options.add_argument("--fail-at", type=int, help="end with exit code 3 at this step, as a bad run would")
    return options.parse_args()


def make_data(seed, samples):
    """Points around two centres, with their labels 0 and 1."""
    source = random.Random(seed)
    centre = [source.gauss(0, 1) for _ in range(FEATURES)]
    labels = [index % 2 for index in range(samples)]
    points = [[source.gauss(c if label else -c, 1.5) for c in centre] for label in labels]
    return points, labels


def step_numpy(weights, points, labels, lr):
    """One step of gradient descent; the new weights and the loss before the step."""
    chance = 1 / (1 + numpy.exp(-(points @ weights)))
    loss = -numpy.mean(numpy.log(numpy.where(labels == 1, chance, 1 - chance) + 1e-12))
    return weights - lr * points.T @ (chance - labels) / len(labels), float(loss)


def step_plain(weights, points, labels, lr):
    """The same without numpy."""
    gradient = [0.0] * FEATURES
    loss = 0.0
    for point, label in zip(points, labels, strict=True):
        score = sum(weight * value for weight, value in zip(weights, point, strict=True))
        chance = 1 / (1 + math.exp(-max(-60.0, min(60.0, score))))
        loss -= math.log((chance if label else 1 - chance) + 1e-12)
        for index, value in enumerate(point):
            gradient[index] += (chance - label) * value
    count = len(labels)
    return [weight - lr * slope / count for weight, slope in zip(weights, gradient, strict=True)], loss / count


def load_checkpoint(path):
    """Step and weights to go on from; zeros when there is no checkpoint."""
    if path is None or not os.path.exists(path):
        return 0, [0.0] * FEATURES
    with open(path, encoding="utf-8") as stream:
        saved = json.load(stream)
    return saved["step"], saved["weights"]


def save_checkpoint(path, step, weights):
    """Written beside and renamed over, so that there is a whole checkpoint at any moment."""
    if path is None:
        return
    with open(path + ".new", "w", encoding="utf-8") as stream:
        json.dump({"step": step, "weights": [float(weight) for weight in weights]}, stream)
    os.replace(path + ".new", path)


def checkpoint_path():
    directory = os.environ.get("GPUQ_CHECKPOINT_DIR")
    if directory is None:
        return None
    os.makedirs(directory, exist_ok=True)
    return os.path.join(directory, "checkpoint.json")


def train(options, path):
    """Train to the last step, or until told to stop; returns the exit code."""
    told_to_stop = []
    signal.signal(signal.SIGTERM, lambda number, frame: told_to_stop.append(number))
    first, weights = load_checkpoint(path)
    if first:
        print(f"resumed at step {first} (restart {os.environ.get('GPUQ_RESTART_COUNT', '0')})", flush=True)
    points, labels = make_data(options.seed, options.samples)
    one_step = step_plain
    if numpy is not None:
        one_step = step_numpy
        points, labels, weights = numpy.array(points), numpy.array(labels), numpy.array(weights)
    loss = math.nan
    for step in range(first, options.steps):
        if told_to_stop:
            save_checkpoint(path, step, weights)
            print(f"told to stop: saved step {step}", flush=True)
            return 128 + told_to_stop[0]
        if step == options.fail_at:
            print(f"step {step}: loss is nan, giving up", file=sys.stderr, flush=True)
            return 3
        weights, loss = one_step(weights, points, labels, options.lr)
        if step % 50 == 0:
            print(f"step {step}: loss {loss:.4f}", flush=True)
            save_checkpoint(path, step, weights)
        time.sleep(options.pause)
    save_checkpoint(path, options.steps, weights)
    print(f"done: seed {options.seed}, lr {options.lr}, {options.steps} steps, loss {loss:.4f}", flush=True)
    return 0


def main():
    options = parse_options()
    means = "numpy" if numpy else "plain Python (numpy is not installed)"
    print(f"training with {means} on {os.environ.get('CUDA_VISIBLE_DEVICES') or 'no GPU'}", flush=True)
    return train(options, checkpoint_path())


if __name__ == "__main__":
    sys.exit(main())
