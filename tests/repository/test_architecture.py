"""Devices, collectives and calls in which all processes take part are named in few places."""

import ast
import pathlib
import re
import tomllib
import traceback
from collections.abc import Collection, Mapping
from typing import Any

import pytest

import jaxdp
from jaxdp import train
from jaxdp.tasks.classification import Classification

SOURCE = pathlib.Path(jaxdp.__file__).parent
ROOT = pathlib.Path(__file__).parents[2]
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
    "device_put",
}
# Files elsewhere that put arrays on the default device of their process, and why.
PLACING = {
    "build/initial_weights.py": "loaded arrays replace those of a new model, as they are",
    "models/batch_norm.py": "constants of a new model, without compiling a program for each shape",
    "models/initializers.py": "numbers drawn on the host, without compiling a copy for each shape",
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
        "sharding/communication.py"
    }
    assert {name for name, found in files.items() if found & HOST_COLLECTIVES} == {
        "checkpoint/checkpoints.py", "sharding/memory.py", "sharding/sharded.py",
    }  # fmt: skip
    naming_devices = {name for name, found in files.items() if found & DEVICES}
    assert naming_devices
    assert all(files[name] & DEVICES == {"device_put"} for name in PLACING)
    naming_devices -= PLACING.keys()
    assert all(name.startswith(("sharding/", "runtime/")) for name in naming_devices), (
        naming_devices
    )


def modules() -> dict[str, pathlib.Path]:
    """Returns the files of jaxdp by the names of their modules."""
    names = {
        path: ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
        for path in SOURCE.rglob("*.py")
    }
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def imports_of(path: pathlib.Path, known: Collection[str]) -> set[str]:
    """Returns what a file imports of jaxdp, also inside functions and for types alone."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & {*known}) or {str(node.module)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & {*known}


def circles(arrows: Mapping[str, Collection[str]]) -> set[str]:
    """Returns the names on circles, and those from which a circle is reached."""
    left = {name: {*needed} for name, needed in arrows.items()}
    while done := [name for name, needed in left.items() if not needed & left.keys()]:
        for name in done:
            del left[name]
    return {*left}


def package_of(module: str) -> str:
    """Returns the package or module right under jaxdp in which a module is."""
    return ".".join(module.split(".")[:2])


def arrows_of_packages() -> dict[str, set[str]]:
    """Returns what the modules of each package, or a module right under jaxdp, import of others."""
    paths = modules()
    arrows: dict[str, set[str]] = {package_of(module): set() for module in paths}
    for module, path in paths.items():
        package = package_of(module)
        arrows[package] |= {package_of(other) for other in imports_of(path, paths)} - {package}
    return arrows


def test_no_files_import_each_other_in_a_circle() -> None:
    paths = modules()
    assert not circles({name: imports_of(path, paths) - {name} for name, path in paths.items()})


def test_no_packages_import_each_other_in_a_circle() -> None:
    arrows = arrows_of_packages()
    assert len(arrows) > 30
    assert not circles(arrows)


def test_packages_import_downward() -> None:
    """In the order of the layers in pyproject.toml, and in the order of docs/architecture.md."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = project["tool"]["importlinter"]["contracts"]
    layers = [layer.split(" | ") for layer in reversed(contract["layers"])]
    heights = {package: height for height, layer in enumerate(layers) for package in layer}
    arrows = arrows_of_packages()
    assert arrows.keys() == {*heights, "jaxdp"}
    upward = [
        f"{package} imports {other}"
        for package, others in arrows.items()
        for other in others
        if package != "jaxdp" != other and heights[other] >= heights[package]
    ]
    assert not upward
    page = (ROOT / "docs" / "architecture.md").read_text().partition("```\n")[2]
    listed = [f"jaxdp.{name}" for name in re.findall(r"^  ([a-z]+)/", page, re.MULTILINE)]
    assert {*listed} == {f"jaxdp.{path.parent.name}" for path in SOURCE.glob("*/__init__.py")}
    for number, package in enumerate(listed):
        below = arrows[package] & {*listed[number:]}
        assert not below, f"{package} imports {below}, which the page lists below it"


def test_there_are_no_drawers_for_everything() -> None:
    assert not {"utils", "common", "helpers", "misc"} & {path.stem for path in SOURCE.rglob("*.py")}


def test_the_places_that_the_architecture_names_are_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`([a-z_/]+(?:\.py|/))`", page))
    rooms = set(re.findall(r"[a-z]+/", page.partition("```\n")[2].partition("```")[0]))
    assert len(rooms) >= 12
    missing = {
        name
        for name in named | rooms
        if not ((ROOT if name.startswith("tests/") else SOURCE) / name).exists()
    }
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
