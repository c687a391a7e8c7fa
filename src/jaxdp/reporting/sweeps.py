"""Prints the tables of a sweep: ranked runs, and mean and standard deviation over seeds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import rich.table

from jaxdp.reporting.console import wide_console
from jaxdp.reporting.progress import metric_text
from jaxdp.text.flags import flag, for_command
from jaxdp.text.messages import shown


class SweptRun(NamedTuple):
    """A run of a sweep.

    Attributes:
        settings: settings in which it differs from the others.
        summary: summary of the run; None if it has no result.
        note: a remark on the run.
    """

    settings: Mapping[str, Any]
    summary: Mapping[str, Any] | None
    note: str

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics of the validation split, or else of the test split; none without a
        summary.
        """
        splits = {} if self.summary is None else self.summary["metrics"]
        return splits.get("validation", splits.get("test", {}))


Group = Sequence[SweptRun]  # one run, or runs that differ only in their seed


def show(runs: Sequence[SweptRun]) -> None:
    """Prints a table of the runs and, if there are several seeds, one that summarizes them."""
    summaries = [run.summary for run in runs if run.summary is not None]
    ways = f"{flag('validation', 0.1)} holds out others"
    data = for_command(f"test data, which then judge no longer: {ways}")
    if any("validation" in summary["metrics"] for summary in summaries):
        data = "validation data"
    best = summaries[0]["best_metric"] if summaries else {"name": "", "larger_is_better": True}
    settings = list(runs[0].settings)
    _print(f"ranked by {data}", [[run] for run in runs], settings, best)
    if len({run.settings.get("seed") for run in runs}) > 1:
        settings.remove("seed")
        groups: dict[str, list[SweptRun]] = {}
        for run in runs:
            groups.setdefault(repr([run.settings[name] for name in settings]), []).append(run)
        _print("mean ± standard deviation over seeds", [*groups.values()], settings, best)


def _print(
    title: str, groups: Sequence[Group], settings: Sequence[str], best: Mapping[str, Any]
) -> None:
    """Prints a line for each group, the best first and groups without a result last."""
    metrics = [name for name in dict.fromkeys((best["name"], "loss")) if name]
    table = rich.table.Table(title=title)
    for name in (*settings, *metrics, "note"):
        table.add_column(name, overflow="fold")

    def rank(group: Group) -> tuple[bool, float]:
        values = _values(group, best["name"])
        mean = statistics.fmean(values) if values else math.nan
        return math.isnan(mean), -mean if best["larger_is_better"] else mean

    for group in sorted(groups, key=rank):
        done = len(_values(group, "loss"))
        note = group[0].note if len(group) == 1 else f"{done} of {len(group)} runs"
        cells = [shown(group[0].settings[name]) for name in settings]
        cells += [_mean_text(name, _values(group, name)) for name in metrics]
        table.add_row(*cells, note)
    wide_console().print(table)


def _values(group: Group, name: str) -> list[float]:
    return [run.metrics[name] for run in group if name in run.metrics]


def _mean_text(name: str, values: Sequence[float]) -> str:
    """Returns the mean, and the standard deviation if there are several values."""
    text = metric_text(name, statistics.fmean(values)) if values else ""
    return f"{text} ± {metric_text(name, statistics.stdev(values))}" if values[1:] else text
