"""Table and plots of a grid that `python -m jaxdp.bench` measured, from its records."""

import math
import pathlib
from collections.abc import Sequence
from typing import Any

import matplotlib
import rich.box
import rich.console
import rich.table
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from jaxdp.parsing import parse_json
from jaxdp.registry import ConfigError
from jaxdp.reporting import fonts
from jaxdp.rundir.read import DamagedFile, read_text
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
_CROSS: dict[str, Any] = {"marker": "x", "markersize": 8, "markeredgewidth": 2.4, "linestyle": ""}
_WIDTH = 100
_PANELS_PER_ROW = 4
_SECTION = ("strategy", "devices")
# Titles of two lines, so that the table fits.
_BREAKS = {"devices": "de-\nvices", "dispatch": "dis-\npatch", "compile s": "com-\npile s"}


def read(path: str) -> list[Record]:
    """Reads the cells of a bench.jsonl.

    Raises:
        ConfigError: if `python -m jaxdp.bench` did not write the file.
    """
    try:
        lines = read_text(pathlib.Path(path)).splitlines()
        records = [parse_json(line) for line in lines if line.strip()]
        keys = [(key(record), rate(record), record["dataset"]) for record in records]
    except (ValueError, KeyError, TypeError) as error:
        reason = "it holds something else than the lines of a bench.jsonl"
        if isinstance(error, DamagedFile):
            reason = error.problem
        raise ConfigError("run_dir", path, f"cannot be read: {reason}") from error
    if not keys:
        raise ConfigError("run_dir", path, "holds no cells")
    return records


def key(record: Record) -> tuple[Any, ...]:
    """Returns what identifies a cell in every grid that has it."""
    return tuple(
        record[name] for name in ("model", "strategy", "global_batch_size", "devices", "precision")
    )


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


def show(records: Sequence[Record]) -> None:
    """Prints the table of a grid, and beneath it what went wrong; no wider than 100 columns."""
    console = rich.console.Console(highlight=False, markup=False, soft_wrap=True)
    console.width = max(console.width, _WIDTH)
    console.print(f"{heading(records)}; {where(records)}")
    console.print(table(records))
    notes = "Times are milliseconds of a step; memory is planned, of one device."
    if any(each["strong"] or each["weak"] for each in efficiencies(records)):
        notes += " Strong and weak: scaling efficiency."
    console.print(notes, style="dim")
    for record in records:
        if record["reason"]:
            cell = f"{record['strategy']} on {_devices(record['devices'])}"
            console.print(f"{cell}, batch {record['global_batch_size']}: {record['reason']}")


def _devices(count: int) -> str:
    return f"{count} device{'s' if count > 1 else ''}"


def columns(records: Sequence[Record]) -> dict[str, list[str]]:
    """Returns the texts of each column by its title, without columns that are empty."""
    scaling = efficiencies(records)

    def part(name: str) -> list[str]:
        return [_short(record.get("parts_ms", {}).get(name)) for record in records]

    texts = {
        "images/s": [_rate_text(record) for record in records],
        "±%": [_spread_text(record) for record in records],
        "step": [_short(record.get("ms_per_step", {}).get("median")) for record in records],
        "input": part("input"),
        "dispatch": part("dispatch"),
        "compile s": [_short(record.get("compile_seconds")) for record in records],
        "memory": [_narrow(record.get("memory_bytes")) for record in records],
        "of peak": [_percent(record.get("fraction_of_peak")) for record in records],
        "strong": [_percent(each["strong"]) for each in scaling],
        "weak": [_percent(each["weak"]) for each in scaling],
    }
    return {title: column for title, column in texts.items() if any(column)}


def table(records: Sequence[Record]) -> rich.table.Table:
    """Returns the records of a grid as a table for the terminal, one row each."""
    found = columns(records)
    grid = rich.table.Table(box=rich.box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    grid.add_column("strategy", no_wrap=True, vertical="bottom")
    for title in ("devices", "batch", *found):
        grid.add_column(_BREAKS.get(title, title), no_wrap=True, justify="right", vertical="bottom")
    for index, record in enumerate(records):
        named = [str(record[name]) for name in ("strategy", "devices", "global_batch_size")]
        following = [
            str(each[name]) for each in records[index + 1 : index + 2] for name in _SECTION
        ]
        grid.add_row(
            *named,
            *(column[index] for column in found.values()),
            style=None if record["status"] == "ok" else "red",
            end_section=following not in ([], named[:2]),
        )
    return grid


def _rate_text(record: Record) -> str:
    return _short(rate(record)) or {"oom": "OOM"}.get(record["status"], "failed")


def _spread_text(record: Record) -> str:
    rates = record.get("images_per_second")
    return f"{50 * (rates['max'] - rates['min']) / rates['median']:.0f}" if rates else ""


def _short(value: float | None) -> str:
    """Returns three digits of a number, or all before its decimal point if they are more."""
    if value is None:
        return ""
    digits = 2 - (math.floor(math.log10(abs(value))) if value else 0)
    return f"{value:.{min(max(digits, 0), 3)}f}"


def _narrow(count: int | None) -> str:
    return "" if count is None else bytes_text(count).replace(" ", "").removesuffix("iB")


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.{0 if value >= 0.1 else 1}f}%"


