"""Says what the report shows of benchmarks: a table and curves for each model, dataset, precision
and settings.
"""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from jaxdp.reporting import benchmarks
from jaxdp.reporting.benchmarks import Record
from jaxdp.reporting.report_figures import COLORS, Curve, Mark, panel_of_sizes
from jaxdp.reporting.report_runs import setting_text

_NAMED = {"strategy": "strategy", "devices": "devices", "global_batch_size": "batch"}


def grids(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Returns what is shown of each cell's last measurement, and of what was measured alike
    together.
    """
    alike: dict[Any, dict[Any, Record]] = {}
    for record in records:
        what = (
            record["model"],
            record["dataset"],
            record["precision"],
            str(record.get("settings")),
        )
        alike.setdefault(what, {})[benchmarks.key(record)] = record
    return [
        _grid(sorted(grid.values(), key=lambda record: [record[name] for name in _NAMED]))
        for grid in alike.values()
    ]


def _grid(records: Sequence[Record]) -> dict[str, Any]:
    strategies = dict.fromkeys(record["strategy"] for record in records)
    colors = {
        name: COLORS.index(benchmarks.COLORS[name]) if benchmarks.COLORS.get(name) in COLORS else 6
        for name in strategies
    }
    columns = {title: [str(record[name]) for record in records] for name, title in _NAMED.items()}
    columns |= benchmarks.columns(records)
    rows = []
    for record, (strategy, *texts) in zip(
        records, zip(*columns.values(), strict=True), strict=True
    ):
        failed = None if record["status"] == "ok" else "bad"
        rows.append((strategy, {"class": failed, "title": record.get("reason")}, texts))
    return {
        "heading": f"{benchmarks.heading(records)}; {benchmarks.where(records)}",
        "settings": ", ".join(
            f"{name} {setting_text(value)}"
            for name, value in (records[0].get("settings") or {}).items()
        ),
        "names": colors,
        "marks": ["out of memory"] if any(record["status"] == "oom" for record in records) else [],
        "figures": _evaluated(records, colors),
        "columns": [(title, "number") for title in columns][1:],
        "rows": rows,
    }


def _evaluated(records: Sequence[Record], colors: dict[str, int]) -> list[Markup]:
    """Draws throughput over the batch, a figure for each number of devices, with equal axes."""
    sizes = sorted({record["global_batch_size"] for record in records})
    highest = max(
        (
            record["images_per_second"]["max"]
            for record in records
            if benchmarks.rate(record) is not None
        ),
        default=0,
    )
    figures = []
    for devices in sorted({record["devices"] for record in records}):
        here = [record for record in records if record["devices"] == devices]
        curves = []
        for strategy, color in colors.items():
            done = [
                record
                for record in here
                if record["strategy"] == strategy and benchmarks.rate(record) is not None
            ]
            rates = [record["images_per_second"] for record in done]
            points = [
                (record["global_batch_size"], each["median"])
                for record, each in zip(done, rates, strict=True)
            ]
            curves.append(
                Curve(strategy, color, points, band=[(each["min"], each["max"]) for each in rates])
            )
        marks = []
        for record in here:
            strategy, size = record["strategy"], record["global_batch_size"]
            if record["status"] == "oom":
                marks.append(
                    Mark(
                        "out of memory",
                        size,
                        f"{strategy}, batch {size}: out of memory",
                        colors[strategy],
                    )
                )
        title = f"images per second on {devices} device{'s' if devices > 1 else ''}"
        figures.append(panel_of_sizes(title, curves, marks, sizes=sizes, highest=highest))
    return figures
