#!/bin/sh
# Question: which parameters of flax's nnx.MultiHeadAttention does optax.contrib.muon train with
# Muon?
# Guess: the kernels of query, key and value, which are matrices; biases go to Adam, as the
# documentation says of everything that is no matrix.
# What happens: the other way round. Muon takes what has two dims. The kernels have three (features,
# heads, size of a head) and get Adam; the biases have two (heads, size of a head) and are made
# orthogonal.
# Seen with optax 0.2.8 and flax 0.12.8.
# Why it matters: a comparison of Muon with AdamW on a vision transformer compares two kinds of Adam
# on its attention, and updates biases in a way that nobody meant. muon_weight_dimension_numbers
# says what is a matrix.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check optax==0.2.8 flax==0.12.8 \
    jax==0.10.2 numpy==2.4.6
cat >find.py <<'END'
import importlib.metadata

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

print(*(f"{name} {importlib.metadata.version(name)}" for name in ("optax", "flax")))
layer = nnx.MultiHeadAttention(num_heads=4, in_features=16, decode=False, rngs=nnx.Rngs(0))
params = nnx.to_pure_dict(nnx.state(layer, nnx.Param))
moments = optax.contrib.muon(1.0).init(params).inner_states
for path, array in jax.tree_util.tree_leaves_with_path(params):
    name = "/".join(key.key for key in path)
    node = moments["muon"].inner_state[0].mu
    for key in path:
        node = node[key.key]
    takes = "Adam" if isinstance(node, optax.MaskedNode) else "Muon"
    print(f"{name} {array.shape}: {takes}")
END
JAX_PLATFORMS=cpu venv/bin/python find.py >seen
cat seen
diff - seen <<'END'
optax 0.2.8 flax 0.12.8
key/bias (4, 4): Muon
key/kernel (16, 4, 4): Adam
out/bias (16,): Adam
out/kernel (4, 4, 16): Adam
query/bias (4, 4): Muon
query/kernel (16, 4, 4): Adam
value/bias (4, 4): Muon
value/kernel (16, 4, 4): Adam
END
