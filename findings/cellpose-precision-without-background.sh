#!/bin/sh
# Question: what is Cellpose's average precision if the cells fill the whole image, and every cell
# is predicted exactly?
# Guess: 1.
# What happens: infinity for two cells, and 1.14 for sixteen. metrics.average_precision counts
# objects as the distinct values minus one, for the background. Without background, it counts one
# object too few, and reports -1 false positives and -1 misses. If the prediction misses one of the
# sixteen cells, the result is 1 instead of 15/16. StarDist's matching counts rightly.
# Seen with cellpose 4.2.1.1 and stardist 0.9.2.
# Why it matters: confluent cells, tissue and crops of training images often have no background. A
# mean over images then contains values above 1, or infinity. Score such images with another package,
# or add a border of background to both.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6 \
    scipy==1.17.1 scikit-image==0.26.0 numba==0.68.1 opencv-python-headless==5.0.0.93 tqdm==4.70.1 \
    natsort==8.4.0 fastremap==1.21.0 fill-voids==2.1.2 six==1.17.0 matplotlib==3.11.2
venv/bin/pip install --quiet --no-compile --disable-pip-version-check --no-deps \
    cellpose==4.2.1.1 stardist==0.9.2 csbdeep==0.8.2
cat >find.py <<'END'
import importlib.metadata
import importlib.util
import warnings

import numpy as np
from cellpose import metrics

warnings.simplefilter("ignore")
# The package itself imports TensorFlow, which its matching does not need.
package = importlib.util.find_spec("stardist").submodule_search_locations[0]
spec = importlib.util.spec_from_file_location("matching", f"{package}/matching.py")
stardist = importlib.util.module_from_spec(spec)
spec.loader.exec_module(stardist)

print(*(f"{name} {importlib.metadata.version(name)}" for name in ("cellpose", "stardist")))
two = np.repeat([[1, 2]], 8, 0).repeat(4, 1)
sixteen = np.arange(1, 17).reshape(4, 4).repeat(2, 0).repeat(2, 1)
cases = {
    "two cells": (two, two),
    "sixteen cells": (sixteen, sixteen),
    "sixteen cells, one missed": (sixteen, np.where(sixteen == 3, 0, sixteen)),
    "two cells and background": (np.pad(two, 1), np.pad(two, 1)),
}
for name, (truth, prediction) in cases.items():
    precision, found, wrong, missed = metrics.average_precision(truth, prediction, threshold=[0.5])
    counts = f"{found[0]:.0f} found, {wrong[0]:.0f} wrong, {missed[0]:.0f} missed"
    other = stardist.matching(truth, prediction, thresh=0.5).accuracy
    print(f"{name}: cellpose {precision[0]:.3f} ({counts}), stardist {other:.3f}")
END
venv/bin/python find.py >seen
cat seen
diff - seen <<'END'
cellpose 4.2.1.1 stardist 0.9.2
two cells: cellpose inf (2 found, -1 wrong, -1 missed), stardist 1.000
sixteen cells: cellpose 1.143 (16 found, -1 wrong, -1 missed), stardist 1.000
sixteen cells, one missed: cellpose 1.000 (15 found, 0 wrong, 0 missed), stardist 0.938
two cells and background: cellpose 1.000 (2 found, 0 wrong, 0 missed), stardist 1.000
END
