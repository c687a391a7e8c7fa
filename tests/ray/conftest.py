"""Clusters for tests, which ask for a token."""

import pathlib
from collections.abc import Iterator

import pytest
import ray_nodes
from ray_nodes import Nodes


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray forks to start its processes, which use nothing of this one, in which another test may
    have started JAX.
    """
    for item in items:
        if item.path.parent == pathlib.Path(__file__).parent:
            item.add_marker(
                pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")
            )


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Nodes]:
    with ray_nodes.cluster() as found:
        yield found


@pytest.fixture
def nodes(shared_cluster: Nodes) -> Iterator[Nodes]:
    """A cluster without nodes, but for its head; others had nodes there before, which are dead."""
    yield shared_cluster
    shared_cluster.clear()


@pytest.fixture
def own_cluster() -> Iterator[Nodes]:
    """A cluster of the test's own, whose head may be killed."""
    with ray_nodes.cluster() as found:
        yield found
