"""All tests run on 8 simulated devices, each in a folder of its own."""

import importlib.metadata
import os
import pathlib
import signal
import sys
from collections.abc import Callable, Iterator

import pytest

pytest_plugins = ("fault_table",)
_precision = "float32"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz-seed",
        type=int,
        default=0,
        help="from which tests/fuzz draws its cases: the same one, the same cases",
    )
    parser.addoption(
        "--fuzz-cases",
        type=int,
        default=100,
        help="how many of them it tries in all (default: %(default)s)",
    )
    parser.addoption(
        "--half-precision",
        action="store_true",
        help="start JAX with the XLA flags for bfloat16 and float16",
    )
    parser.addoption(
        "--every-step",
        action="store_true",
        help="let tests/aot compile all 320 steps, not every pair of settings",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Chooses XLA's flags, which hold for the whole process."""
    global _precision
    _precision = "bfloat16" if config.getoption("--half-precision") else "float32"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that compute in 16 bits need flags of their own on some versions of jaxlib."""
    from jaxdp.runtime import platform

    if platform.cpu_flags("bfloat16") == platform.cpu_flags(_precision):
        return
    skip = pytest.mark.skip(reason="with this jaxlib by pytest -m half_precision --half-precision")
    for item in items:
        if item.get_closest_marker("half_precision"):
            item.add_marker(skip)


def pytest_report_header(config: pytest.Config) -> str:
    return " ".join(
        f"--{name}={config.getoption(name.replace('-', '_'))}"
        for name in ("fuzz-seed", "fuzz-cases", "random-faults-seed")
    )


def pytest_sessionstart() -> None:
    # Not at import: the package must not be loaded before jaxtyping's checks are in place.
    from jaxdp.runtime import platform

    # A shell starts what it puts in the background without it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Most of the time goes into compiling steps that then run three times. XLA's older way of
    # emitting code takes half as long. With it kernels that compute the same value again must not
    # fuse multiplications and additions (AVX has no such instruction): else they differ in the last
    # bit, and the gradient of a maximum, which asks which of two equals it, is lost.
    flags = ["--xla_backend_optimization_level=0"]
    if importlib.metadata.version("jaxlib").startswith("0.10.") and os.uname().machine == "x86_64":
        flags += ["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_max_isa=AVX"]
    os.environ.setdefault("XLA_FLAGS", " ".join(flags))
    # Where there is a cache of compiled programs, the other worker and the processes that tests
    # start find small ones too.
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
    platform.configure(8, precision=_precision)
    if _precision != "float32":
        import jax

        jax.devices()  # starts it, before a test in float32 chooses other flags


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs write to ./runs by default: let that be a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _lines_on_standard_error() -> Iterator[None]:
    """Lines are printed as if pytest had no handlers, which are like those of a program, and as if
    no test before had printed them: each is printed once in a process.
    """
    from jaxdp.text import console

    with pytest.MonkeyPatch.context() as patch:  # a test may undo its own
        patch.setattr(console._default, "filters", [])
        patch.setattr(console, "_warned", set())
        yield


@pytest.fixture(autouse=True)
def _no_defects(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed does not depend on the jaxlib that runs the tests."""
    from jaxdp.runtime import platform

    monkeypatch.setattr(platform, "cpu_defect", lambda: None)


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing them takes as long as all steps of a short run."""
    from jaxdp.reporting import outcome, plots

    monkeypatch.setattr(outcome, "draw", lambda *_, **__: {})
    monkeypatch.setattr(plots, "plot_curves", lambda *_, **__: None)


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is not there for the next one."""
    from jaxdp import callbacks, models, tasks
    from jaxdp.data import sources
    from jaxdp.sharding import strategy

    registries = (
        models.registry._models,
        sources._datasets,
        tasks.task._tasks,
        callbacks.callback._callbacks,
    )
    for registry in (*registries, strategy._strategies):
        entries = dict(registry.entries())
        monkeypatch.setattr(registry, "_entries", entries)
        monkeypatch.setattr(registry, "_origins", dict(registry._origins))
    modules, folders = set(sys.modules), list(sys.path)
    yield
    for name in [name for name in sys.modules if name not in modules and name.endswith(".py")]:
        del sys.modules[name]
    sys.path[:] = folders


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
