#!/bin/sh
# Three jobs in a row, and one that runs only if the training fails. Start it with:
#
#     sh pipeline.sh
#
# --parsable prints the id and nothing else, for the next line to use.
set -eu

prepare=$(gpuq submit --parsable --job-name prepare --gpus 0 -- sh -c 'echo prepared the data')
train=$(gpuq submit --parsable --job-name train --gpus 1 --dependency "afterok:$prepare" -- \
    python3 train_numpy.py --steps 100)
evaluate=$(gpuq submit --parsable --job-name evaluate --gpus 1 --dependency "afterok:$train" -- \
    sh -c 'echo evaluated the model')
# When the training succeeds this one can never start: gpuq cancels it and says DependencyNeverSatisfied.
gpuq submit --quiet --job-name alarm --gpus 0 --dependency "afternotok:$train" -- \
    sh -c 'echo the training failed'

echo "waiting for $prepare, $train and $evaluate"
gpuq wait "$prepare" "$train" "$evaluate"
gpuq logs "$evaluate"
