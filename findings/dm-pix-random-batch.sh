#!/bin/sh
# Question: does dm_pix.random_flip_left_right flip the images of a batch independently?
# Guess: yes, as tf.image.random_flip_left_right does for a batch (N, H, W, C).
# What happens: one draw decides for the whole batch. The same holds for random_brightness and
# random_contrast. Of 200 batches of 16 images, none holds both flipped and unflipped images.
# Seen with dm-pix 0.4.5 on jax 0.10.2.
# Why it matters: the functions accept batches without a word, and a training run loses most of its
# augmentation: all images of a step are brighter together. Map the function over the images with a
# key for each, with jax.vmap.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check dm-pix==0.4.5 jax==0.10.2 \
    numpy==2.4.6
cat >find.py <<'END'
import functools
import importlib.metadata

import dm_pix
import jax
import jax.numpy as jnp

print(*(f"{name} {importlib.metadata.version(name)}" for name in ("dm-pix", "jax")))
image = jnp.linspace(0.2, 0.8, 4)[None, :, None] * jnp.ones((2, 4, 3))
batch = jnp.stack([image] * 16)
functions = {
    "random_flip_left_right": dm_pix.random_flip_left_right,
    "random_brightness": functools.partial(dm_pix.random_brightness, max_delta=0.1),
    "random_contrast": functools.partial(dm_pix.random_contrast, lower=0.8, upper=1.2),
}
for name, function in functions.items():
    whole, each = jax.jit(function), jax.jit(jax.vmap(function))
    mixed = [0, 0]
    for key in jax.random.split(jax.random.key(0), 200):
        for index, result in enumerate(
            (whole(key, batch), each(jax.random.split(key, 16), batch))
        ):
            mixed[index] += bool((result != result[0]).any())
    print(f"{name}: images of a batch differ in {mixed[0]} of 200 batches; with vmap in {mixed[1]}")
END
JAX_PLATFORMS=cpu venv/bin/python find.py >seen
cat seen
diff - seen <<'END'
dm-pix 0.4.5 jax 0.10.2
random_flip_left_right: images of a batch differ in 0 of 200 batches; with vmap in 200
random_brightness: images of a batch differ in 0 of 200 batches; with vmap in 200
random_contrast: images of a batch differ in 0 of 200 batches; with vmap in 200
END
