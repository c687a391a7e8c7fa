"""The table and the figure of a grid that `python -m jaxdp.bench` measured, from its records."""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import rich.console
import rich.table
from matplotlib.figure import Figure

from jaxdp.reporting import fonts
from jaxdp.runtime import trial
from jaxdp.runtime.trial import Record
from jaxdp.units import bytes_text

_WIDTH = 100
_MARKERS = "osD^vP*X"


def efficiency(record: Record, records: Sequence[Record]) -> float | None:
    """Returns the throughput divided by devices times the throughput of one device.

    The device has the same global batch and the same strategy, or else `single`. None if there is
    nothing to compare with.
    """
    alone = {
        each["strategy"]: each["images_per_second"]["median"]
        for each in records
        if each["status"] == "ok"
        and (each["devices"], each["global_batch_size"]) == (1, record["global_batch_size"])
    }
    base = alone.get(record["strategy"]) or alone.get("single")
    if base is None or record["devices"] == 1:
        return None
    return record["images_per_second"]["median"] / record["devices"] / base


def show(records: Sequence[Record]) -> None:
    """Prints the table of a grid, and beneath it what went wrong."""
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
    console = rich.console.Console(highlight=False, markup=False, soft_wrap=True)
    console.width = max(console.width, _WIDTH)
    console.print(table)
    console.print("Memory is planned, of one device. Efficiency: compared with one device.")
    for record in records:
        if record["reason"]:
            console.print(f"{trial.cell_name(record)}: {record['reason']}")


def heading(records: Sequence[Record]) -> str:
    """Returns what was trained on which device, and what simulated devices share."""
    record = next((each for each in records if "platform" in each), records[0])
    kind = record.get("device_kind", "an unknown device")
    if record.get("platform") == "cpu":
        kind = f"devices of a CPU, which share its {record['cores']} cores"
    return f"{record['model']} on {record['dataset']}, {record['precision']}; {kind}"


def plot(records: Sequence[Record], path: pathlib.Path) -> None:
    """Draws throughput over the global batch: a curve for each strategy and number of devices."""
    curves: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record["global_batch_size"]):
        curves.setdefault(trial.place_name(record), []).append(record)
    figure = Figure((9, 5), layout="constrained")
    axes: Any = figure.subplots()
    for index, (label, cells) in enumerate(sorted(curves.items())):
        color = f"C{index}"
        for record in cells:
            if record["status"] == "oom":
                place = (record["global_batch_size"], 0)
                axes.annotate("OOM", place, color=color, ha="center", va="bottom")
        done = [record for record in cells if record["status"] == "ok"]
        sizes = [record["global_batch_size"] for record in done]
        low, median, high = (
            np.array([record["images_per_second"][name] for record in done])
            for name in ("min", "median", "max")
        )
        ends, marker = (median - low, high - median), _MARKERS[index % len(_MARKERS)]
        axes.errorbar(sizes, median, ends, color=color, marker=marker, capsize=3, label=label)
    sizes = sorted({record["global_batch_size"] for record in records})
    axes.set(xscale="log", ylim=(0, None), xlabel="global batch size", ylabel="images / s")
    axes.set_xticks(sizes, list(map(str, sizes)))
    axes.minorticks_off()
    axes.set_title(heading(records), fontsize="medium", parse_math=False)
    figure.legend(loc="outside right upper", frameon=False)
    with fonts.without_warnings({}):
        figure.savefig(path, dpi=160)
