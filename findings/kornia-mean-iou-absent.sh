#!/bin/sh
# Question: which IoU does kornia.metrics.mean_iou give a class that is neither in the truth nor in
# the prediction?
# Guess: 0 or NaN, so that an absent class is either seen to be missing or left out.
# What happens: 1. The more classes a model declares and an image does not show, the better its
# mean. A random guess between two classes has 0.34 with two classes declared and 0.94 with 21.
# Seen with kornia 0.9.0.
# Why it matters: an image of Pascal VOC shows few of its 21 classes. A mean of this function over
# images measures mostly what is not in them.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check kornia==0.9.0 \
    torch==2.13.0 numpy==2.4.6
cat >find.py <<'END'
import importlib.metadata

import kornia
import torch

print("kornia", importlib.metadata.version("kornia"))
generator = torch.Generator().manual_seed(0)
truth, guess = torch.randint(0, 2, (2, 1, 64, 64), generator=generator)
for classes in (2, 3, 21):
    scores = kornia.metrics.mean_iou(guess, truth, classes)[0]
    print(f"{classes} classes: the first {[round(s.item(), 2) for s in scores[:3]]}, "
          f"mean {scores.mean().item():.2f}")
END
venv/bin/python find.py >seen
cat seen
diff - seen <<'END'
kornia 0.9.0
2 classes: the first [0.33, 0.35], mean 0.34
3 classes: the first [0.33, 0.35, 1.0], mean 0.56
21 classes: the first [0.33, 0.35, 1.0], mean 0.94
END
