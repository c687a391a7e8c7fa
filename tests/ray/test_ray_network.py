"""Ray on three hosts with addresses of their own, started as docs/devices.md says: training goes on
when a network link is cut.
"""

import json
import pathlib
import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from process_group import arrays, newest
from ray_hosts import RayHosts, ray_hosts
from ray_nodes import Command, running

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


def test_launch_goes_on_with_fewer_workers(
    machines: RayHosts, record_fault: Callable[..., None]
) -> None:
    place = {"env": machines.env, "host": machines.hosts[0]}
    train = ["--", "train", *FLAGS, *"--run-dir run --heartbeat-timeout 10 --steps 40".split()]
    words = [*"ray --workers 3 --min-workers 2 --address".split(), machines.address, *train]
    found = Command("jaxdp.launch", *words, **place)
    found.wait_for("[0] step 12/")
    for index, host in enumerate(machines.hosts):
        assert len(running(host.pids(), f"--process-id {index}")) == 1
    machines.cut_link(2)
    seconds = found.wait_for(
        f"node {machines.hosts[2].address} of worker 2 has "
    )  # not answered for 8 s, or died: Ray may say so first
    assert seconds < NOTICED_SECONDS
    saved = newest()
    assert found.code() == 0, found.err
    assert "starting with 2 of 3 workers" in found.err
    (after,) = map(int, re.findall(r"continuing run after step (\d+)", found.err))
    assert after >= saved
    summary = RunDirectory(pathlib.Path("run")).read("summary.json")
    assert (summary["processes"], summary["steps"]) == (2, 40)
    assert [row["step"] for row in rows("run")] == [*range(1, 41)]
    outcome = f"noticed after {seconds:.0f} s; went on with two workers; complete"
    record_fault("network link of one of three hosts cut, jaxdp.launch ray", 1, outcome, 0)
