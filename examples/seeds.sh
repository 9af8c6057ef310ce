#!/bin/sh
# One training for each of eight seeds, at most four at once. Queue it with:
#
#     gpuq submit seeds.sh
#
# The lines below are options of `gpuq submit`; the command line beats them.
#GPUQ --job-name seeds
#GPUQ --gpus 1
#GPUQ --array 0-7%4
#GPUQ --time 10m

exec python3 train_numpy.py --seed "$GPUQ_ARRAY_TASK_ID" "$@"
