#!/bin/sh
# Question: does jax.scipy.ndimage.map_coordinates agree with SciPy's function of the same name for
# the same mode?
# Guess: yes, to rounding, as jax.scipy does elsewhere.
# What happens: "constant" and "wrap" differ outside the pixel centres. JAX does what SciPy calls
# "grid-constant" and "grid-wrap"; "nearest", "mirror" and "reflect" agree. A note at the end of
# JAX's documentation says that borders differ, and calls SciPy's way a bug.
# Seen with jax 0.10.2 and scipy 1.17.1.
# Why it matters: rotations and elastic warps ported from SciPy get half-bright borders where SciPy
# has black ones, and periodic images are shifted by up to a pixel.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check jax==0.10.2 scipy==1.17.1 \
    numpy==2.4.6
cat >find.py <<'END'
import importlib.metadata

import jax.numpy as jnp
import jax.scipy.ndimage
import numpy as np
import scipy.ndimage

print("jax", importlib.metadata.version("jax"), "scipy", importlib.metadata.version("scipy"))
row, places = np.array([10.0, 20, 30, 40], np.float32), np.array([-0.5, -0.25, 1.5, 3.25, 4])
for mode in ("constant", "wrap", "nearest", "mirror", "reflect"):
    jax_values = jax.scipy.ndimage.map_coordinates(jnp.array(row), [jnp.array(places)], 1, mode)
    values = scipy.ndimage.map_coordinates(row, [places], order=1, mode=mode)
    same = "equal" if np.allclose(jax_values, values) else "DIFFERENT"
    print(f"{mode}: {same}, JAX {np.asarray(jax_values).tolist()}, SciPy {values.tolist()}")
for mode in ("constant", "wrap"):
    jax_values = jax.scipy.ndimage.map_coordinates(jnp.array(row), [jnp.array(places)], 1, mode)
    values = scipy.ndimage.map_coordinates(row, [places], order=1, mode=f"grid-{mode}")
    print(f"JAX {mode} equals SciPy grid-{mode}: {np.allclose(jax_values, values)}")
END
JAX_PLATFORMS=cpu venv/bin/python find.py >seen
cat seen
diff - seen <<'END'
jax 0.10.2 scipy 1.17.1
constant: DIFFERENT, JAX [5.0, 7.5, 25.0, 30.0, 0.0], SciPy [0.0, 0.0, 25.0, 0.0, 0.0]
wrap: DIFFERENT, JAX [25.0, 17.5, 25.0, 32.5, 10.0], SciPy [35.0, 37.5, 25.0, 12.5, 20.0]
nearest: equal, JAX [10.0, 10.0, 25.0, 40.0, 40.0], SciPy [10.0, 10.0, 25.0, 40.0, 40.0]
mirror: equal, JAX [15.0, 12.5, 25.0, 37.5, 30.0], SciPy [15.0, 12.5, 25.0, 37.5, 30.0]
reflect: equal, JAX [10.0, 10.0, 25.0, 40.0, 40.0], SciPy [10.0, 10.0, 25.0, 40.0, 40.0]
JAX constant equals SciPy grid-constant: True
JAX wrap equals SciPy grid-wrap: True
END
