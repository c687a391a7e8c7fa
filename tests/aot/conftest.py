"""Compiles for accelerators that are not there, each case once, in a process of its own."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import steps

WORKER = pathlib.Path(__file__).parent / "compile_worker.py"
Answer = dict[str, Any]


def missing(platform: str) -> str | None:
    """Returns why a platform cannot be compiled for here, None if it can."""
    if platform == "tpu":
        installed = importlib.util.find_spec("libtpu")
        return None if installed else "needs libtpu: pip install '.[tpu]'"
    plugins = importlib.util.find_spec("jax_plugins")
    folders = plugins.submodule_search_locations or () if plugins else ()
    found = any(path for folder in folders for path in pathlib.Path(folder).glob("xla_cuda*"))
    return None if found else "needs the CUDA plug-in: pip install '.[cuda13]'"


def run_without_flags(*arguments: str) -> str:
    """Returns what a Python process prints that has none of the flags of these tests.

    Other compilers than the CPU's fail over the flags.
    """
    own = ("XLA_FLAGS", "JAX_PLATFORMS")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Gives a test each of the steps, those of a platform to one worker."""
    if "step" in metafunc.fixturenames:
        product = metafunc.config.getoption("--every-step")
        chosen = [*steps.SMALL, *(steps.every_step() if product else steps.every_pair())]
        cases = [
            pytest.param(
                platform,
                step,
                id=steps.name(platform, step),
                marks=pytest.mark.xdist_group(platform),
            )
            for platform in steps.TARGETS
            for step in chosen
        ]
        metafunc.parametrize(("platform", "step"), cases)


@pytest.fixture(scope="session")
def compile_step() -> Callable[[Answer], Answer]:
    """Compiles a case, unless an earlier test has.

    Skips the test where what it takes is not installed.
    """
    answers: dict[str, Answer] = {}

    def ask(case: Answer) -> Answer:
        if reason := missing(case["target"].partition(":")[0]):
            pytest.skip(reason)
        key = json.dumps(case, sort_keys=True)
        if key not in answers:
            *_, line = run_without_flags(str(WORKER), key).splitlines()
            answers[key] = json.loads(line)
        return answers[key]

    return ask
