#!/bin/sh
# Question: what does dm_pix.gaussian_blur make of an image in which every pixel is 1?
# Guess: the same image; near the border, the kernel is renormalized or the image is mirrored.
# What happens: pixels outside count as 0, so that the border becomes darker, and a corner keeps
# 0.36 of its brightness. SciPy's gaussian_filter and scikit-image's gaussian leave the image as is.
# Seen with dm-pix 0.4.5 on jax 0.10.2.
# Why it matters: on small training images most pixels are near a border, and a blur of random
# strength also draws a dark frame of random width. Pad the image by mirroring, blur it, and cut the
# padding off.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check dm-pix==0.4.5 jax==0.10.2 \
    scipy==1.17.1 numpy==2.4.6
cat >find.py <<'END'
import importlib.metadata

import dm_pix
import jax.numpy as jnp
import numpy as np
import scipy.ndimage

print(*(f"{name} {importlib.metadata.version(name)}" for name in ("dm-pix", "jax", "scipy")))
image = np.ones((16, 16, 3), np.float32)
blurred = np.asarray(dm_pix.gaussian_blur(jnp.asarray(image), sigma=2.0, kernel_size=9))
print(f"dm-pix: corner {blurred[0, 0, 0]:.4f}, edge {blurred[0, 8, 0]:.4f},", end=" ")
print(f"middle {blurred[8, 8, 0]:.4f}")
filtered = scipy.ndimage.gaussian_filter(image, (2, 2, 0))
print(f"scipy: corner {filtered[0, 0, 0]:.4f}, edge {filtered[0, 8, 0]:.4f},", end=" ")
print(f"middle {filtered[8, 8, 0]:.4f}")
END
JAX_PLATFORMS=cpu venv/bin/python find.py >seen
cat seen
diff - seen <<'END'
dm-pix 0.4.5 jax 0.10.2 scipy 1.17.1
dm-pix: corner 0.3625, edge 0.6021, middle 1.0000
scipy: corner 1.0000, edge 1.0000, middle 1.0000
END
