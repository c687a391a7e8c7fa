#!/bin/sh
# Question: does skimage.segmentation.clear_border remove every object that touches the border from
# an image of labels?
# Guess: yes, all pixels of its label.
# What happens: the labels are separated into connected pieces first. A cell of two pieces, of which
# one touches the border, keeps the other.
# Seen with scikit-image 0.26.0.
# Why it matters: cells that another cell covers in the middle, or that a network cut in two, are
# neither removed nor whole: counts are right, areas are too small. Remove labels by np.isin(labels,
# np.unique(border)).
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check scikit-image==0.26.0 \
    numpy==2.4.6
cat >find.py <<'END'
import numpy as np
import skimage
import skimage.segmentation

print("scikit-image", skimage.__version__)
labels = np.array(
    [
        [1, 1, 0, 0, 0, 0],
        [0, 0, 0, 2, 2, 0],
        [0, 1, 1, 2, 2, 0],
        [0, 1, 1, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
    ]
)
print("label 1 has 2 pieces, one at the border:")
print(labels)
print("skimage.segmentation.clear_border:")
print(skimage.segmentation.clear_border(labels))
END
venv/bin/python find.py >seen
cat seen
diff - seen <<'END'
scikit-image 0.26.0
label 1 has 2 pieces, one at the border:
[[1 1 0 0 0 0]
 [0 0 0 2 2 0]
 [0 1 1 2 2 0]
 [0 1 1 0 0 0]
 [0 0 0 0 0 0]]
skimage.segmentation.clear_border:
[[0 0 0 0 0 0]
 [0 0 0 2 2 0]
 [0 1 1 2 2 0]
 [0 1 1 0 0 0]
 [0 0 0 0 0 0]]
END
