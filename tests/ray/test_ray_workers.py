"""Training with workers on a cluster, from a machine that is not its head, which dies."""

import os
import pathlib
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from process_group import Command, send
from runs import error_line, run_train

from jaxdp.checkpoint import integrity

FLAGS = (
    "--model cnn --model-kwargs width=4 hidden=16 --image-size 16 --global-batch-size 64"
    " --batch-norm group:16 --learning-rate 0.01 --schedule constant --log-every 1 --eval-every"
    " 100000"
).split()


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Yields a cluster without nodes, but for its head, which has a token and no CPU for workers,
    and ends it.
    """
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="needs pip install '.[ray]'")
    handler = signal.getsignal(signal.SIGTERM)  # which Ray takes
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("RAY_AUTH_MODE", "token")
        # Two clusters have the same.
        environ.setenv("RAY_AUTH_TOKEN", os.environ.get("RAY_AUTH_TOKEN", secrets.token_hex(16)))
        environ.setenv("RAY_USAGE_STATS_ENABLED", "0")
        _read_token_again()
        found = cluster_utils.Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
        )
        try:
            yield found
        finally:
            found.shutdown()
            signal.signal(signal.SIGTERM, handler)
    _read_token_again()


def _read_token_again() -> None:
    """Ray looks at the environment once in a process, in which another test may have imported
    it.
    """
    from ray._raylet import AuthenticationTokenLoader, Config

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("10.0.0.1", "must be auto or HOST:PORT of a head"),
        ("127.0.0.1:1", "cannot be reached (Connection refused)"),
    ],
)
def test_a_wrong_address_is_one_line(
    address: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray", reason="needs pip install '.[ray]'")
    assert run_train(f"{' '.join(FLAGS)} --strategy exact --ray-address {address} --steps 2") == 2
    assert error_line(capsys).startswith(f"jaxdp.train: error: --ray-address {address}: {problem}")


@pytest.mark.slow
def test_the_token_is_asked_for(cluster: Any) -> None:
    where = ["--strategy", "exact", "--ray-address", cluster.address, "--run-dir", "run"]
    found = Command("jaxdp.train", *FLAGS, *where, "--steps", "2", env={"RAY_AUTH_TOKEN": "wrong"})
    assert found.code(100) == 2
    assert f"--ray-address {cluster.address}: no Ray cluster can be used there" in found.err


@pytest.mark.slow
def test_a_killed_head(cluster: Any, record_fault: Callable[..., None]) -> None:
    cluster.add_node(num_cpus=3)
    train = ["jaxdp.train", *FLAGS, "--checkpoint-every", "5", "--run-dir", "run"]
    workers = ["--workers", "2", "--ray-address", cluster.address, "--steps", "100000"]
    found = Command(*train, "--strategy", "exact", *workers)
    found.wait_for("step 12/")
    # As seen from another machine; the raylet of its own a command does not survive.
    head = cluster.head_node.all_processes["gcs_server"]
    send([each.process.pid for each in head], signal.SIGKILL)
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
    record_fault("the head of a Ray cluster killed, --strategy exact", 1, outcome, 0)
