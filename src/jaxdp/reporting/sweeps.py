"""Tables of a sweep: its runs ranked, and mean and standard deviation over seeds."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
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
    data = "test data, which then judge no longer: --validation 0.1 holds out others"
    if any("validation" in run.summary["metrics"] for run in runs if run.summary is not None):
        data = "validation data"
    settings = list(runs[0].settings)
    _print(f"ranked by {data}", [[run] for run in runs], settings)
    if len({run.settings.get("seed") for run in runs}) > 1:
        settings.remove("seed")
        groups: dict[str, list[Run]] = {}
        for run in runs:
            groups.setdefault(repr([run.settings[name] for name in settings]), []).append(run)
        _print("mean ± standard deviation over seeds", [*groups.values()], settings)


def _print(title: str, groups: Sequence[Group], settings: Sequence[str]) -> None:
    """Prints a line for each group, the best first, then pruned runs, then failed ones."""
    lines = [_line(group, settings) for group in sorted(groups, key=_rank)]
    names = dict.fromkeys(itertools.chain(*lines))
    columns = [name for name in names if any(line.get(name) for line in lines)]
    table = rich.table.Table(title=title, box=rich.box.SQUARE)
    for name in columns:
        table.add_column(name, overflow="fold")
    for line in lines:
        # As text: brackets in a string would be markup.
        table.add_row(*[rich.text.Text(line.get(name, "")) for name in columns])
    console = rich.console.Console()
    rich.console.Console(width=max(console.width, _WIDTH)).print(table)


def _line(group: Group, settings: Sequence[str]) -> dict[str, str]:
    """Returns the text of each column."""
    line = {name: shown(group[0].settings[name]) for name in settings}
    done = [run.summary for run in group if run.summary is not None]
    for name in [*(summary["best_metric"]["name"] for summary in done[:1]), "loss"]:
        values = [run.metrics[name] for run in group if name in run.metrics]
        line[name] = metric_text(name, statistics.fmean(values)) if values else ""
        if len(values) > 1:
            line[name] += f" ± {metric_text(name, statistics.stdev(values))}"
    if len(settings) < len(group[0].settings):
        line["runs"] = f"{len(done)}" if len(done) == len(group) else f"{len(done)} of {len(group)}"
        return line
    for summary in done:
        name, best = summary["best_metric"]["name"], summary["best"]
        line["best"] = f"{metric_text(name, best[name])} at step {best['step']}" if best else ""
    return line | dict(group[0].notes)


def _rank(group: Group) -> tuple[bool, bool, str, bool, float]:
    done = [run.summary for run in group if run.summary is not None]
    if not done:
        return True, bool(group[0].notes["failed"]), "", False, 0.0
    best = done[0]["best_metric"]
    name = best["name"]
    mean = statistics.fmean(run.metrics[name] for run in group if name in run.metrics)
    order = -mean if best["larger_is_better"] else mean
    finite = math.isfinite(mean)
    return False, False, name, not finite, order if finite else 0.0