def _known(records: Sequence[Record]) -> Record:
    return next((record for record in records if record["status"] == "ok"), records[0])


def _about(records: Sequence[Record]) -> str:
    known = _known(records)
    if "parameters" not in known:
        return ""
    shape = "x".join(map(str, known["image_shape"]))
    return f"{shape} images, {known['parameters'] / 1e6:.3g} M parameters"


def _trained(records: Sequence[Record], about: str = "") -> str:
    known = _known(records)
    return f"{known['model']} on {known['dataset'] or 'its dataset'}{about}, {known['precision']}"


def heading(records: Sequence[Record]) -> str:
    """Says what was trained."""
    about = _about(records)
    return _trained(records, f" ({about})" if about else "")


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
    """Draws throughput over the global batch into throughput.png and throughput.svg.

    There is a panel for each number of devices and a curve for each strategy.
    """
    counts = sorted({record["devices"] for record in records})
    columns = min(len(counts), _PANELS_PER_ROW)
    rows = -(-len(counts) // columns)
    style: Any = {"axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none"}
    with matplotlib.rc_context(style | {"font.size": 12}):
        size = (max(3.3 * columns + 0.6, 11.2), 3.1 * rows + 1.7)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for index, axes in enumerate(grid.flat):
            axes.set_visible(index < len(counts))
            if index < len(counts):
                _draw_panel(axes, records, counts[index])
                axes.set_ylabel("images / s" if index % columns == 0 else "")
        rates = [record["images_per_second"]["max"] for record in records if rate(record)]
        fastest = max(rates, default=1.0)
        grid[0, 0].set_ylim(0, 1.06 * fastest)
        grid[0, 0].yaxis.set_major_formatter("{x:,.0f}" if fastest >= 10 else "{x:g}")
        found = [axes.get_legend_handles_labels() for axes in grid.flat]
        handles = {name: line for each in found for line, name in zip(*each, strict=True)}
        if any(record["status"] == "oom" for record in records):
            handles["out of memory"] = Line2D([], [], color="0.35", **_CROSS)
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=5, frameon=False)
        repeats = max(record.get("repeats", 1) for record in records)
        spread = f"median and range of {repeats} repetitions" if repeats > 1 else ""
        facts = " · ".join(filter(None, [_about(records), where(records), spread]))
        title = f"Training throughput: {_trained(records)}\n{facts}"
        figure.suptitle(fonts.drawn(title), x=0.012, ha="left", fontsize=12)
        paths = [folder / f"throughput.{ending}" for ending in ("png", "svg")]
        for path in paths:
            figure.savefig(path, dpi=160)
    return paths


def _draw_panel(axes: Any, records: Sequence[Record], devices: int) -> None:
    sizes = sorted({record["global_batch_size"] for record in records})
    here = [record for record in records if record["devices"] == devices]
    for strategy in dict.fromkeys(record["strategy"] for record in here):
        color = COLORS.get(strategy, "#000000")
        done = [record for record in here if record["strategy"] == strategy and rate(record)]
        done.sort(key=lambda record: record["global_batch_size"])
        rates = [record["images_per_second"] for record in done]
        axes.errorbar(
            [record["global_batch_size"] for record in done],
            [each["median"] for each in rates],
            [
                [each["median"] - each["min"] for each in rates],
                [each["max"] - each["median"] for each in rates],
            ],
            color=color,
            marker=MARKERS.get(strategy, "o"),
            linewidth=2,
            capsize=3,
            label=strategy if done else None,
        )
    lost: list[int] = []
    for record in [record for record in here if record["status"] == "oom"]:
        size, strategy = record["global_batch_size"], record["strategy"]
        cross = _CROSS | {"color": COLORS.get(strategy, "#000000"), "clip_on": False}
        axes.plot(
            [size],
            [0.04 + 0.055 * lost.count(size)],  # one above the other
            **cross,
            transform=axes.get_xaxis_transform(),
            gid=f"oom-{strategy}-{devices}-{size}",
        )
        lost.append(size)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)
    axes.set_xlabel("global batch size")
    axes.tick_params(labelbottom=True)
    axes.grid(alpha=0.25)
    axes.set_title(_devices(devices), fontsize=12, loc="left")
