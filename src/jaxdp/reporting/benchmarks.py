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
Key = tuple[Any, ...]

# The palette of Okabe and Ito, distinct for all color vision.
COLORS = {
    "single": "#4d4d4d",
    "central": "#d55e00",
    "pmap": "#0072b2",
    "shard_map": "#009e73",
    "sharded": "#cc79a7",
}
MARKERS = {"single": "o", "central": "v", "pmap": "s", "shard_map": "D", "sharded": "^"}
_CROSS: dict[str, Any] = {
    "marker": "x",
    "markersize": 8,
    "markeredgewidth": 2.4,
    "linestyle": "none",
}
_WIDTH = 100
_PANELS_PER_ROW = 4
_BREAKS = {  # titles of two lines, so that the table fits
    "devices": "de-\nvices",
    "dispatch": "dis-\npatch",
    "compile s": "com-\npile s",
    "of peak": "of\npeak",
}


def read(path: str) -> list[Record]:
    """Reads the cells of a bench.jsonl.

    Raises:
        ConfigError: if `python -m jaxdp.bench` did not write the file.
    """
    try:
        records = [
            parse_json(line) for line in read_text(pathlib.Path(path)).splitlines() if line.strip()
        ]
        keys = [(key(record), rate(record), record["dataset"]) for record in records]
    except (ValueError, KeyError, TypeError) as error:
        damaged = isinstance(error, DamagedFile)
        reason = (
            error.problem if damaged else "it holds something else than the lines of a bench.jsonl"
        )
        raise ConfigError("run_dir", path, f"cannot be read: {reason}") from error
    if not keys:
        raise ConfigError("run_dir", path, "holds no cells")
    return records


def key(record: Record) -> Key:
    """Returns what identifies a cell in every grid that has it."""
    return tuple(
        record[name] for name in ("model", "strategy", "global_batch_size", "devices", "precision")
    )


def rate(record: Record | None) -> float | None:
    """Returns images per second, None where a cell has none."""
    return (
        record["images_per_second"]["median"]
        if record is not None and record["status"] == "ok"
        else None
    )


def _over(value: float | None, base: float | None) -> float | None:
    return None if value is None or base is None else value / base


