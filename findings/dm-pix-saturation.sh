#!/bin/sh
# Question: which grey does dm_pix.adjust_saturation(image, 0) make of a colour?
# Guess: its luminance, so that blue becomes dark and yellow bright, as in Pillow and torchvision.
# What happens: the largest of red, green and blue. Pure red, green, blue, yellow and white all
# become white. Pillow's ImageEnhance.Color gives the luminance.
# Seen with dm-pix 0.4.5 on jax 0.10.2, and Pillow 13.0.0.
# Why it matters: colour jitter is often ported with its numbers. With this formula a smaller
# saturation also makes an image brighter and removes edges between colours, which with the other
# formula survive.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check dm-pix==0.4.5 jax==0.10.2 \
    pillow==13.0.0 numpy==2.4.6
cat >find.py <<'END'
import importlib.metadata

import dm_pix
import jax.numpy as jnp
import numpy as np
from PIL import Image, ImageEnhance

print(*(f"{name} {importlib.metadata.version(name)}" for name in ("dm-pix", "jax", "pillow")))
colours = {
    "red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "yellow": (255, 255, 0),
    "white": (255, 255, 255),
}
pixels = np.array([[*colours.values()]], np.uint8)
ours = dm_pix.adjust_saturation(jnp.asarray(pixels / 255.0), 0.0)
theirs = np.asarray(ImageEnhance.Color(Image.fromarray(pixels)).enhance(0.0))
for index, name in enumerate(colours):
    grey = [round(float(value) * 255) for value in ours[0, index]]
    print(f"{name}: dm-pix {grey}, pillow {theirs[0, index].tolist()}")
END
JAX_PLATFORMS=cpu venv/bin/python find.py >seen
cat seen
diff - seen <<'END'
dm-pix 0.4.5 jax 0.10.2 pillow 13.0.0
red: dm-pix [255, 255, 255], pillow [76, 76, 76]
green: dm-pix [255, 255, 255], pillow [150, 150, 150]
blue: dm-pix [255, 255, 255], pillow [29, 29, 29]
yellow: dm-pix [255, 255, 255], pillow [226, 226, 226]
white: dm-pix [255, 255, 255], pillow [255, 255, 255]
END
