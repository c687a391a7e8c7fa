"""Lists the nodes of a Ray cluster and what they have."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import rich.console
import rich.table

from jaxdp.runtime import ray_cluster
from jaxdp.runtime.ray_cluster import Node
from jaxdp.units import bytes_text


def survey(address: str) -> dict[str, Any]:
    """Returns the nodes of a cluster with the workers each has room for, and how much is free now,
    ready for JSON.

    Args:
        address: HOST:PORT of its head, or auto.

    Raises:
        ConfigError: if Ray is missing, or the cluster cannot be reached.
    """
    with ray_cluster.connected(address):
        return described(ray_cluster.nodes()) | {"free": ray_cluster.free()}


def described(nodes: Sequence[Node]) -> dict[str, Any]:
    """Returns what nodes have.

    Workers are those of `jaxdp.launch ray` by default, which have all that they need on one node.
    """
    worker = {"cpus": 1, "gpus": ray_cluster.gpus_per_worker(nodes)}
    rows = [
        dataclasses.asdict(node) | {"workers": node.slots(**worker) if node.alive else 0}
        for node in nodes
    ]
    return {"nodes": rows, "worker": worker}


def print_cluster(found: dict[str, Any]) -> None:
    """Prints the nodes of a cluster on standard output."""
    console = rich.console.Console()
    table = rich.table.Table("node", "address", "host", "state")
    for title in ("CPUs", "GPUs", "memory", "workers"):
        table.add_column(title, justify="right", no_wrap=True)
    for node in found["nodes"]:
        gpus = f"{node['gpus']:g} {node['kind']}".rstrip()
        state = "alive" if node["alive"] else "dead"
        names = [node["id"][:8], node["address"], node["host"], state]
        memory, workers = (
            (bytes_text(node["memory_bytes"]), str(node["workers"])) if node["alive"] else ("", "")
        )
        table.add_row(*names, f"{node['cpus']:g}", gpus, memory, workers)
    console.print(table)
    alive = [node for node in found["nodes"] if node["alive"]]
    totals = {name: sum(node[name] for node in alive) for name in ("cpus", "gpus")}
    free = ", ".join(
        f"{found['free'][name]:g} of {total:g} {name.upper()[:-1]}s"
        for name, total in totals.items()
    )
    console.print(f"free: {free}", highlight=False)
    room, needs = sum(node["workers"] for node in alive), ray_cluster.needs_text(**found["worker"])
    workers = f"{room} worker{'s' if room != 1 else ''}"
    console.print(
        f"room for {workers} of {needs} each, if nobody else uses the cluster", highlight=False
    )
