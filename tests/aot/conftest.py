"""Starts processes that compile for accelerators that are not there, and asks them case by case."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import kept_programs
import pytest
import steps

WORKER = pathlib.Path(__file__).parent / "compile_worker.py"
Answer = dict[str, Any]


def missing(platform: str) -> str | None:
    """Returns why a platform cannot be compiled for here, None if it can."""
    if platform == "tpu":
        return (
            None if importlib.util.find_spec("libtpu") else "needs libtpu: pip install 'jaxdp[tpu]'"
        )
    plugins = importlib.util.find_spec("jax_plugins")
    folders = [
        pathlib.Path(place)
        for place in (plugins.submodule_search_locations or () if plugins else ())
    ]
    found = any(path.name.startswith("xla_cuda") for folder in folders for path in folder.glob("*"))
    return None if found else "needs the CUDA plug-in: pip install 'jaxdp[cuda13]'"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Gives a test each of the steps, those of a platform to one worker."""
    if "step" in metafunc.fixturenames:
        chosen = [
            *steps.SMALL,
            *(
                steps.every_step()
                if metafunc.config.getoption("--every-step")
                else steps.every_pair()
            ),
        ]
        metafunc.parametrize(
            ("platform", "step"),
            [
                pytest.param(
                    platform,
                    step,
                    id=steps.name(platform, step),
                    marks=pytest.mark.xdist_group(platform),
                )
                for platform in steps.TARGETS
                for step in chosen
            ],
        )


class Compiler:
    """A process that compiles; another one where it ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, case: Answer) -> Answer:
        if self._process is None or self._process.poll() is not None:
            environment = {
                name: value
                for name, value in os.environ.items()
                if name not in ("XLA_FLAGS", "JAX_PLATFORMS")
            }
            self._process = subprocess.Popen(
                [sys.executable, str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        return {"error": f"the compiling process ended with {self._process.wait()}"}

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


@pytest.fixture(scope="session")
def compile_step() -> Iterator[Callable[[Answer], Answer]]:
    """Compiles a case, unless an earlier test or session has.

    Skips the test where what it takes is not installed.
    """
    compilers: dict[tuple[str, str], Compiler] = {}
    answers: dict[str, Answer] = {}

    def ask(case: Answer) -> Answer:
        platform = case["target"].partition(":")[0]
        if reason := missing(platform):
            pytest.skip(reason)
        key = json.dumps(case, sort_keys=True)
        if key not in answers:
            found = kept_programs.find(case)
            if found is None:
                # A fault stays in the process that it was put into.
                found = compilers.setdefault((platform, case.get("mutant", "")), Compiler()).ask(
                    case
                )
                kept_programs.keep(case, found)
            answers[key] = found
        answer = answers[key]
        assert "error" not in answer, answer.get("trace") or answer["error"]
        return answer

    yield ask
    for each in compilers.values():
        each.close()
