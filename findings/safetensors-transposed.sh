#!/bin/sh
# Question: does safetensors.numpy save an array that is not in C order, such as a transposed
# kernel?
# Guess: yes, or it raises an error, as safetensors.torch does.
# What happens: the bytes are written in the order in which they lie in memory, under the shape of
# the array. The file loads without a word, and every value is in another place.
# Seen with safetensors 0.8.0; 0.4.5, 0.5.3, 0.6.2 and 0.7.0 write the right values.
# Why it matters: whoever converts weights from PyTorch to JAX transposes every kernel just before
# saving. np.ascontiguousarray around each array helps.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check safetensors==0.8.0 \
    numpy==2.4.6
cat >find.py <<'END'
import importlib.metadata

import numpy as np
import safetensors.numpy

print("safetensors", importlib.metadata.version("safetensors"))
kernel = np.arange(6, dtype=np.float32).reshape(2, 3)
arrays = {
    "as made": kernel,
    "transposed": kernel.T,
    "in Fortran order": np.asfortranarray(kernel),
    "every other column": kernel[:, ::2],
    "transposed, made contiguous": np.ascontiguousarray(kernel.T),
}
for name, array in arrays.items():
    safetensors.numpy.save_file({"kernel": array}, "weights.safetensors")
    loaded = safetensors.numpy.load_file("weights.safetensors")["kernel"]
    print(f"{name}: saved  {array.tolist()}")
    print(f"{'right' if np.array_equal(array, loaded) else 'WRONG'}: loaded {loaded.tolist()}")
END
venv/bin/python find.py >seen
cat seen
diff - seen <<'END'
safetensors 0.8.0
as made: saved  [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
right: loaded [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
transposed: saved  [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
WRONG: loaded [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
in Fortran order: saved  [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
WRONG: loaded [[0.0, 3.0, 1.0], [4.0, 2.0, 5.0]]
every other column: saved  [[0.0, 2.0], [3.0, 5.0]]
WRONG: loaded [[0.0, 1.0], [2.0, 3.0]]
transposed, made contiguous: saved  [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
right: loaded [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
END
