#!/bin/sh
# Question: does a mask come back from COCO's polygons, if cv2.findContours makes the polygon and
# pycocotools decodes it?
# Guess: yes, with each pixel.
# What happens: it comes back smaller, and moved to the upper left by half a pixel: a square loses its
# right and lower outline. OpenCV's contour runs through the centres of the outermost pixels, and
# for COCO, pixel 0 reaches from 0 to 1. cv2.fillPoly returns the mask from the same contour.
# Seen with pycocotools 2.0.11 and opencv-python-headless 5.0.0.93.
# Why it matters: converters of masks to COCO work in this way. A model that is trained on masks and
# scored on such polygons, or the reverse, cannot reach an IoU of 1 on small objects. Store masks as
# run lengths, or draw polygons with the package that made them.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check pycocotools==2.0.11 \
    opencv-python-headless==5.0.0.93 numpy==2.4.6
cat >find.py <<'END'
import importlib.metadata

import cv2
import numpy as np
from pycocotools import mask as coco

names = ("pycocotools", "opencv-python-headless")
print(*(f"{name} {importlib.metadata.version(name)}" for name in names))
rows, columns = np.mgrid[:40, :40]
for radius in (3, 6, 12):
    mask = (np.hypot(rows - 20, columns - 20) < radius + 0.5).astype(np.uint8)
    (contour,), _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    polygon = contour.ravel().astype(float).tolist()
    decoded = coco.decode(coco.merge(coco.frPyObjects([polygon], 40, 40)))
    filled = cv2.fillPoly(np.zeros_like(mask), [contour], 1)
    runs = coco.decode(coco.encode(np.asfortranarray(mask)))
    same = (filled == mask).all() and (runs == mask).all()
    iou = (mask & decoded).sum() / (mask | decoded).sum()
    print(f"radius {radius}: {mask.sum()} pixels, polygon {decoded.sum()}, IoU {iou:.2f};", end=" ")
    print(f"fillPoly and run lengths {'equal' if same else 'differ'}")
END
venv/bin/python find.py >seen
cat seen
diff - seen <<'END'
pycocotools 2.0.11 opencv-python-headless 5.0.0.93
radius 3: 37 pixels, polygon 28, IoU 0.67; fillPoly and run lengths equal
radius 6: 137 pixels, polygon 118, IoU 0.82; fillPoly and run lengths equal
radius 12: 489 pixels, polygon 454, IoU 0.90; fillPoly and run lengths equal
END
