"""The largest batch that is named for a machine that is not here fits there, and twice as many
examples do not.
"""

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from conftest import missing, run_without_flags

from jaxdp.sharding.memory import USABLE_FRACTION

LIMIT = 200 * 2**20


def planned(target: str, *flags: str) -> dict[str, Any]:
    words = "-m jaxdp.plan --model cnn --dataset npz:many.npz --validation 0.1 --json".split()
    limit = ["--device-memory", str(LIMIT)]
    return json.loads(run_without_flags(*words, *limit, "--target", target, *flags))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["tpu:v5e:2x2", "cuda:h100:4"])
def test_the_largest_batch_fits_and_twice_as_many_examples_do_not(target: str) -> None:
    if reason := missing(target.partition(":")[0]):
        pytest.skip(reason)
    count = 60_000  # as many as MNIST has, more than fit
    images = np.random.default_rng(0).integers(0, 256, (count, 28, 28), np.uint8)
    labels = np.arange(count) % 10
    np.savez(pathlib.Path("many.npz"), x_train=images, y_train=labels)
    most = planned(target)["largest_per_device"]
    assert most > 1
    fits, fails = (
        planned(target, "--per-device-batch-size", str(size))["bytes"]["total"]
        for size in (most, 2 * most)
    )
    assert fits <= USABLE_FRACTION * LIMIT < fails
