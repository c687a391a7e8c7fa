#!/bin/sh
# Question: which shape has a TIFF stack of grey pages when skimage.io.imread reads it?
# Guess: (pages, height, width), for any number of pages.
# What happens: for 3 and 4 pages (height, width, pages); for 2, 5 and all others (pages, height,
# width). The function takes three or four pages for the channels of a colour image, whatever the
# file says. imageio, through which it reads, returns the pages first.
# Seen with scikit-image 0.26.0.
# Why it matters: a script that works for a stack of ten slices takes a stack of three as one RGB
# image, and its first image is a column of pixels.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check scikit-image==0.26.0 \
    tifffile==2026.3.3 imageio==2.38.1 numpy==2.4.6
cat >find.py <<'END'
import imageio.v3
import numpy as np
import skimage
import skimage.io
import tifffile

print("scikit-image", skimage.__version__)
for pages in (2, 3, 4, 5):
    stack = np.zeros((pages, 8, 10), np.uint8)
    tifffile.imwrite("stack.tif", stack, photometric="minisblack")
    shapes = skimage.io.imread("stack.tif").shape, imageio.v3.imread("stack.tif").shape
    print(f"{pages} pages: skimage.io.imread {shapes[0]}, imageio.v3.imread {shapes[1]}")
END
venv/bin/python find.py >seen
cat seen
diff - seen <<'END'
scikit-image 0.26.0
2 pages: skimage.io.imread (2, 8, 10), imageio.v3.imread (2, 8, 10)
3 pages: skimage.io.imread (8, 10, 3), imageio.v3.imread (3, 8, 10)
4 pages: skimage.io.imread (8, 10, 4), imageio.v3.imread (4, 8, 10)
5 pages: skimage.io.imread (5, 8, 10), imageio.v3.imread (5, 8, 10)
END
