"""Lists the nodes of a Ray cluster and what they have."""

import dataclasses
from typing import Any

import rich.console
import rich.table

from jaxdp.runtime import ray_cluster
from jaxdp.units import bytes_text


def survey(address: str) -> dict[str, Any]:
    """Returns the nodes of a cluster, and how much of what they have is free now, ready for JSON.

    Args:
        address: HOST:PORT of its head, or auto.

    Raises:
        ConfigError: if Ray is missing, or the cluster cannot be reached.
    """
    with ray_cluster.connected(address, "jaxdp.devices"):
        return {"nodes": [dataclasses.asdict(node) for node in ray_cluster.nodes()], "free": ray_cluster.free()}


def print_cluster(found: dict[str, Any]) -> None:
    """Prints the nodes of a cluster on standard output."""
    console = rich.console.Console()
    table = rich.table.Table("node", "address", "host", "state")
    for title in ("CPUs", "GPUs", "memory"):
        table.add_column(title, justify="right", no_wrap=True)
    for node in found["nodes"]:
        gpus = f"{node['gpus']:g} {node['kind']}".rstrip()
        state = "alive" if node["alive"] else "dead"
        names = [node["id"][:8], node["address"], node["host"], state]
        table.add_row(*names, f"{node['cpus']:g}", gpus, bytes_text(node["memory_bytes"]) if node["alive"] else "")
    console.print(table)
    alive = [node for node in found["nodes"] if node["alive"]]
    totals = {name: sum(node[name] for node in alive) for name in ("cpus", "gpus")}
    free = ", ".join(f"{found['free'][name]:g} of {total:g} {name.upper()[:-1]}s" for name, total in totals.items())
    console.print(f"free: {free}", highlight=False)
