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
# Columns that are there if a run has something in them: how a run ended, and other code.
_NOTES = {"pruned": "pruned", "failed": "reason", "code": "changed"}


def row(
    settings: Mapping[str, Any],
    summary: Mapping[str, Any] | None,
    reason: str | None,
    pruned: int | None = None,
    changed: str = "",
) -> Row:
    """Returns the row of a run, with the metrics of its validation split, or of the test split.

    Args:
        summary: of the run, None if it has none.
        reason: why it failed, None if it did not.
        pruned: step after which a search stopped it, None if it did not.
        changed: which of the user's source files have changed since the run.
    """
    result: Row = {
        "settings": dict(settings),
        "reason": reason or "",
        "pruned": f"at step {pruned}" if pruned else "",
        "changed": changed,
        "metric": "",
        "sign": 1,
        "value": None,
        "loss": None,
        "best": None,
        "split": "",
    }
    if summary is not None and reason is None and pruned is None:
        name, best = summary["best_metric"]["name"], summary["best"]
        split = "validation" if "validation" in summary["metrics"] else "test"
        metrics = summary["metrics"][split]
        result |= {"metric": name, "value": metrics[name], "loss": metrics["loss"], "split": split}
        result["sign"] = 1 if summary["best_metric"]["larger_is_better"] else -1
        result["best"] = (best[name], best["step"]) if best else None
    return result


def ranked(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows of each metric with the best first, then pruned runs, then failed ones."""

    def key(row: Row) -> tuple[bool, bool, str, bool, float]:
        value = row["value"]
        finite = value is not None and math.isfinite(value)
        order = -row["sign"] * value if finite else 0.0
        return value is None, bool(row["reason"]), row["metric"], not finite, order

    return sorted(rows, key=key)


def over_seeds(rows: Sequence[Row]) -> list[Row]:
    """Returns mean and sample standard deviation of runs that differ only in seed, best first."""
    groups: dict[str, list[Row]] = {}
    for each in rows:
        groups.setdefault(repr(_without_seed(each)), []).append(each)
    means: list[Row] = []
    for group in groups.values():
        done = [each for each in group if each["value"] is not None]
        mean = row(_without_seed(group[0]), None, None) | {"runs": len(done), "of": len(group)}
        if done:
            mean |= {"metric": done[0]["metric"], "sign": done[0]["sign"]}
            for column in ("value", "loss"):
                values = [each[column] for each in done]
                mean[column] = statistics.fmean(values)
                mean[f"{column}_spread"] = statistics.stdev(values) if len(values) > 1 else None
        means.append(mean)
    return ranked(means)


def _without_seed(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row["settings"].items() if name != "seed"}


def show(rows: Sequence[Row]) -> None:
    """Prints a table of the runs and, if there are several seeds, one that summarizes them."""
    console = rich.console.Console()
    console = rich.console.Console(width=max(console.width, _WIDTH))
    by = (
        "validation data"
        if any(row["split"] == "validation" for row in rows)
        else "test data, which then judge no longer: --validation 0.1 holds out others"
    )
    notes = {name: key for name, key in _NOTES.items() if any(row[key] for row in rows)}
    metrics = sorted({row["metric"] for row in rows if row["metric"]})
    names = list(rows[0]["settings"])
    runs = [
        [*_cells(each, names, metrics), _best(each), *(each[key] for key in notes.values())]
        for each in ranked(rows)
    ]
    console.print(_table([*names, *metrics, "loss", "best", *notes], runs, f"ranked by {by}"))
    if len({row["settings"].get("seed") for row in rows}) > 1:
        names.remove("seed")
        means = [
            [*_cells(each, names, metrics), _number_of_runs(each)] for each in over_seeds(rows)
        ]
        title = "mean ± standard deviation over seeds"
        console.print(_table([*names, *metrics, "loss", "runs"], means, title))


def _cells(row: Row, names: Sequence[str], metrics: Sequence[str]) -> list[str]:
    """Returns settings, metrics and loss of a row as text."""
    settings = [shown(row["settings"][name]) for name in names]
    values = [_with_spread(row, "value", name) if name == row["metric"] else "" for name in metrics]
    return [*settings, *values, _with_spread(row, "loss", "loss")]


def _with_spread(row: Row, column: str, name: str) -> str:
    spread = row.get(f"{column}_spread")
    return _text(name, row[column]) + (f" ± {_text(name, spread)}" if spread is not None else "")


def _best(row: Row) -> str:
    return f"{_text(row['metric'], row['best'][0])} at step {row['best'][1]}" if row["best"] else ""


def _number_of_runs(row: Row) -> str:
    return f"{row['runs']}" if row["runs"] == row["of"] else f"{row['runs']} of {row['of']}"


def _text(name: str, value: float | None) -> str:
    return "" if value is None else metrics_text({name: value}).removeprefix(f"{name} ")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> rich.table.Table:
    table = rich.table.Table(title=title, box=rich.box.SQUARE)
    for name in columns:
        table.add_column(name, overflow="fold")
    for cells in rows:
        table.add_row(*map(rich.text.Text, cells))  # brackets in a string would be markup
    return table
