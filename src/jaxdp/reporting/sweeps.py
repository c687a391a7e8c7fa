"""Tables of a sweep: its runs ranked, and mean and standard deviation over seeds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import rich.box
import rich.console
import rich.table
import rich.text

from jaxdp.registry import shown
from jaxdp.reporting.progress import metrics_text
from jaxdp.rundir.read import Row

_WIDTH = 100


def row(
    settings: Mapping[str, Any],
    summary: Mapping[str, Any] | None,
    reason: str | None,
    pruned: int | None = None,
) -> Row:
    """Returns what the tables tell of a run, with the metrics of its validation split, or of the
    test split where there is none.

    Args:
        summary: of the run, None if it has none.
        reason: why it failed, None if it did not.
        pruned: step after which a search stopped it, None if it did not.
    """
    found: Row = {
        "settings": dict(settings),
        "reason": reason,
        "metric": "",
        "value": None,
        "loss": None,
        "best": None,
        "split": "",
        "pruned": pruned,
    }
    if reason is None and pruned is None and summary is not None:
        name, best = summary["best_metric"]["name"], summary["best"]
        split = "validation" if "validation" in summary["metrics"] else "test"
        metrics = summary["metrics"][split]
        sign = 1 if summary["best_metric"]["larger_is_better"] else -1
        found |= {
            "metric": name,
            "sign": sign,
            "value": metrics[name],
            "loss": metrics["loss"],
            "split": split,
        }
        found["best"] = (best[name], best["step"]) if best else None
    return found


def ranked(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows with the best first, each metric's apart, then pruned runs, and failed ones
    last.
    """

    def key(row: Row) -> tuple[bool, bool, str, bool, float]:
        value = row["value"]
        known = value is not None and math.isfinite(value)
        return (
            value is None,
            bool(row["reason"]),
            row["metric"],
            not known,
            -row["sign"] * value if known else 0.0,
        )

    return sorted(rows, key=key)


def over_seeds(rows: Sequence[Row]) -> list[Row]:
    """Returns mean and sample standard deviation of the runs that differ in nothing but their seed,
    the best first.
    """
    groups: dict[tuple[str, ...], list[Row]] = {}
    for each in rows:
        others = {name: value for name, value in each["settings"].items() if name != "seed"}
        groups.setdefault(tuple(f"{name}={value!r}" for name, value in others.items()), []).append(
            each
        )
    found = []
    for group in groups.values():
        done = [each for each in group if each["value"] is not None]
        settings = {name: value for name, value in group[0]["settings"].items() if name != "seed"}
        mean: Row = {
            "settings": settings,
            "metric": "",
            "value": None,
            "loss": None,
            "reason": None,
            "runs": len(done),
            "of": len(group),
        }
        if done:
            mean |= {"metric": done[0]["metric"], "sign": done[0]["sign"]}
            for column in ("value", "loss"):
                values = [each[column] for each in done]
                mean[column] = statistics.fmean(values)
                mean[f"{column}_spread"] = statistics.stdev(values) if len(values) > 1 else None
        found.append(mean)
    return ranked(found)


def show(rows: Sequence[Row]) -> None:
    """Prints a table with a row for each run and, where there are several seeds, one that
    summarizes them.
    """
    console = rich.console.Console()
    console = rich.console.Console(width=max(console.width, _WIDTH))
    names = list(rows[0]["settings"])
    metrics = sorted({row["metric"] for row in rows if row["metric"]})
    ends = [
        name
        for name, key in (("pruned", "pruned"), ("failed", "reason"))
        if any(row[key] for row in rows)
    ]
    split = "validation" if any(row["split"] == "validation" for row in rows) else "test"
    by = (
        "validation data"
        if split == "validation"
        else "test data, which then judge no longer: --validation 0.1 holds out others"
    )
    table = _table([*names, *metrics, "loss", "best", *ends], title=f"ranked by {by}")
    for each in ranked(rows):
        best = (
            f"{_text(each['metric'], each['best'][0])} at step {each['best'][1]}"
            if each["best"]
            else ""
        )
        values = [_text(name, each["value"]) if name == each["metric"] else "" for name in metrics]
        cells = [
            *_settings(each, names),
            *values,
            _text("loss", each["loss"]),
            best,
            *(_end(each, end) for end in ends),
        ]
        _add(table, cells)
    console.print(table)
    if len({row["settings"].get("seed") for row in rows}) > 1:
        names.remove("seed")
        table = _table(
            [*names, *metrics, "loss", "runs"], title="mean ± standard deviation over seeds"
        )
        for each in over_seeds(rows):
            values = [
                _with_spread(each, "value", name) if name == each["metric"] else ""
                for name in metrics
            ]
            runs = (
                str(each["runs"])
                if each["runs"] == each["of"]
                else f"{each['runs']} of {each['of']}"
            )
            _add(
                table, [*_settings(each, names), *values, _with_spread(each, "loss", "loss"), runs]
            )
        console.print(table)


def _end(row: Row, name: str) -> str:
    return (
        row["reason"] or ""
        if name == "failed"
        else f"at step {row['pruned']}"
        if row["pruned"]
        else ""
    )


def _table(columns: Sequence[str], title: str | None = None) -> rich.table.Table:
    table = rich.table.Table(title=title, box=rich.box.SQUARE)
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def _add(table: rich.table.Table, cells: Sequence[str]) -> None:
    table.add_row(*map(rich.text.Text, cells))  # Text, because brackets in a string would be markup


def _settings(row: Row, names: Sequence[str]) -> list[str]:
    return [shown(row["settings"][name]) for name in names]


def _text(name: str, value: float | None) -> str:
    return "" if value is None else metrics_text({name: value}).removeprefix(f"{name} ")


def _with_spread(row: Row, column: str, name: str) -> str:
    spread = row.get(f"{column}_spread")
    return _text(name, row[column]) + (f" ± {_text(name, spread)}" if spread is not None else "")
