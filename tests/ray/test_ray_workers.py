"""Training with workers on a cluster, from a machine that is not its head, which dies."""

import pathlib
import time
from collections.abc import Callable

import pytest
from ray_nodes import FLAGS, Command, Nodes

from jaxdp.checkpoint import integrity


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["exact", "async"])
def test_a_killed_head(
    own_cluster: Nodes, record_fault: Callable[..., None], strategy: str
) -> None:
    own_cluster.add(num_cpus=3)
    train = ["jaxdp.train", *FLAGS, "--checkpoint-every", "5", "--run-dir", "run"]
    workers = ["--workers", "2", "--ray-address", own_cluster.address, "--steps", "100000"]
    found = Command(*train, "--strategy", strategy, *workers)
    found.wait_for("step 12/")
    # As seen from another machine; the raylet of its own a command does not survive.
    own_cluster.kill_head("gcs_server")
    began = time.monotonic()
    assert found.code(60) == 1
    seconds = time.monotonic() - began
    assert seconds < 15
    last = (
        "the head of the cluster has not answered for 8 s: start the cluster again; the same command continues after the"
        " last checkpoint"
    )
    assert found.err.splitlines()[-1] == f"jaxdp.train: error: {last}"
    saved = max(integrity.steps(pathlib.Path("run", "checkpoints")))
    again = Command(*train, "--devices", "1", "--steps", str(saved + 5))
    assert again.code() == 0, again.err
    assert f"continuing run after step {saved}" in again.err
    outcome = f"noticed after {seconds:.0f} s; the same command continues after the last checkpoint"
    record_fault(f"the head of a Ray cluster killed, --strategy {strategy}", 1, outcome, 0)
