"""The largest batch that is named for a machine that is not here fits there, and twice as many
examples do not.
"""

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from conftest import missing

from jaxdp.sharding.memory import USABLE_FRACTION

LIMIT = 200 * 2**20


def planned(target: str, *flags: str) -> dict[str, Any]:
    """Returns the plan of a process of its own: the tests' own carries flags for the CPU, over
    which the other compilers fail.
    """
    own = ("XLA_FLAGS", "JAX_PLATFORMS")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    words = "--model cnn --dataset npz:many.npz --quick --json --device-memory".split()
    command = [sys.executable, "-m", "jaxdp.plan", *words, str(LIMIT), "--target", target, *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["tpu:v5e:2x2", "cuda:h100:4"])
def test_the_largest_batch_fits_and_twice_as_many_examples_do_not(target: str) -> None:
    if reason := missing(target.partition(":")[0]):
        pytest.skip(reason)
    count = 60_000  # as many as MNIST has, more than fit
    images = np.random.default_rng(0).integers(0, 256, (count, 28, 28), np.uint8)
    labels = np.arange(count) % 10
    np.savez(pathlib.Path("many.npz"), x_train=images, y_train=labels)
    most = planned(target)["variants"]["as configured"]["largest_per_device"]
    assert most > 1
    fits, fails = (
        planned(target, "--per-device-batch-size", str(size))["bytes"]["total"]
        for size in (most, 2 * most)
    )
    assert fits <= USABLE_FRACTION * LIMIT < fails
