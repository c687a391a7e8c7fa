"""Ray on three hosts with addresses of their own, started as docs/devices.md says: training goes on
when a network link is cut.
"""

import json
import pathlib
import re
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from process_group import Command, arrays
from ray_hosts import RayHosts, ray_hosts
from test_ray_train import ON_RAY

from jaxdp.rundir.layout import RunDirectory
from jaxdp.workers.worker import SLOWED

pytestmark = pytest.mark.slow
FLAGS = (
    "--model cnn --model-kwargs width=4 hidden=16 --image-size 16 --global-batch-size 48"
    " --batch-norm group:8 --learning-rate 0.01 --schedule constant --log-every 1 --eval-every"
    " 100000 --checkpoint-every 5"
).split()
NOTICED_SECONDS = 13.0  # 10, and what a busy machine takes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHosts]:
    pytest.importorskip("ray", reason="needs pip install '.[ray]'")
    with ray_hosts(3, tmp_path_factory.mktemp("home"), {SLOWED: "0.15"}) as found:
        yield found


@pytest.fixture
def machines(cluster: RayHosts) -> RayHosts:
    cluster.join()
    return cluster


def rows(folder: str) -> list[dict]:
    found = RunDirectory(pathlib.Path(folder)).read("metrics.jsonl")
    return [row for row in found if row["split"] == "train"]


def test_exact_goes_on_to_the_same_bits(
    machines: RayHosts, record_fault: Callable[..., None]
) -> None:
    words = ["jaxdp.train", *FLAGS, *"--strategy exact --slices 6 --steps 60".split()]
    where = [*"--run-dir run --workers 3 --ray-address".split(), machines.address]
    trained = Command(*words, *where, env=machines.env, host=machines.hosts[0])
    history = pathlib.Path("run", "history.jsonl")
    trained.wait_for("step 8/")
    joined = [
        line["host"]
        for line in map(json.loads, history.read_text().splitlines())
        if line["event"] == "worker joined"
    ]
    assert sorted(joined) == [host.name for host in machines.hosts]
    machines.cut_link(2)
    seconds = trained.wait_for('"worker lost"', file=history)
    assert seconds < NOTICED_SECONDS
    assert trained.code() == 0, trained.err
    assert [row["step"] for row in rows("run")] == [*range(1, 61)]
    assert rows("run")[-1]["workers"] == 2
    alone = Command(*words, "--run-dir", "alone", "--workers", "1")
    assert alone.code() == 0, alone.err
    expected, found = arrays("alone", 60), arrays("run", 60)
    assert expected.keys() == found.keys()
    assert all(np.array_equal(found[name], array) for name, array in expected.items())
    outcome = (
        f"no step waits; noticed after {seconds:.0f} s; went on with two workers to the same bits;"
        " complete"
    )
    record_fault("network link of one of three hosts cut, --strategy exact", 1, outcome, 0)


def test_ray_train_goes_on_with_another_host(
    machines: RayHosts, record_fault: Callable[..., None]
) -> None:
    """The process that is cut off locks the folder until JAX ends it."""
    pytest.importorskip("pandas", reason="needs ray[train]")
    words = "--workers 2 --steps 300 --max-failures 20 --run-dir run".split()
    env = machines.env | {"RAY_ADDRESS": machines.address}
    found = Command("-c", ON_RAY, *words, env=env, host=machines.hosts[0])
    found.wait_for('"step": 60,', file=pathlib.Path("run", "metrics.jsonl"))
    used = re.findall(r"ip=([\d.]+), pid=\d+\) world_rank=", found.out + found.err)
    machines.cut_link(next(index for index in (1, 2) if machines.hosts[index].address in used))
    began = time.monotonic()
    found.wait_for('"resumed"', file=pathlib.Path("run", "history.jsonl"))
    seconds = time.monotonic() - began
    assert found.code() == 0, found.err
    history = RunDirectory(pathlib.Path("run")).read("history.jsonl")
    events = [(row["event"], row["processes"]) for row in history]
    assert events == [("started", 2), ("resumed", 2), ("done", 2)]
    assert history[1]["step"] >= 50
    outcome = f"went on with another host after {seconds:.0f} s; complete"
    record_fault("network link of one of three hosts cut, Ray Train", 1, outcome, 0)
