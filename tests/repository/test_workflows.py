"""Workflows run sessions that noxfile.py has, for the versions that the package supports."""

import ast
import pathlib
import re
import tomllib
from typing import Any

import yaml

ROOT = pathlib.Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))


def read(path: pathlib.Path) -> Any:
    # YAML 1.1 reads the key `on` as true.
    return {
        ("on" if key is True else key): value
        for key, value in yaml.safe_load(path.read_text()).items()
    }


def test_the_matrix_is_what_the_package_says_it_supports() -> None:
    pythons = read(ROOT / ".github/workflows/test.yml")["jobs"]["tests"]["strategy"]["matrix"][
        "python"
    ]
    classifiers = [
        text.rpartition(" ")[2]
        for text in PROJECT["project"]["classifiers"]
        if "Python :: 3." in text
    ]
    classifiers = [text.rpartition(":")[2] for text in classifiers]
    assert pythons == classifiers
    assert PROJECT["project"]["requires-python"] == f">={pythons[0]}"


def test_sessions_that_workflows_run_exist() -> None:
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    sessions = {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list
    }
    text = "".join(path.read_text() for path in WORKFLOWS)
    named = {
        word
        for words in re.findall(r"nox -s ([\w ]+)$|session: \[?(\w+)\]?$", text, re.MULTILINE)
        for word in " ".join(words).split()
    }
    assert {"lint", "types", "tests", "oldest", "docs"} <= named <= sessions


def test_the_dev_extra_is_the_sum_of_the_dependency_groups() -> None:
    """Extras cannot name groups, so what `pip install .[dev]` brings is written twice."""
    groups, extras = PROJECT["dependency-groups"], PROJECT["project"]["optional-dependencies"]

    def expand(name: str) -> set[str]:
        entries = groups[name]
        return {
            each
            for entry in entries
            for each in (expand(entry["include-group"]) if isinstance(entry, dict) else {entry})
        }

    assert set(extras["dev"]) == expand("dev")
    assert set(extras["wandb"]) <= expand("test")
