"""Clusters for tests, which ask for a token."""

from collections.abc import Iterator

import pytest
import ray_nodes
from ray_nodes import Nodes


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
