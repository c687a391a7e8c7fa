"""Shows grids of benchmarks in the report: a table and curves for what was measured alike."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdp.reporting import benchmarks
from jaxdp.reporting.benchmarks import Record
from jaxdp.reporting.report_figures import (
    BASE,
    COLORS,
    Curve,
    Mark,
    Panel,
    Track,
    XAxis,
    YAxis,
    panel,
)
from jaxdp.reporting.report_tables import setting_text

_COLUMNS = {"strategy": "strategy", "devices": "devices", "global_batch_size": "batch"}
_TO_X = {BASE: np.asarray}


def grids(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Returns a grid for each model, dataset, precision and settings.

    A cell that was measured again has its last measurement.
    """
    alike: dict[Any, dict[Any, Record]] = {}
    for record in records:
        what = [record[name] for name in ("model", "dataset", "precision")]
        cells = alike.setdefault((*what, str(record.get("settings"))), {})
        cells[benchmarks.key(record)] = record
    return [
        _grid(sorted(cells.values(), key=lambda record: [record[name] for name in _COLUMNS]))
        for cells in alike.values()
    ]


def _grid(records: Sequence[Record]) -> dict[str, Any]:
    colors: dict[str, int] = {}
    for record in records:
        color = benchmarks.COLORS.get(record["strategy"])
        colors[record["strategy"]] = COLORS.index(color) if color in COLORS else 6
    columns = {title: [str(record[name]) for record in records] for name, title in _COLUMNS.items()}
    columns |= benchmarks.columns(records)
    rows = []
    for record, (strategy, *cells) in zip(
        records, zip(*columns.values(), strict=True), strict=True
    ):
        failed = None if record["status"] == "ok" else "bad"
        rows.append((strategy, {"class": failed, "title": record.get("reason")}, cells))
    settings = (records[0].get("settings") or {}).items()
    return {
        "heading": f"{benchmarks.heading(records)}; {benchmarks.where(records)}",
        "settings": ", ".join(f"{name} {setting_text(value)}" for name, value in settings),
        "names": colors,
        "marks": ["out of memory"] if any(each["status"] == "oom" for each in records) else [],
        "figures": _figures(records, colors),
        "columns": [(title, "number") for title in columns][1:],
        "rows": rows,
    }


def _figures(records: Sequence[Record], colors: dict[str, int]) -> list[Panel]:
    """Draws throughput over the batch, a figure for each number of devices."""
    sizes = sorted({record["global_batch_size"] for record in records})
    done = [record for record in records if benchmarks.rate(record) is not None]
    highest = max((record["images_per_second"]["max"] for record in done), default=0)
    x_axis = XAxis(BASE, "batches", "global batch size", sizes=sizes)
    y_axis = YAxis(zero=True, title="images per second", highest=highest)
    figures = []
    for devices in sorted({record["devices"] for record in records}):
        curves, tracks = [], []
        for strategy, color in colors.items():
            cells = [
                record
                for record in records
                if (record["devices"], record["strategy"]) == (devices, strategy)
            ]
            done = [record for record in cells if benchmarks.rate(record) is not None]
            steps = [record["global_batch_size"] for record in done]
            low, middle, high = (
                [record["images_per_second"][name] for record in done]
                for name in ("min", "median", "max")
            )
            curves.append(Curve(strategy, color, _TO_X, steps, middle, bounds=(low, high)))
            for record in cells:
                if record["status"] == "oom":
                    size = record["global_batch_size"]
                    mark = Mark("out of memory", size, "out of memory")
                    tracks.append(Track(f"{strategy}, batch {size}", color, _TO_X, size, [mark]))
        title = f"images per second on {devices} device{'s' if devices > 1 else ''}"
        figures += panel(title, curves, tracks, [x_axis], y_axis)
    return figures
