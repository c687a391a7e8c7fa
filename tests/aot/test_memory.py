"""The largest batch that is named for a machine that is not here fits there, and twice as many
examples do not.
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from conftest import missing

from jaxdp.sharding.memory import USABLE_FRACTION

LIMIT = 200 * 2**20


def planned(target: str, *flags: str) -> dict[str, Any]:
    """Returns what a process of its own predicts: the tests' own carries flags for the CPU, over
    which the other compilers fail.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("XLA_FLAGS", "JAX_PLATFORMS")
    }
    command = [
        sys.executable,
        "-m",
        "jaxdp.plan",
        "--model",
        "cnn",
        "--dataset",
        "mnist",
        "--target",
        target,
        "--quick",
        "--json",
    ]
    command += ["--device-memory", str(LIMIT), *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["tpu:v5e:2x2", "cuda:h100:4"])
def test_the_largest_batch_fits_and_twice_as_many_examples_do_not(target: str) -> None:
    if reason := missing(target.partition(":")[0]):
        pytest.skip(reason)
    most = planned(target)["predicted_largest_per_device"]
    assert most > 1
    usable = USABLE_FRACTION * LIMIT
    fits, fails = (
        planned(target, "--per-device-batch-size", str(count))["predicted_bytes"]["total"]
        for count in (most, 2 * most)
    )
    assert fits <= usable < fails
