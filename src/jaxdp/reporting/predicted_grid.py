"""Table and plots of a grid that `python -m jaxdp.bench --target` predicted, from its records."""

import pathlib
from collections.abc import Sequence
from typing import Any

import rich.box
import rich.console
import rich.table

from jaxdp.reporting import benchmarks
from jaxdp.units import bytes_text

Record = dict[str, Any]
_WIDTH = 100


def show(records: Sequence[Record]) -> None:
    """Prints the table of a grid, and beneath it what does not compile."""
    console = rich.console.Console()
    console = rich.console.Console(width=max(console.width, _WIDTH))
    chip = records[0]["target"].rpartition(":")[0]
    console.print(f"{benchmarks.heading(records)}; predicted for {chip}", highlight=False, markup=False, soft_wrap=True)
    console.print(table(records))
    notes = (
        "Nothing was measured. Times are milliseconds of a step; compute, memory, network: each alone, at the data sheet's rate."
    )
    console.print(notes, highlight=False, soft_wrap=True, style="dim")
    for record in records:
        if record["reason"]:
            devices = f"{record['devices']} device{'s' if record['devices'] > 1 else ''}"
            name = f"{record['strategy']} on {devices}, batch {record['global_batch_size']}"
            console.print(f"{name}: {record['reason']}", highlight=False, soft_wrap=True, markup=False)


def table(records: Sequence[Record]) -> rich.table.Table:
    """Returns the records of a grid as a table for the terminal, one row each."""
    grid = rich.table.Table(box=rich.box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    grid.add_column("strategy", no_wrap=True, vertical="bottom")
    predicted = ("images/s", "step", "compute", "memory", "network", "bound", "bytes", "strong", "weak")
    for title in ("de-\nvices", "batch", *(f"pre-\ndicted\n{title}" for title in predicted)):
        grid.add_column(title, no_wrap=True, justify="right", vertical="bottom")
    for record, scaling in zip(records, benchmarks.efficiencies(_as_measured(records)), strict=True):
        named = [record["strategy"], str(record["devices"]), str(record["global_batch_size"])]
        if record["status"] != "ok":
            grid.add_row(*named, "OOM" if record["status"] == "oom" else "failed", style="red")
            continue
        seconds = record["predicted_seconds"]
        times = [
            f"{1000 * seconds[part]:.2g}" if seconds[part] < 1e-2 else f"{1000 * seconds[part]:,.0f}"
            for part in ("step", "compute", "memory", "network")
        ]
        shares = ["" if share is None else f"{100 * share:.0f}%" for share in (scaling["strong"], scaling["weak"])]
        rate, taken = f"{record['predicted_images_per_second']:,.0f}", bytes_text(record["predicted_bytes"]["total"])
        grid.add_row(*named, rate, *times, record["predicted_bound"], taken, *shares)
    return grid


def plot(records: Sequence[Record], folder: pathlib.Path) -> list[pathlib.Path]:
    """Draws predicted throughput over the global batch into predicted.png and predicted.svg."""
    return benchmarks.plot(_as_measured(records), folder, word="predicted")


def _as_measured(records: Sequence[Record]) -> list[Record]:
    """Returns records with the fields that measured ones have, for the functions that compare and draw those."""
    found = []
    for record in records:
        rate = record.get("predicted_images_per_second")
        platform, chip, _ = record["target"].split(":")
        rates = {} if rate is None else {"images_per_second": {"median": rate, "min": rate, "max": rate}}
        found.append(record | rates | {"platform": platform, "device_kind": f"{chip}, from the program compiled for it"})
    return found
