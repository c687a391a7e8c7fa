#!/bin/sh
# Question: what does Orbax's CheckpointManager call the best step, and what does it delete, when
# the metric of one step was not a number?
# Guess: NaN counts as the worst value, or the manager raises an error.
# What happens: the order is that of a sort that NaN has disturbed. best_step() names a step that is
# worse than an earlier one, or the step of NaN itself, and max_to_keep deletes the best checkpoint.
# Seen with orbax-checkpoint 0.12.8.
# Why it matters: one bad evaluation, say of an empty class, is enough to lose the best weights of a
# run. Give best_fn a value that is always finite.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check orbax-checkpoint==0.12.8 \
    jax==0.10.2 numpy==2.4.6
cat >find.py <<'END'
import importlib.metadata
import pathlib

import numpy as np
import orbax.checkpoint as ocp

print("orbax-checkpoint", importlib.metadata.version("orbax-checkpoint"))


def manager(name, accuracies, keep=None):
    options = ocp.CheckpointManagerOptions(
        best_fn=lambda metrics: metrics["accuracy"], best_mode="max", max_to_keep=keep
    )
    made = ocp.CheckpointManager(pathlib.Path(name).absolute(), options=options)
    for step, accuracy in enumerate(accuracies):
        weights = ocp.args.StandardSave({"weights": np.ones(1)})
        made.save(step, args=weights, metrics={"accuracy": accuracy})
        made.wait_until_finished()
    return made


nan = float("nan")
for number, accuracies in enumerate([[0.9, 0.8, 0.7], [0.9, nan, 0.7], [0.8, 0.9, nan]]):
    best = manager(f"best-{number}", accuracies).best_step()
    print(f"accuracies {accuracies}: the best step is {best}")
kept = manager("kept", [0.9, nan, 0.8, 0.7], keep=2)
print(f"accuracies [0.9, nan, 0.8, 0.7], max_to_keep=2: kept are {kept.all_steps()}")
END
JAX_PLATFORMS=cpu venv/bin/python find.py >seen
cat seen
diff - seen <<'END'
orbax-checkpoint 0.12.8
accuracies [0.9, 0.8, 0.7]: the best step is 0
accuracies [0.9, nan, 0.7]: the best step is 2
accuracies [0.8, 0.9, nan]: the best step is 2
accuracies [0.9, nan, 0.8, 0.7], max_to_keep=2: kept are [2, 3]
END
