"""All tests run on 8 simulated devices, each in a folder of its own."""

import os
import pathlib
from collections.abc import Callable, Iterator

import pytest

pytest_plugins = ("fault_table",)


def pytest_sessionstart() -> None:
    # Not at import: the package must not be loaded before jaxtyping's checks are in place.
    from jaxdp.parallel import platform

    # Most of the time goes into compiling steps that then run three times.
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
    platform.configure(8)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs write to ./runs by default: let that be a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def count_compilations() -> Iterator[Callable[[], int]]:
    import jax

    compiled: list[str] = []

    def listen(event: str, duration: float, **_: object) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield lambda: len(compiled)
    jax.monitoring.clear_event_listeners()
