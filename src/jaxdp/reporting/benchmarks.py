"""Prints the table of a grid that `python -m jaxdp.bench` measured, from its records."""

from collections.abc import Sequence
from typing import Any

import rich.table

from jaxdp.reporting.console import wide_console
from jaxdp.text.units import bytes_text

Record = dict[str, Any]


def cell_name(record: Record) -> str:
    """Returns e.g. `pmap on 2 devices, batch 64`."""
    count = record["devices"]
    place = f"{record['strategy']} on {count} device{'s' if count > 1 else ''}"
    return f"{place}, batch {record['global_batch_size']}"


def efficiency(record: Record, records: Sequence[Record]) -> float | None:
    """Returns the throughput divided by devices times the throughput of one device.

    The single device has the same global batch, and the same strategy or the first one that was
    measured on one device. Returns None if there is no measurement to compare with.
    """
    alone = {
        each["strategy"]: each["images_per_second"]["median"]
        for each in records
        if each["status"] == "ok"
        and (each["devices"], each["global_batch_size"]) == (1, record["global_batch_size"])
    }
    base = alone.get(record["strategy"]) or next(iter(alone.values()), None)
    if base is None or record["devices"] == 1:
        return None
    return record["images_per_second"]["median"] / record["devices"] / base


def show(records: Sequence[Record]) -> None:
    """Prints the table of a grid, followed by the problems."""
    table = rich.table.Table("strategy", title=heading(records))
    for title in ("devices", "batch", "images/s", "±%", "compile s", "memory", "efficiency"):
        table.add_column(title, justify="right", no_wrap=True)
    for record in records:
        cells = [record["strategy"], str(record["devices"]), str(record["global_batch_size"])]
        if record["status"] == "ok":
            rates = record["images_per_second"]
            spread = 50 * (rates["max"] - rates["min"]) / rates["median"]
            cells += [f"{rates['median']:,.0f}", f"{spread:.0f}"]
            cells += [f"{record['compile_seconds']:.1f}", bytes_text(record["memory_bytes"])]
            scaling = efficiency(record, records)
            cells.append("" if scaling is None else f"{scaling:.0%}")
        else:
            cells.append("OOM" if record["status"] == "oom" else "failed")
        table.add_row(*cells)
    console = wide_console()
    console.print(table)
    console.print("Memory is planned, of one device. Efficiency: compared with one device.")
    for record in records:
        if record["reason"]:
            console.print(f"{cell_name(record)}: {record['reason']}")


def heading(records: Sequence[Record]) -> str:
    """Returns a line on the model and the devices, and on the resources that simulated devices
    share.
    """
    record = next((each for each in records if "platform" in each), records[0])
    kind = record.get("device_kind", "an unknown device")
    if record.get("platform") == "cpu":
        kind = f"devices of a CPU, which share its {record['cores']} cores"
    return f"{record['model']} on {record['dataset']}, {record['precision']}; {kind}"
