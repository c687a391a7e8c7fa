"""Training on a Ray cluster goes on when nodes die, are cut off and join.

Everything else is as without Ray.
"""

import pathlib
import re
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from process_group import newest
from ray_nodes import FLAGS, Command, Nodes

from jaxdp import launch
from jaxdp.config import TrainConfig
from jaxdp.errors import ConfigError
from jaxdp.launching.ray_launcher import RayConfig, check, widest
from jaxdp.rundir.layout import RunDirectory
from jaxdp.runtime.ray_cluster import Node, place

TRAIN = [
    "--",
    "train",
    *FLAGS,
    *"--run-dir run --checkpoint-every 5 --heartbeat-timeout 10 --steps".split(),
]


def start(nodes: Nodes, workers: str, steps: int, *flags: str, **kwargs: Any) -> Command:
    words = ["ray", "--address", nodes.address, "--workers", *workers.split(), *TRAIN, str(steps)]
    return Command("jaxdp.launch", *words, *flags, **kwargs)


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
    assert launch.main(f"ray --workers 2 --address {address} -- train".split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"jaxdp.launch: error: --address {address}: {problem}")


def test_without_ray_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert launch.main("ray --workers 2 -- train".split()) == 2
    line = "error: this needs Ray: pip install '.[ray]', on every node\n"
    assert capsys.readouterr().err.endswith(line)


def test_the_width_is_the_largest_that_divides_the_batch() -> None:
    config, train = RayConfig(workers=7, min_workers=2), TrainConfig.of(global_batch_size=96)
    check(config, train)
    widths = [widest(room, config, train, 1) for room in range(9)]
    assert widths == [None, None, 2, 3, 4, 4, 6, 6, 6]
    assert [widest(room, config, train, 32) for room in (2, 3, 7)] == [None, 3, 3]
    fixed = RayConfig(workers=3)
    assert [widest(room, fixed, TrainConfig.of(), 1) for room in (2, 3, 9)] == [None, 3, 3]
    with pytest.raises(ConfigError, match="global_batch_size=auto"):
        check(config, TrainConfig.of(global_batch_size="auto"))


def test_places() -> None:
    first, second = (Node(name, name, 8.0, 4.0) for name in "ab")
    assert (first.slots(1, 0), first.slots(3, 0), first.slots(1, 2)) == (8, 2, 2)
    slots = {first: 4, second: 2}
    assert "".join(node.id for node in place(slots, 5)) == "aaabb"


def rows(folder: str, column: str) -> list[float]:
    found = RunDirectory(pathlib.Path(folder)).read("metrics.jsonl")
    return [row[column] for row in found if row["split"] == "train"]


def events(*columns: str) -> list[Any]:
    """Returns these columns of history.jsonl."""
    history = RunDirectory(pathlib.Path("run")).read("history.jsonl")
    return [tuple(row[column] for column in columns) for row in history]


def continued_after(command: Command) -> int:
    return int(re.findall(r"continuing run after step (\d+)", command.err)[-1])


def assert_done(command: Command, processes: int, steps: int) -> None:
    assert command.code() == 0, command.err
    assert events("event", "step", "processes")[-1] == ("done", steps, processes)


@pytest.mark.slow
def test_one_machine() -> None:
    words = ["ray", "--workers", "2", *TRAIN, "4"]
    found = Command("jaxdp.launch", *words, env={"RAY_AUTH_MODE": "disabled"})
    assert_done(found, processes=2, steps=4)
    assert "[0] step 4/4" in found.err
    assert "accuracy" in found.out
    # As without Ray: the same losses, by the launcher that was there before.
    pathlib.Path("run").rename("on-ray")
    other = Command("jaxdp.launch", "-n", "2", *TRAIN, "4")
    assert other.code() == 0, other.err
    assert rows("on-ray", "loss") == rows("run", "loss")


