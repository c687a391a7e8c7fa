"""Tables and a figure of a grid that `python -m jaxdp.bench` measured, from its records."""

import io
import itertools
import pathlib
from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict

import matplotlib
import numpy as np
import rich.box
import rich.console
import rich.table
from matplotlib.figure import Figure

from jaxdp.registry import ConfigError
from jaxdp.rundir.read import read_rows
from jaxdp.rundir.schemas import conforms
from jaxdp.units import bytes_text

Record = dict[str, Any]

# The palette of Okabe and Ito, distinct for all color vision.
COLORS = {
    "single": "#4d4d4d",
    "central": "#d55e00",
    "pmap": "#0072b2",
    "shard_map": "#009e73",
    "sharded": "#cc79a7",
}
MARKERS = {"single": "o", "central": "v", "pmap": "s", "shard_map": "D", "sharded": "^"}
_WIDTH = 100
_PANELS_PER_ROW = 4
_STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 12,
    "svg.fonttype": "none",
    "text.parse_math": False,
}


class _Rates(TypedDict):
    median: float
    min: float
    max: float


class _Cell(TypedDict):
    """What each line of a bench.jsonl has."""

    model: str
    dataset: str
    precision: str
    strategy: str
    devices: int
    global_batch_size: int
    status: str
    reason: str | None
    settings: NotRequired[dict[str, Any]]
    images_per_second: NotRequired[_Rates]


def read_grids(path: pathlib.Path) -> list[list[Record]]:
    """Returns the records of a bench.jsonl by model, dataset, precision and settings.

    A cell that was measured again has its last measurement.

    Raises:
        ConfigError: if `python -m jaxdp.bench` did not write the file.
    """
    records, lost = read_rows(path)
    if lost or not records or not all(conforms(record, _Cell) for record in records):
        problem = "it holds something else than the lines of a bench.jsonl"
        raise ConfigError("run_dir", path, f"cannot be read: {problem}")
    alike: dict[tuple[str, ...], dict[Any, Record]] = {}
    for record in records:
        what = ("model", "dataset", "precision", "settings")
        cells = alike.setdefault(tuple(str(record.get(name)) for name in what), {})
        cells[record["strategy"], record["devices"], record["global_batch_size"]] = record
    return [[cells[key] for key in sorted(cells)] for cells in alike.values()]


def rate(record: Record) -> float | None:
    """Returns images per second, None for a cell that could not be measured."""
    return record["images_per_second"]["median"] if record["status"] == "ok" else None


def efficiencies(records: Sequence[Record]) -> list[dict[str, float | None]]:
    """Returns the scaling efficiency of each record, 1 being perfect; None if there is nothing to
    compare it with.

    `strong` compares with the same global batch on one device, `weak` with the batch of one of its
    devices on one device: of the same strategy, or else of `single`.
    """
    alone = {
        (record["strategy"], record["global_batch_size"]): rate(record)
        for record in records
        if record["devices"] == 1
    }

    def compared(record: Record, batch: int | float) -> float | None:
        own, devices = rate(record), record["devices"]
        base = alone.get((record["strategy"], batch)) or alone.get(("single", batch))
        return own / devices / base if own and base and devices > 1 else None

    return [
        {
            "strong": compared(record, record["global_batch_size"]),
            "weak": compared(record, record["global_batch_size"] / record["devices"]),
        }
        for record in records
    ]


