#!/bin/sh
# Question: does the number of simulated CPU devices change what a program on one of them computes?
# Guess: no; the compiled program and its inputs are the same, and the other devices are idle.
# What happens: other devices change the last bits of a product of matrices that sums over many
# rows. XLA's thread pool has a thread for each core or each device, whichever are more, and Eigen
# divides such a sum among the threads. NPROC sets the number of cores that XLA sees. With NPROC
# equal to the largest number of devices, the bits are the same.
# Seen with jax 0.10.2, and with 0.12.0.1.
# Why it matters: a test that compares one device with eight for equal bits fails for a reason
# that has nothing to do with the devices, and a run that is repeated on a CPU with other cores has
# other last digits.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check jax==0.10.2 numpy==2.4.6
cat >product.py <<'END'
import hashlib

import jax
import numpy as np

rows = np.random.default_rng(0).standard_normal((65536, 32)).astype(np.float32)
product = jax.jit(lambda rows: rows.T @ rows)(jax.device_put(rows, jax.devices()[0]))
print(hashlib.sha256(np.asarray(product).tobytes()).hexdigest())
END
export JAX_PLATFORMS=cpu
run() { NPROC=$1 JAX_NUM_CPU_DEVICES=$2 venv/bin/python product.py; }
compare() {
    if [ "$2" = "$3" ]; then echo "$1: the same bits"; else echo "$1: other bits"; fi
}
{
    venv/bin/python -c "import jax; print('jax', jax.__version__)"
    compare "2 cores, 1 device twice" "$(run 2 1)" "$(run 2 1)"
    compare "2 cores, 1 and 8 devices" "$(run 2 1)" "$(run 2 8)"
    compare "8 cores, 1 and 8 devices" "$(run 8 1)" "$(run 8 8)"
} >seen
cat seen
diff - seen <<'END'
jax 0.10.2
2 cores, 1 device twice: the same bits
2 cores, 1 and 8 devices: other bits
8 cores, 1 and 8 devices: the same bits
END
