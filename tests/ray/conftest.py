"""Ray forks to start its processes."""

import pathlib

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The processes that Ray forks use nothing of this one, in which another test may have started
    JAX.
    """
    for item in items:
        if item.path.parent == pathlib.Path(__file__).parent:
            item.add_marker(
                pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")
            )
