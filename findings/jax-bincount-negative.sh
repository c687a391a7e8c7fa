#!/bin/sh
# Question: where does jnp.bincount count a label of -1, the usual mark of a pixel to be ignored?
# Guess: nowhere, as JAX drops labels that are too large; NumPy raises an error.
# What happens: in class 0. jax.ops.segment_sum leaves -1 out, jax.nn.one_hot makes a row of zeros
# of it, and counts.at[labels].add(1) counts it in the last class.
# Seen with jax 0.10.2.
# Why it matters: a confusion matrix or class weights made by bincount take every ignored pixel as
# background, and the figures look plausible. Mask such labels first, or add them with mode="drop"
# after mapping them to a large number.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check jax==0.10.2 numpy==2.4.6
cat >find.py <<'END'
import importlib.metadata

import jax
import jax.numpy as jnp
import numpy as np

print("jax", importlib.metadata.version("jax"))
labels = jnp.array([-1, -1, 1, 7])  # 3 classes
ones = jnp.ones(4, int)
print("jnp.bincount       ", jnp.bincount(labels, length=3))
print("jax.ops.segment_sum", jax.ops.segment_sum(ones, labels, 3))
print("sum of jax.nn.one_hot", jax.nn.one_hot(labels, 3).sum(0))
print("counts.at[].add    ", jnp.zeros(3, int).at[labels].add(1))
try:
    np.bincount(np.asarray(labels))
except ValueError as error:
    print("np.bincount        ", error)
END
JAX_PLATFORMS=cpu venv/bin/python find.py >seen
cat seen
diff - seen <<'END'
jax 0.10.2
jnp.bincount        [2 1 0]
jax.ops.segment_sum [0 1 0]
sum of jax.nn.one_hot [0. 1. 0.]
counts.at[].add     [0 1 2]
np.bincount         'list' argument must have no negative elements
END
