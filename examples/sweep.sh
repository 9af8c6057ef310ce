#!/bin/sh
# Every combination of three learning rates and two seeds: six jobs of one array. Start it with:
#
#     sh sweep.sh
set -eu

array=$(gpuq submit --parsable --job-name sweep --gpus 1 --sweep lr=0.03,0.1,0.3 --sweep seed=1,2 -- \
    python3 train_numpy.py --steps 100 --lr '{lr}' --seed '{seed}')

gpuq wait "$array"
for index in 0 1 2 3 4 5; do
    gpuq logs "${array}_$index" --tail 1
done
