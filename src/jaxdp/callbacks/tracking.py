"""Provides flat names of metrics, for all loggers."""

from typing import Any, cast

from jaxdp.rundir.read import Row


def metrics_of(row: Row) -> dict[str, Any]:
    """Returns the numbers of a row under flat names: `train/loss`, and `device/0/memory_bytes` for
    a list with one number for each device.
    """
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, list):
            kind, _, metric = name.partition("_")
            for number, each in enumerate(cast(list[Any], value)):
                found[f"{kind}/{number}/{metric}"] = each
        elif name not in ("step", "split"):
            found[f"{row['split']}/{name}"] = value
    return found
