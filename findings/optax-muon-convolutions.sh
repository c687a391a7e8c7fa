#!/bin/sh
# Question: with which learning rate does optax.contrib.muon(0.02) train what is no matrix?
# Guess: with a default of its own that suits Adam, such as 0.001.
# What happens: with Muon's 0.02, by Adam with Nesterov momentum. All kernels of convolutions are
# among it, since they have four dims. In a convolutional network, Muon trains dense layers only.
# Seen with optax 0.2.8 on jax 0.10.2.
# Why it matters: recipes with Muon set 0.02 and more, which is 20 times the usual rate of Adam. Set
# adam_learning_rate, and muon_weight_dimension_numbers for kernels of convolutions.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check optax==0.2.8 jax==0.10.2 \
    numpy==2.4.6
cat >find.py <<'END'
import importlib.metadata

import jax
import jax.numpy as jnp
import optax

print(*(f"{name} {importlib.metadata.version(name)}" for name in ("optax", "jax")))
params = {"dense": jnp.ones((8, 16)), "convolution": jnp.ones((3, 3, 8, 16)), "bias": jnp.ones(16)}
grads = jax.tree.map(lambda leaf: jax.random.normal(jax.random.key(0), leaf.shape), params)


def first_update(optimizer):
    return optimizer.update(grads, optimizer.init(params), params)[0]


muon = first_update(optax.contrib.muon(0.02))
adam = first_update(optax.adam(0.02, nesterov=True))
for name in params:
    equal = bool(jnp.allclose(muon[name], adam[name], rtol=1e-5))
    print(f"{name}: {'as by Adam with 0.02' if equal else 'by Muon'}")
END
JAX_PLATFORMS=cpu venv/bin/python find.py >seen
cat seen
diff - seen <<'END'
optax 0.2.8 jax 0.10.2
dense: by Muon
convolution: as by Adam with 0.02
bias: as by Adam with 0.02
END
