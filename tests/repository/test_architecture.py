"""Devices, collectives and calls in which all processes take part are named in few places."""

import ast
import pathlib
import re
import traceback
from collections.abc import Collection
from typing import Any

import pytest

import jaxdp
from jaxdp import train
from jaxdp.tasks.classification import Classification

SOURCE = pathlib.Path(jaxdp.__file__).parent
COLLECTIVES = {
    "pmean",
    "psum",
    "pmax",
    "pmin",
    "pcast",
    "all_gather",
    "all_to_all",
    "ppermute",
    "psum_scatter",
}
HOST_COLLECTIVES = {
    "multihost_utils",
    "process_allgather",
    "broadcast_one_to_all",
    "sync_global_devices",
    "assert_equal",
}
DEVICES = {
    "pmap",
    "shard_map",
    "Mesh",
    "NamedSharding",
    "PartitionSpec",
    "SingleDeviceSharding",
    "local_devices",
    "device_count",
}


def names_in(path: pathlib.Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    return (
        {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        | {node.id for node in nodes if isinstance(node, ast.Name)}
        | {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    )


def test_collectives_and_devices_are_named_where_they_belong() -> None:
    files = {path.relative_to(SOURCE).as_posix(): names_in(path) for path in SOURCE.rglob("*.py")}
    assert {name for name, found in files.items() if found & COLLECTIVES} == {
        "sharding/replicas.py"
    }
    assert {name for name, found in files.items() if found & HOST_COLLECTIVES} == {
        "checkpoint/checkpoints.py", "sharding/memory.py", "sharding/sharded.py",
    }  # fmt: skip
    naming_devices = {name for name, found in files.items() if found & DEVICES}
    assert naming_devices
    assert all(name.startswith(("sharding/", "runtime/")) for name in naming_devices), (
        naming_devices
    )


def imports_of(path: pathlib.Path, modules: Collection[str]) -> set[str]:
    """Returns what a file imports of jaxdp, also inside functions, but not for types alone."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & {*modules} or {str(node.module)}
    return found & {*modules}


def test_no_files_import_each_other_in_a_circle() -> None:
    paths = {
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in SOURCE.rglob("*.py")
    }
    imports = {module: imports_of(path, paths) - {module} for module, path in paths.items()}
    left = dict(imports)
    while done := [module for module, needed in left.items() if not needed & left.keys()]:
        for module in done:
            del left[module]
    assert not left


def test_there_are_no_drawers_for_everything() -> None:
    assert not {"utils", "common", "helpers", "misc"} & {path.stem for path in SOURCE.rglob("*.py")}


def test_the_places_that_the_architecture_names_are_there() -> None:
    page = (pathlib.Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`([a-z_/]+(?:\.py|/))`", page)) - {
        "tests/repository/test_architecture.py"
    }
    rooms = set(re.findall(r"[a-z]+/", page.partition("```\n")[2].partition("```")[0]))
    assert len(rooms) >= 12
    missing = {name for name in named | rooms if not (SOURCE / name).exists()}
    assert not missing
    questions = page.partition("## Where would I change")[2].count("\n| ") - 1
    assert questions >= 10


def test_few_calls_lead_from_the_command_to_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 12 frames of jaxdp, that of the module included, which this test does not have."""
    losses, found = Classification.losses, list[str]()

    def counted(*arguments: Any) -> Any:
        frames = [frame for frame in traceback.extract_stack() if str(SOURCE) in frame.filename]
        found[:] = [f"{frame.filename}:{frame.name}" for frame in frames]
        return losses(*arguments)

    monkeypatch.setattr(Classification, "losses", counted)
    words = "--model cnn --model-kwargs width=4 hidden=16 --devices 2 --steps 1 --run-dir run"
    assert train.main(words.split()) == 0
    assert 5 < len(found) <= 11, "\n".join(found)