@pytest.mark.slow
def test_a_killed_node_and_a_joining_one(nodes: Nodes, record_fault: Callable[..., None]) -> None:
    nodes.add()
    nodes.add()
    found = start(nodes, "2 --min-workers 1", 400)
    found.wait_for("[0] step 12/")
    nodes.kill(nodes.holding("--process-id 1"))
    seconds = found.wait_for("of worker 1 has")
    found.wait_for("starting with 1 of 2 workers")
    saved = newest()
    found.wait_for("continuing run after step")
    assert continued_after(found) >= saved
    found.wait_for("[0] step", 200)
    nodes.add()
    found.wait_for("the cluster can hold more workers; all save and start again")
    assert found.code() == 0, found.err
    names, steps, widths = zip(*events("event", "step", "processes"), strict=True)
    assert names == ("started", "resumed", "stopped", "resumed", "done")
    assert widths == (2, 1, 1, 2, 2)
    assert steps[2] == steps[3]  # not a step was lost
    assert rows("run", "step") == [*range(1, 401)]
    outcome = f"noticed after {seconds:.0f} s; went on with fewer workers; complete"
    record_fault("a node of a Ray cluster killed", 1, outcome, 0)
    outcome = "saved, and went on with more workers; complete"
    record_fault("a node joins a Ray cluster", 1, outcome)


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
def test_a_cut_network_link(nodes: Nodes, record_fault: Callable[..., None], index: int) -> None:
    nodes.add()
    nodes.add()
    found = start(nodes, "2 --min-workers 1", 60)
    found.wait_for("[0] step 12/")
    node = nodes.holding(f"--process-id {index}")
    nodes.cut_off(node)
    seconds = found.wait_for(f"of worker {index} has not answered for 8 s")
    saved = newest()
    # Which alone writes: its lock stays until its machine is gone, or the file system takes it
    # away.
    if index == 0:
        found.wait_for("the run folder is still locked by a node that is gone; trying again")
        nodes.kill(node)
    assert_done(found, processes=1, steps=60)
    assert continued_after(found) >= saved
    later = " once it was dead" if index == 0 else ""
    outcome = f"noticed after {seconds:.0f} s; went on with fewer workers{later}; complete"
    which = "with" if index == 0 else "without"
    record_fault(f"a node of a Ray cluster cut off, {which} process 0", 1, outcome)


@pytest.mark.slow
def test_a_killed_process_and_a_killed_launcher(
    nodes: Nodes, record_fault: Callable[..., None]
) -> None:
    nodes.add(num_cpus=2)
    found = start(nodes, "2 --max-restarts 1", 3000)
    found.wait_for("[0] step 12/")
    nodes.kill_process("--process-id 1")
    found.wait_for("a worker ended with 137; starting all again (1 of at most 1)")
    found.wait_for("continuing run after step")
    found.wait_for("[0] step 30/")
    found.process.kill()
    found.process.wait()
    deadline = time.monotonic() + 60
    while nodes.runs("--process-id"):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert_done(start(nodes, "2 --max-restarts 1", 60), processes=2, steps=60)
    names, steps = zip(*events("event", "step"), strict=True)
    assert names == ("started", "resumed", "stopped", "resumed", "done")
    assert steps[1] >= 10
    assert steps[2] == steps[3] >= 30
    record_fault("kill -9 of a worker on Ray, --max-restarts 1", 1, "all started again; complete")
    record_fault("kill -9 of the launcher on Ray", 1, "the workers saved the same step", 0)


@pytest.mark.slow
def test_a_killed_head(own_cluster: Nodes, record_fault: Callable[..., None]) -> None:
    nodes = own_cluster
    nodes.add()
    found = start(nodes, "1", 100_000)
    found.wait_for("[0] step 12/")
    nodes.kill_head()
    seconds = found.wait_for("the head of the cluster has not answered for 8 s")
    assert found.code() == 1
    assert found.err.endswith("has not answered for 8 s: start the cluster again\n")
    assert events("event") == [("started",), ("stopped",)]
    outcome = f"noticed after {seconds:.0f} s; saved; the same command continues"
    record_fault("the head of a Ray cluster killed", 1, outcome)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_and_codes(nodes: Nodes, number: int) -> None:
    nodes.add(num_cpus=2)
    found = start(nodes, "2", 1000)
    found.wait_for("[0] step 3/")
    found.process.send_signal(number)
    assert found.code(60) == 75
    assert "[0] stopped by a signal after saving step" in found.err
    assert events("event")[-1] == ("stopped",)
    refused = start(nodes, "2", 1000, "--optimizer", "adamm")
    assert refused.code() == 2
    assert "--optimizer adamm: unknown optimizer" in refused.err


@pytest.mark.slow
def test_the_token_is_asked_for(nodes: Nodes) -> None:
    nodes.add()
    found = start(nodes, "1", 2, env={"RAY_AUTH_TOKEN": "wrong"})
    assert found.code(100) == 2
    assert f"--address {nodes.address}: no Ray cluster can be used there" in found.err
    assert not pathlib.Path("run").exists()
