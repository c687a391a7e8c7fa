"""Shows grids of benchmarks in the report: a table and curves for what was measured alike."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdp.reporting import benchmarks
from jaxdp.reporting.benchmarks import Record
from jaxdp.reporting.report_figures import BASE, COLORS, Line, Panel, XAxis, YAxis, figure

_TO_X = {BASE: np.asarray}


def grids(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Returns a grid for each model, dataset, precision and settings.

    A cell that was measured again has its last measurement.
    """
    alike: dict[tuple[str, ...], dict[Any, Record]] = {}
    for record in records:
        what = ("model", "dataset", "precision", "settings")
        cells = alike.setdefault(tuple(str(record.get(name)) for name in what), {})
        cells[benchmarks.key(record)] = record
    return [_grid(list(cells.values())) for cells in alike.values()]


def _grid(records: list[Record]) -> dict[str, Any]:
    records.sort(key=lambda each: (each["strategy"], each["devices"], each["global_batch_size"]))
    colors: dict[str, int] = {}
    for record in records:
        color = benchmarks.COLORS.get(record["strategy"])
        colors[record["strategy"]] = COLORS.index(color) if color in COLORS else 6
    return {
        "heading": f"{benchmarks.heading(records)}; {benchmarks.where(records)}",
        "settings": records[0].get("settings") or {},
        "names": colors,
        "marks": ["out of memory"] if any(each["status"] == "oom" for each in records) else [],
        "figures": _figures(records, colors),
        "columns": benchmarks.columns(records),
        "records": records,
    }


def _figures(records: Sequence[Record], colors: dict[str, int]) -> list[Panel]:
    """Draws throughput over the batch, a figure for each number of devices."""
    done = [record for record in records if benchmarks.rate(record) is not None]
    highest = max((record["images_per_second"]["max"] for record in done), default=0)
    sizes = sorted({record["global_batch_size"] for record in records})
    x_axis = XAxis(BASE, "batches", "global batch size", sizes=sizes)
    y_axis = YAxis("images per second", zero=True, highest=highest)
    figures: list[Panel] = []
    for devices in sorted({record["devices"] for record in records}):
        lines = []
        for strategy, color in colors.items():
            steps, rates = [], []
            for record in records:
                size = record["global_batch_size"]
                if (record["devices"], record["strategy"]) != (devices, strategy):
                    continue
                if benchmarks.rate(record) is not None:
                    rate = record["images_per_second"]
                    steps.append(size)
                    rates.append(rate["median"])
                    look = {"linewidth": 7, "alpha": 0.25}
                    bounds = [rate["min"], rate["max"]]
                    lines.append(Line(strategy, color, _TO_X, [size, size], bounds, look))
                elif record["status"] == "oom":
                    text = f"{strategy}, batch {size}: out of memory"
                    look = {"marker": "x", "markersize": 8}
                    lines.append(Line(text, color, _TO_X, [size], [1.04], look, is_mark=True))
            lines.append(Line(strategy, color, _TO_X, steps, rates, {"marker": "o"}))
        title = f"images per second on {devices} device{'s' if devices > 1 else ''}"
        figures += figure(title, lines, [x_axis], y_axis)
    return figures
