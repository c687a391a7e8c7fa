#!/bin/sh
# Question: three images of one size are written to a TIFF file by imwrite(..., append=True). What
# does imread return?
# Guess: a stack of three pages.
# What happens: the first image alone. tifffile describes each call as a series of its own, imread
# reads the first series, and imageio, which asks tifffile, does the same. Pillow counts three
# pages.
# Seen with tifffile 2026.3.3 and imageio 2.38.1.
# Why it matters: a loop that appends masks page by page makes a file of which only the first page
# is trained on, and image and mask stacks written in different ways no longer match. Write the
# stack in one call, or give metadata=None to each.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check tifffile==2026.3.3 \
    imageio==2.38.1 pillow==13.0.0 numpy==2.4.6
cat >find.py <<'END'
import imageio.v3
import imageio
import numpy as np
import tifffile
from PIL import Image

print("tifffile", tifffile.__version__, "imageio", imageio.__version__)
for options in ({}, {"metadata": None}):
    name = f"stack-{len(options)}.tif"
    for number in range(3):
        tifffile.imwrite(name, np.full((4, 5), number, np.uint8), append=True, **options)
    print(f"append=True, {options}:")
    print("  tifffile.imread", tifffile.imread(name).shape)
    print("  imageio.v3.imread", imageio.v3.imread(name).shape)
    print("  pages in Pillow", Image.open(name).n_frames)
END
venv/bin/python find.py >seen
cat seen
diff - seen <<'END'
tifffile 2026.3.3 imageio 2.38.1
append=True, {}:
  tifffile.imread (4, 5)
  imageio.v3.imread (4, 5)
  pages in Pillow 3
append=True, {'metadata': None}:
  tifffile.imread (3, 4, 5)
  imageio.v3.imread (3, 4, 5)
  pages in Pillow 3
END
