"""The list of a cluster shows for how many workers it has capacity: one node has all that a worker
needs.
"""

import pytest

from jaxdp import devices
from jaxdp.runtime import ray_cluster
from jaxdp.runtime.ray_cluster import Node, needs_text


def node(name: str, cpus: float, gpus: float = 0.0, *, alive: bool = True) -> Node:
    return Node(
        name,
        "10.0.0.1",
        f"host-{name}",
        alive,
        float(cpus),
        float(gpus),
        2.0**30,
        "A100" if gpus else "",
    )


@pytest.mark.parametrize(
    ("nodes", "workers", "text"),
    [
        # Of 7 CPUs.
        (
            [node("a", 4), node("b", 2.5), node("c", 0.5)],
            [4, 2, 0],
            "capacity for 6 workers of 1 CPU each",
        ),
        # Of 17 and 6.
        (
            [node("a", 8, 2), node("b", 8), node("c", 1, 4)],
            [2, 0, 1],
            "capacity for 3 workers of 1 CPU and 1 GPU each",
        ),
        # Its GPUs are gone.
        (
            [node("a", 1), node("b", 8, 8, alive=False)],
            [1, 0],
            "capacity for 1 worker of 1 CPU each",
        ),
        ([node("a", 0)], [0], "capacity for 0 workers of 1 CPU each"),
    ],
)
def test_capacity_is_counted_node_by_node(
    nodes: list[Node],
    workers: list[int],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    found = devices.describe_cluster(nodes)
    assert [each["workers"] for each in found["nodes"]] == workers
    devices.print_cluster(found | {"free": {"cpus": 1.0, "gpus": 0.0}})
    printed = capsys.readouterr().out
    assert f"\n{text}, if the cluster has no other users\n" in printed
    assert "workers" in printed.splitlines()[1]


def test_what_a_worker_needs_is_said_in_words() -> None:
    assert [needs_text(2, 0), needs_text(1, 1), needs_text(4, 2)] == [
        "2 CPUs",
        "1 CPU and 1 GPU",
        "4 CPUs and 2 GPUs",
    ]


def test_the_launcher_says_what_no_node_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight CPUs in all, and no room for a worker of three."""
    nodes = [node(name, 2) for name in "abcd"]
    monkeypatch.setattr(ray_cluster, "nodes", lambda: nodes)
    monkeypatch.setattr(ray_cluster.Head, "_watch", lambda self: None)
    for cpus, text in ((3, "0 workers of 3 CPUs, which no node has"), (2, "4 workers of 2 CPUs")):
        room = ray_cluster.ClusterCapacity(cpus, None)
        assert room.text(room.slots()) == text
    assert room.text({}) == "0 workers of 2 CPUs"  # there is no node yet
