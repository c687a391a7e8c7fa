#!/bin/sh
# Question: does a mask whose palette indices are class numbers keep them in a GIF file?
# Guess: yes. GIF is lossless and stores indices, and PNG, TIFF and BMP keep them.
# What happens: for fewer than 512x512 pixels Pillow renumbers the indices that occur: 0, 1, 2 stay,
# while 0, 2 become 0, 1. Each file has its own numbers; larger files keep theirs.
# Seen with pillow 13.0.0; 9.5.0 to 12.0.0 do the same.
# Why it matters: masks in which a class is missing move to another class, and only those. The
# colours stay right, so that a viewer shows nothing. save(..., optimize=False) keeps the numbers.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check pillow==13.0.0 \
    numpy==2.4.6
cat >find.py <<'END'
import PIL
import numpy as np
from PIL import Image

print("pillow", PIL.__version__)


def read_again(classes, name, side=8, **options):
    mask = Image.new("P", (side, side))
    mask.putdata([classes[n % len(classes)] for n in range(side * side)])
    mask.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])  # 0 black, 1 red, 2 green
    mask.save(name, **options)
    return np.unique(np.asarray(Image.open(name))).tolist()


for classes in ([0, 1, 2], [0, 2], [2]):
    found = {name: read_again(classes, name) for name in ("mask.gif", "mask.png", "mask.tif")}
    print(f"{classes}: {found}")
print("[0, 2], 600x600:", read_again([0, 2], "mask.gif", 600))
print("[0, 2], optimize=False:", read_again([0, 2], "mask.gif", optimize=False))
END
venv/bin/python find.py >seen
cat seen
diff - seen <<'END'
pillow 13.0.0
[0, 1, 2]: {'mask.gif': [0, 1, 2], 'mask.png': [0, 1, 2], 'mask.tif': [0, 1, 2]}
[0, 2]: {'mask.gif': [0, 1], 'mask.png': [0, 2], 'mask.tif': [0, 2]}
[2]: {'mask.gif': [0], 'mask.png': [2], 'mask.tif': [2]}
[0, 2], 600x600: [0, 2]
[0, 2], optimize=False: [0, 2]
END