def efficiencies(records: Sequence[Record]) -> list[dict[str, float | None]]:
    """Returns of each record how well its devices scale, 1 being perfect, None where there is
    nothing to compare with.

    `strong` compares with the same global batch on one device, `weak` with the batch of one of its
    devices on one device: of the same strategy, or else of `single`.
    """
    alone = {
        (record["strategy"], record["global_batch_size"]): record
        for record in records
        if record["devices"] == 1
    }

    def of_one(strategy: str, batch: int) -> float | None:
        own = rate(alone.get((strategy, batch)))
        return own if own is not None else rate(alone.get(("single", batch)))

    found = []
    for record in records:
        devices, strategy, batch = (
            record["devices"],
            record["strategy"],
            record["global_batch_size"],
        )
        value = None if devices == 1 or rate(record) is None else rate(record)
        each = None if value is None else value / devices
        weak = _over(each, of_one(strategy, batch // devices)) if batch % devices == 0 else None
        found.append({"strong": _over(each, of_one(strategy, batch)), "weak": weak})
    return found


def show(records: Sequence[Record]) -> None:
    """Prints the table of a grid, and beneath it what went wrong; no wider than 100 columns."""
    console = rich.console.Console()
    console = rich.console.Console(width=max(console.width, _WIDTH))
    console.print(
        heading(records) + "; " + where(records), highlight=False, markup=False, soft_wrap=True
    )
    console.print(table(records))
    notes = ["Times are milliseconds of a step; memory is planned, of one device."]
    if any(each["strong"] or each["weak"] for each in efficiencies(records)):
        notes.append("Strong and weak: scaling efficiency.")
    console.print(" ".join(notes), highlight=False, soft_wrap=True, style="dim")
    for record in records:
        if record["reason"]:
            console.print(
                f"{_name(record)}: {record['reason']}",
                highlight=False,
                soft_wrap=True,
                markup=False,
            )


def _name(record: Record) -> str:
    devices = record["devices"]
    return (
        f"{record['strategy']} on {devices} device{'s' if devices > 1 else ''}, batch"
        f" {record['global_batch_size']}"
    )


def columns(records: Sequence[Record]) -> dict[str, list[str]]:
    """Returns the texts of each column by its title, without the columns that no cell has anything
    for.
    """
    scaling = efficiencies(records)

    def part(name: str) -> list[str]:
        return [_short(record.get("parts_ms", {}).get(name)) for record in records]

    found = {
        "images/s": [_rate_text(record) for record in records],
        "±%": [_spread_text(record) for record in records],
        "step": [_short(record.get("ms_per_step", {}).get("median")) for record in records],
        "input": part("input"),
        "dispatch": part("dispatch"),
        "compile s": [_short(record.get("compile_seconds")) for record in records],
        "memory": [_bytes(record.get("memory_bytes")) for record in records],
        "of peak": [_percent(record.get("fraction_of_peak")) for record in records],
        "strong": [_percent(each["strong"]) for each in scaling],
        "weak": [_percent(each["weak"]) for each in scaling],
    }
    return {title: texts for title, texts in found.items() if any(texts)}


def table(records: Sequence[Record]) -> rich.table.Table:
    """Returns the records of a grid as a table for the terminal, one row each."""
    found = columns(records)
    grid = rich.table.Table(box=rich.box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    grid.add_column("strategy", no_wrap=True, vertical="bottom")
    for title in ("devices", "batch", *found):
        grid.add_column(_BREAKS.get(title, title), no_wrap=True, justify="right", vertical="bottom")
    for index, record in enumerate(records):
        last = index + 1 == len(records) or any(
            records[index + 1][name] != record[name] for name in ("strategy", "devices")
        )
        style = None if record["status"] == "ok" else "red"
        named = [str(record[name]) for name in ("strategy", "devices", "global_batch_size")]
        texts = [column[index] for column in found.values()]
        grid.add_row(*named, *texts, style=style, end_section=last and index + 1 < len(records))
    return grid


def _rate_text(record: Record) -> str:
    value = rate(record)
    return _short(value) if value is not None else {"oom": "OOM"}.get(record["status"], "failed")


def _spread_text(record: Record) -> str:
    if rate(record) is None:
        return ""
    found = record["images_per_second"]
    return f"{50 * (found['max'] - found['min']) / found['median']:.0f}"


def _short(value: float | None) -> str:
    """Returns three digits of a number, or all those before its decimal point where they are
    more.
    """
    if value is None:
        return ""
    digits = 2 - (math.floor(math.log10(abs(value))) if value else 0)
    return f"{value:.{min(max(digits, 0), 3)}f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.{0 if value >= 0.1 else 1}f}%"


def _bytes(count: int | None) -> str:
    """Returns a narrow form, e.g. 212M."""
    return "" if count is None else bytes_text(count).replace(" ", "").removesuffix("iB")


def _known(records: Sequence[Record]) -> Record:
    return next((record for record in records if record["status"] == "ok"), records[0])


def _about(records: Sequence[Record]) -> str:
    known = _known(records)
    if "parameters" not in known:
        return ""
    return (
        f"{'x'.join(map(str, known['image_shape']))} images, {known['parameters'] / 1e6:.3g} M"
        " parameters"
    )


def heading(records: Sequence[Record]) -> str:
    """Says what was trained."""
    known, about = _known(records), _about(records)
    return (
        f"{known['model']} on {known['dataset'] or 'its dataset'}{f' ({about})' if about else ''},"
        f" {known['precision']}"
    )


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
    rows, columns = -(-len(counts) // _PANELS_PER_ROW), min(len(counts), _PANELS_PER_ROW)
    style: Any = {
        "font.size": 12,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "svg.fonttype": "none",
    }
    with matplotlib.rc_context(style):
        height = 3.1 * rows + 1.7
        figure = Figure(figsize=(max(3.3 * columns + 0.6, 11.2), height), layout="constrained")
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for index, axes in enumerate(grid.flat):
            axes.set_visible(index < len(counts))
            if index < len(counts):
                _draw_panel(axes, records, counts[index])
                axes.set_ylabel("images / s" if index % columns == 0 else "")
                axes.set_xlabel("global batch size")
                axes.tick_params(labelbottom=True)
        fastest = max(
            (record["images_per_second"]["max"] for record in records if rate(record) is not None),
            default=1.0,
        )
        grid[0, 0].set_ylim(0, 1.06 * fastest)
        grid[0, 0].yaxis.set_major_formatter("{x:,.0f}" if fastest >= 10 else "{x:g}")
        handles = {
            name: line
            for axes in grid.flat
            for line, name in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        if any(record["status"] == "oom" for record in records):
            handles["out of memory"] = Line2D([], [], color="0.35", **_CROSS)
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=len(handles),
            frameon=False,
        )
        first = " · ".join(filter(None, [_about(records), where(records)]))
        repeats = max(record.get("repeats", 1) for record in records)
        second = f" · median and range of {repeats} repetitions" if repeats > 1 else ""
        model, dataset, precision = (
            _known(records)[name] for name in ("model", "dataset", "precision")
        )
        title = f"Training throughput: {model} on {dataset or 'its dataset'}, {precision}"
        figure.text(
            0.012, 1 - 0.12 / height, fonts.drawn(title), fontsize=15, fontweight="bold", va="top"
        )
        figure.text(0.012, 1 - 0.45 / height, first + second, color="0.35", va="top")
        engine: Any = figure.get_layout_engine()
        engine.set(rect=(0, 0, 1, 1 - 0.8 / height))  # the two lines' room
        paths = [folder / f"throughput.{ending}" for ending in ("png", "svg")]
        for path in paths:
            figure.savefig(path, dpi=160)
    return paths


def _draw_panel(axes: Any, records: Sequence[Record], devices: int) -> None:
    sizes = sorted({record["global_batch_size"] for record in records})
    here = [record for record in records if record["devices"] == devices]
    for strategy in dict.fromkeys(record["strategy"] for record in here):
        done = [
            record for record in here if record["strategy"] == strategy and rate(record) is not None
        ]
        done.sort(key=lambda record: record["global_batch_size"])
        if done:
            at = [record["global_batch_size"] for record in done]
            low, high = (
                [record["images_per_second"][which] for record in done] for which in ("min", "max")
            )
            look = {"color": COLORS.get(strategy, "#000000"), "marker": MARKERS.get(strategy, "o")}
            axes.fill_between(at, low, high, color=look["color"], alpha=0.16, linewidth=0)
            axes.vlines(at, low, high, color=look["color"], alpha=0.5, linewidth=1.5)
            axes.plot(
                at,
                [rate(record) for record in done],
                **look,
                markersize=5.5,
                linewidth=2,
                label=strategy,
            )
    for size in sizes:
        lost = [
            record["strategy"]
            for record in here
            if record["global_batch_size"] == size and record["status"] == "oom"
        ]
        for number, strategy in enumerate(lost):  # one above the other
            height = 0.04 + 0.055 * number
            cross = {
                **_CROSS,
                "color": COLORS.get(strategy, "#000000"),
                "gid": f"oom-{strategy}-{devices}-{size}",
            }
            axes.plot(
                [size], [height], **cross, transform=axes.get_xaxis_transform(), clip_on=False
            )
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)
    axes.grid(alpha=0.25)
    axes.set_title(f"{devices} device{'s' if devices > 1 else ''}", fontsize=12, loc="left")
