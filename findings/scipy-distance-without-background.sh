#!/bin/sh
# Question: what is the distance to the background in a mask that has no background, such as a tile
# inside a large cell?
# Guess: infinity everywhere, or an error.
# What happens: SciPy's distance_transform_edt measures to a pixel that is not there, one above the
# upper left corner, so that the values rise from 1 there to the far corner. scikit-image's
# isotropic_erosion, which builds on it, cuts that corner off a full mask. SciPy's
# distance_transform_cdt says -1, OpenCV the largest float.
# Seen with scipy 1.17.1, scikit-image 0.26.0 and opencv 5.0.0.
# Why it matters: border weights, distance maps and eroded seeds of cells get a gradient from one
# corner of just those tiles, which looks like a plausible map.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check scipy==1.17.1 \
    scikit-image==0.26.0 opencv-python-headless==5.0.0.93 numpy==2.4.6
cat >find.py <<'END'
import cv2
import numpy as np
import scipy
import scipy.ndimage
import skimage
import skimage.morphology

print("scipy", scipy.__version__, "scikit-image", skimage.__version__, "opencv", cv2.__version__)
full = np.ones((4, 4), bool)
print("scipy.ndimage.distance_transform_edt:")
print(scipy.ndimage.distance_transform_edt(full).round(2))
_, nearest = scipy.ndimage.distance_transform_edt(full, return_indices=True)
print("nearest background pixel of all:", np.unique(nearest.reshape(2, -1), axis=1).T.tolist())
print("scipy.ndimage.distance_transform_cdt:", scipy.ndimage.distance_transform_cdt(full)[0])
print("cv2.distanceTransform:", cv2.distanceTransform(full.astype(np.uint8), cv2.DIST_L2, 5)[0])
print("skimage.morphology.isotropic_erosion by 2:")
print(skimage.morphology.isotropic_erosion(full, 2).astype(int))
print("skimage.morphology.erosion by a disk of 2:")
print(skimage.morphology.erosion(full, skimage.morphology.disk(2)).astype(int))
END
venv/bin/python find.py >seen
cat seen
diff - seen <<'END'
scipy 1.17.1 scikit-image 0.26.0 opencv 5.0.0
scipy.ndimage.distance_transform_edt:
[[1.   1.41 2.24 3.16]
 [2.   2.24 2.83 3.61]
 [3.   3.16 3.61 4.24]
 [4.   4.12 4.47 5.  ]]
nearest background pixel of all: [[-1, 0]]
scipy.ndimage.distance_transform_cdt: [-1 -1 -1 -1]
cv2.distanceTransform: [3.4028235e+38 3.4028235e+38 3.4028235e+38 3.4028235e+38]
skimage.morphology.isotropic_erosion by 2:
[[0 0 1 1]
 [0 1 1 1]
 [1 1 1 1]
 [1 1 1 1]]
skimage.morphology.erosion by a disk of 2:
[[1 1 1 1]
 [1 1 1 1]
 [1 1 1 1]
 [1 1 1 1]]
END
