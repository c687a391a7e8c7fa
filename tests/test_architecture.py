"""Devices, collectives and calls in which all processes take part are named in few places."""

import ast
import pathlib
import re

import jaxdp

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


def test_there_are_no_drawers_for_everything() -> None:
    assert not {"utils", "common", "helpers", "misc"} & {path.stem for path in SOURCE.rglob("*.py")}


def test_the_places_that_the_architecture_names_are_there() -> None:
    page = (pathlib.Path(__file__).parent.parent / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`([a-z_/]+(?:\.py|/))`", page)) - {"tests/test_architecture.py"}
    rooms = set(re.findall(r"[a-z]+/", page.partition("```\n")[2].partition("```")[0]))
    assert len(rooms) >= 12
    missing = {name for name in named | rooms if not (SOURCE / name).exists()}
    assert not missing
    questions = page.partition("## Where would I change")[2].count("\n| ") - 1
    assert questions >= 10
