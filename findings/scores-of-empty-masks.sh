#!/bin/sh
# Question: what is the Dice score, and what the Jaccard index, of a true and a predicted mask that
# are both empty?
# Guess: one convention in each library: 1 (they agree), 0 (nothing was found) or NaN (0 / 0), the
# same for both scores.
# What happens: medpy says NaN for Dice and 1 for Jaccard; SciPy NaN and 1 (as a distance: 0);
# scikit-learn 0 and 0; SimpleITK infinity and the largest double.
# Seen with medpy 0.5.2, scipy 1.17.1, scikit-learn 1.9.1 and simpleitk 2.5.7.
# Why it matters: slices without an object are common. A mean over images is NaN, infinite, too low
# or right depending on the library and on which of two equivalent scores is reported.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check medpy==0.5.2 \
    simpleitk==2.5.7 scikit-learn==1.9.1 scipy==1.17.1 numpy==2.4.6
cat >find.py <<'END'
import importlib.metadata
import warnings

import numpy as np
import SimpleITK
from medpy.metric import binary
from scipy.spatial import distance
from sklearn.metrics import f1_score, jaccard_score

warnings.simplefilter("ignore")
names = ("medpy", "scipy", "scikit-learn", "simpleitk")
print(*(f"{name} {importlib.metadata.version(name)}" for name in names))
mask = np.zeros((4, 4), bool)
flat = mask.ravel()
image = SimpleITK.GetImageFromArray(mask.astype(np.uint8))
overlap = SimpleITK.LabelOverlapMeasuresImageFilter()
overlap.Execute(image, image)
rows = {
    "medpy": (binary.dc(mask, mask), binary.jc(mask, mask)),
    "SciPy, 1 minus distance": (1 - distance.dice(flat, flat), 1 - distance.jaccard(flat, flat)),
    "scikit-learn": (f1_score(flat, flat), jaccard_score(flat, flat)),
    "SimpleITK": (overlap.GetDiceCoefficient(), overlap.GetJaccardCoefficient()),
}
for name, (dice, jaccard) in rows.items():
    print(f"{name}: Dice {float(dice)}, Jaccard {float(jaccard)}")
END
venv/bin/python find.py >seen
cat seen
diff - seen <<'END'
medpy 0.5.2 scipy 1.17.1 scikit-learn 1.9.1 simpleitk 2.5.7
medpy: Dice nan, Jaccard 1.0
SciPy, 1 minus distance: Dice nan, Jaccard 1.0
scikit-learn: Dice 0.0, Jaccard 0.0
SimpleITK: Dice inf, Jaccard 1.7976931348623157e+308
END
