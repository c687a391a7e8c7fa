#!/bin/sh
# Question: which way does an array of rows and columns turn when it is rotated by +30 degrees?
# Guess: counter-clockwise as seen on a screen, in every library that works on images.
# What happens: SciPy, scikit-image and kornia's rotate and RandomRotation turn counter-clockwise;
# kornia's RandomAffine and MONAI's Rotate turn clockwise. In kornia two augmentations of one
# package disagree.
# Seen with kornia 0.9.0, monai 1.6.1, scipy 1.17.1 and scikit-image 0.26.0.
# Why it matters: random angles hide it. It shows where an angle is undone: test-time augmentation,
# labels of orientation, or a mask that is rotated by another library than its image.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check kornia==0.9.0 monai==1.6.1 \
    torch==2.13.0 scikit-image==0.26.0 scipy==1.17.1 numpy==2.4.6
cat >find.py <<'END'
import importlib.metadata
import math
import warnings

import numpy as np
import scipy.ndimage
import skimage.transform
import torch

warnings.simplefilter("ignore")
import kornia
import monai.transforms

names = ("kornia", "monai", "scipy", "scikit-image")
print(*(f"{name} {importlib.metadata.version(name)}" for name in names))
image = np.zeros((21, 21), np.float32)
image[9:12, 17:20] = 1  # a mark at the right
tensor = torch.tensor(image)[None, None]
augment = kornia.augmentation
results = {
    "scipy.ndimage.rotate": scipy.ndimage.rotate(image, 30, reshape=False),
    "skimage.transform.rotate": skimage.transform.rotate(image, 30),
    "kornia.geometry.rotate": kornia.geometry.rotate(tensor, torch.tensor([30.0])),
    "kornia RandomRotation": augment.RandomRotation((30.0, 30.0), p=1.0)(tensor),
    "kornia RandomAffine": augment.RandomAffine((30.0, 30.0), p=1.0)(tensor),
    "monai.transforms.Rotate": monai.transforms.Rotate(math.radians(30))(tensor[0]),
}
for name, result in results.items():
    rows = np.nonzero(np.asarray(result).reshape(21, 21) > 0.3)[0]
    print(f"{name}: {'counter-clockwise' if rows.mean() < 10 else 'clockwise'}")
END
venv/bin/python find.py >seen
cat seen
diff - seen <<'END'
kornia 0.9.0 monai 1.6.1 scipy 1.17.1 scikit-image 0.26.0
scipy.ndimage.rotate: counter-clockwise
skimage.transform.rotate: counter-clockwise
kornia.geometry.rotate: counter-clockwise
kornia RandomRotation: counter-clockwise
kornia RandomAffine: clockwise
monai.transforms.Rotate: clockwise
END