def three_digits(value: float | None) -> str:
    """Returns three digits of a number, or all before its decimal point if they are more."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.3g}%"


def columns(records: Sequence[Record]) -> dict[str, list[str]]:
    """Returns the texts of each column by its title, without columns that are empty."""
    rows = []
    for record, scaling in zip(records, efficiencies(records), strict=True):
        memory, rates = record.get("memory_bytes"), record.get("images_per_second")
        spread = 50 * (rates["max"] - rates["min"]) / rates["median"] if rates else None
        failed = "OOM" if record["status"] == "oom" else "failed"
        rows.append(
            {
                "strategy": record["strategy"],
                "devices": str(record["devices"]),
                "batch": str(record["global_batch_size"]),
                "images/s": three_digits(rate(record)) or failed,
                "±%": "" if spread is None else f"{spread:.0f}",
                "step": three_digits(record.get("ms_per_step", {}).get("median")),
                "compile s": three_digits(record.get("compile_seconds")),
                "memory": "" if memory is None else bytes_text(memory),
                "strong": _percent(scaling["strong"]),
                "weak": _percent(scaling["weak"]),
            }
        )
    texts = {title: [row[title] for row in rows] for title in rows[0]}
    return {title: column for title, column in texts.items() if any(column)}


def show(records: Sequence[Record]) -> None:
    """Prints the table of a grid, and beneath it what went wrong; no wider than 100 columns."""
    console = rich.console.Console(highlight=False, markup=False, soft_wrap=True)
    console.width = max(console.width, _WIDTH)
    console.print(f"{heading(records)}; {where(records)}")
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    texts = columns(records)
    for title in texts:
        table.add_column(title, no_wrap=True, justify="left" if title == "strategy" else "right")
    rows = zip(records, *texts.values(), strict=True)
    for _, section in itertools.groupby(rows, lambda row: row[1:3]):  # strategy and devices
        for record, *cells in section:
            table.add_row(*cells, style=None if record["status"] == "ok" else "red")
        table.add_section()
    console.print(table)
    notes = "Times are milliseconds of a step; memory is planned, of one device."
    if {"strong", "weak"} & set(texts):
        notes += " Strong and weak: scaling efficiency."
    console.print(notes, style="dim")
    for record in records:
        if record["reason"]:
            cell = f"{record['strategy']} on {_devices(record['devices'])}"
            console.print(f"{cell}, batch {record['global_batch_size']}: {record['reason']}")


def _devices(count: int) -> str:
    return f"{count} device{'s' if count > 1 else ''}"


def heading(records: Sequence[Record]) -> str:
    """Says what was trained."""
    known = next((record for record in records if "parameters" in record), records[0])
    about = ""
    if "parameters" in known:
        shape = "x".join(map(str, known["image_shape"]))
        about = f" ({shape} images, {known['parameters'] / 1e6:.3g} M parameters)"
    return f"{known['model']} on {known['dataset'] or 'its dataset'}{about}, {known['precision']}"


def where(records: Sequence[Record]) -> str:
    """Says on which devices, and what simulated ones share."""
    known = next((record for record in records if "platform" in record), None)
    most = max(record["devices"] for record in records)
    if known is None:
        return "on an unknown device"
    if known["platform"] != "cpu":
        return f"up to {most} x {known['device_kind']}" if most > 1 else known["device_kind"]
    cores = f"{known['cores']} core{'s' if known['cores'] > 1 else ''}"
    return f"simulated devices share the {cores} of one CPU" if most > 1 else f"CPU, {cores}"


def plot(records: Sequence[Record], folder: pathlib.Path) -> list[pathlib.Path]:
    """Draws throughput over the global batch into throughput.png and throughput.svg."""
    paths = [folder / f"throughput.{ending}" for ending in ("png", "svg")]
    for path in paths:
        path.write_bytes(draw(records, path.suffix[1:]))
    return paths


def draw(records: Sequence[Record], kind: str) -> bytes:
    """Returns a figure as PNG or SVG: a panel for each number of devices, with a curve for each
    strategy.
    """
    counts = sorted({record["devices"] for record in records})
    width = min(len(counts), _PANELS_PER_ROW)
    height = -(-len(counts) // width)
    content = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure = Figure((max(3.3 * width + 0.6, 11.2), 3.1 * height + 1.7), layout="constrained")
        panels: list[Any] = list(figure.subplots(height, width, sharey=True, squeeze=False).flat)
        for axes in panels[len(counts) :]:
            axes.remove()
        handles: dict[str, Any] = {}
        for axes, devices in zip(panels, counts, strict=False):
            _draw_panel(axes, records, devices)
            drawings, labels = axes.get_legend_handles_labels()
            handles |= zip(labels, drawings, strict=True)
        panels[0].set_ylim(bottom=0)
        panels[0].yaxis.set_major_formatter("{x:,.0f}")
        figure.supylabel("images / s", fontsize=12)
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=6, frameon=False)
        title = f"Training throughput: {heading(records)}\n{where(records)}"
        repeats = max(record.get("repeats", 1) for record in records)
        if repeats > 1:
            title += f" · median and range of {repeats} repetitions"
        figure.suptitle(title, x=0.012, ha="left", fontsize=12)
        figure.savefig(content, format=kind, dpi=160)
    return content.getvalue()


def _draw_panel(axes: Any, records: Sequence[Record], devices: int) -> None:
    for index, strategy in enumerate(sorted({record["strategy"] for record in records})):
        look = {"color": COLORS.get(strategy, "#000000")}
        rates: dict[int, dict[str, float]] = {}
        for record in records:
            size = record["global_batch_size"]
            if (record["strategy"], record["devices"]) != (strategy, devices):
                continue
            if record["status"] == "ok":
                rates[size] = record["images_per_second"]
            elif record["status"] == "oom":
                cross = {"marker": "x", "markersize": 8, "markeredgewidth": 2.4, "linestyle": ""}
                axes.plot(
                    size,
                    0.04 + 0.055 * index,  # strategies one above the other
                    transform=axes.get_xaxis_transform(),
                    label="out of memory",
                    gid=f"oom-{strategy}-{devices}-{size}",
                    **cross | look,
                )
        if rates:
            sizes = sorted(rates)
            low, median, high = (
                np.array([rates[size][name] for size in sizes]) for name in ("min", "median", "max")
            )
            look |= {"marker": MARKERS.get(strategy, "o"), "linewidth": 2, "label": strategy}
            axes.errorbar(sizes, median, (median - low, high - median), capsize=3, **look)
    sizes = sorted({record["global_batch_size"] for record in records})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, list(map(str, sizes)))
    axes.minorticks_off()
    axes.set(xlabel="global batch size", xlim=(sizes[0] / 1.25, sizes[-1] * 1.25))
    axes.grid(alpha=0.25)
    axes.set_title(_devices(devices), fontsize=12, loc="left")
