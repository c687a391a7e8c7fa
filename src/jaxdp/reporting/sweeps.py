"""Tables of a sweep: its runs ranked, and mean and standard deviation over seeds."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import rich.box
import rich.console
import rich.table
import rich.text

from jaxdp.registry import shown
from jaxdp.reporting.progress import metric_text

_WIDTH = 100


class Run(NamedTuple):
    """A run of a sweep.

    Attributes:
        settings: in which it differs from the others.
        summary: of the run; None if it failed or was pruned.
        notes: columns that are there if a run has text in them: `pruned`, `failed`, `code`.
    """

    settings: Mapping[str, Any]
    summary: Mapping[str, Any] | None
    notes: Mapping[str, str]

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics of the validation split, or of the test split; none without a summary."""
        if self.summary is None:
            return {}
        splits = self.summary["metrics"]
        return splits["validation" if "validation" in splits else "test"]


Group = Sequence[Run]  # one run, or runs that differ only in their seed


def show(runs: Sequence[Run]) -> None:
    """Prints a table of the runs and, if there are several seeds, one that summarizes them."""
    summaries = [run.summary for run in runs if run.summary is not None]
    data = "test data, which then judge no longer: --validation 0.1 holds out others"
    if any("validation" in summary["metrics"] for summary in summaries):
        data = "validation data"
    metrics = sorted({summary["best_metric"]["name"] for summary in summaries})
    notes = [name for name in runs[0].notes if any(run.notes[name] for run in runs)]
    settings = list(runs[0].settings)
    _print(
        f"ranked by {data}",
        [[run] for run in runs],
        (settings, metrics),
        ["best", *notes],
        lambda group: [_best(group[0]), *(group[0].notes[name] for name in notes)],
    )
    if len({run.settings.get("seed") for run in runs}) > 1:
        settings.remove("seed")
        groups: dict[str, list[Run]] = {}
        for run in runs:
            groups.setdefault(repr([run.settings[name] for name in settings]), []).append(run)
        _print(
            "mean ± standard deviation over seeds",
            [*groups.values()],
            (settings, metrics),
            ["runs"],
            lambda group: [_number_of_runs(group)],
        )


def _print(
    title: str,
    groups: Sequence[Group],
    columns: tuple[Sequence[str], Sequence[str]],
    others: Sequence[str],
    cells: Callable[[Group], Sequence[str]],
) -> None:
    """Prints a line for each group, the best first, then pruned runs, then failed ones.

    Args:
        title: of the table.
        groups: the runs of each line.
        columns: the settings and the metrics that have a column.
        others: names of further columns.
        cells: returns the text of these columns for a group.
    """
    settings, metrics = columns
    table = rich.table.Table(title=title, box=rich.box.SQUARE)
    for name in [*settings, *metrics, "loss", *others]:
        table.add_column(name, overflow="fold")
    for group in sorted(groups, key=_rank):
        line = [shown(group[0].settings[name]) for name in settings]
        line += [_mean(name, group) for name in [*metrics, "loss"]]
        # As text: brackets in a string would be markup.
        table.add_row(*map(rich.text.Text, [*line, *cells(group)]))
    console = rich.console.Console()
    rich.console.Console(width=max(console.width, _WIDTH)).print(table)


def _rank(group: Group) -> tuple[bool, bool, str, bool, float]:
    done = [run for run in group if run.summary is not None]
    if not done or done[0].summary is None:
        return True, bool(group[0].notes["failed"]), "", False, 0.0
    best = done[0].summary["best_metric"]
    mean = statistics.fmean(run.metrics[best["name"]] for run in done)
    order = -mean if best["larger_is_better"] else mean
    finite = math.isfinite(mean)
    return False, False, best["name"], not finite, order if finite else 0.0


def _mean(name: str, group: Group) -> str:
    values = [run.metrics[name] for run in group if name in run.metrics]
    if not values:
        return ""
    text = metric_text(name, statistics.fmean(values))
    return text if len(values) == 1 else f"{text} ± {metric_text(name, statistics.stdev(values))}"


def _best(run: Run) -> str:
    if run.summary is None or not run.summary["best"]:
        return ""
    name, best = run.summary["best_metric"]["name"], run.summary["best"]
    return f"{metric_text(name, best[name])} at step {best['step']}"


def _number_of_runs(group: Group) -> str:
    done = sum(run.summary is not None for run in group)
    return f"{done}" if done == len(group) else f"{done} of {len(group)}"
