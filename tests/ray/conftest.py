"""A cluster for a test, which asks for a token."""

import secrets
import signal
from collections.abc import Iterator

import pytest
from ray_nodes import Nodes, send


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="needs pip install 'jaxdp[ray]'")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(16))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    _read_token_again()
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    found = Nodes(cluster)
    try:
        yield found
    finally:
        for node in found.nodes:
            send(found.processes(node), signal.SIGCONT)
        cluster.shutdown()
        monkeypatch.undo()
        _read_token_again()


def _read_token_again() -> None:
    """Ray looks at the environment once in a process, in which another test may have imported it."""
    from ray._raylet import AuthenticationTokenLoader, Config

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
