#!/bin/sh
# Question: what does Pillow read from an uncompressed RGB TIFF file of 16 bits whose colours lie in
# separate planes, as tifffile writes them?
# Guess: an error, since Pillow has no mode for colour of 16 bits, or the upper 8 bits, as for the
# same image with interleaved colours.
# What happens: an RGB image whose columns alternate between the lower and the upper bytes of the
# left half. The right half is not read. Mode and size are right, no warning. With compression the
# upper bytes are read.
# Seen with pillow 13.0.0; 9.5.0 to 12.0.0 do the same. tifffile reads the values.
# Why it matters: microscopes write channels as planes, and imageio, scikit-image, torchvision's
# ImageFolder and many trainers open files with Pillow. A network trains on stripes without an
# error.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check pillow==13.0.0 \
    tifffile==2026.3.3 numpy==2.4.6
cat >find.py <<'END'
import PIL
import numpy as np
import tifffile
from PIL import Image

print("pillow", PIL.__version__, "tifffile", tifffile.__version__)
planes = np.arange(3)[:, None, None] * 4096 + np.arange(6) * 256 + 7
planes = np.repeat(planes, 2, axis=1).astype(np.uint16)


def show(name, **options):
    image = Image.open(name)
    print(f"{name}: {image.mode} {image.size}")
    print("  stored red", np.asarray(planes)[0, 0].tolist())
    print("  Pillow red", np.asarray(image)[0, :, 0].tolist())


tifffile.imwrite("planes.tif", planes, photometric="rgb")
show("planes.tif")
tifffile.imwrite("deflated-planes.tif", planes, photometric="rgb", compression="deflate")
show("deflated-planes.tif")
tifffile.imwrite("interleaved.tif", np.moveaxis(planes, 0, -1), photometric="rgb")
show("interleaved.tif")
END
venv/bin/python find.py >seen
cat seen
diff - seen <<'END'
pillow 13.0.0 tifffile 2026.3.3
planes.tif: RGB (6, 2)
  stored red [7, 263, 519, 775, 1031, 1287]
  Pillow red [7, 0, 7, 1, 7, 2]
deflated-planes.tif: RGB (6, 2)
  stored red [7, 263, 519, 775, 1031, 1287]
  Pillow red [0, 1, 2, 3, 4, 5]
interleaved.tif: RGB (6, 2)
  stored red [7, 263, 519, 775, 1031, 1287]
  Pillow red [0, 1, 2, 3, 4, 5]
END
