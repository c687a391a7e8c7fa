"""Lists the checkpoints of a run, with what their evaluations gave and whether their files still
are what was saved.
"""

import pathlib
from collections.abc import Sequence

import rich.console
import rich.table
from rich.markup import escape

from jaxdp.checkpoint import integrity
from jaxdp.components import create_task
from jaxdp.inference.predictor import read_description
from jaxdp.parsing import printable
from jaxdp.registry import ConfigError
from jaxdp.reporting.progress import metrics_text
from jaxdp.rundir.layout import RunDirectory
from jaxdp.rundir.read import Row
from jaxdp.units import bytes_text

_COLOURS = {"whole": "green", "damaged": "bold red", "unverified": "yellow"}


def list_checkpoints(
    run_dir: str | pathlib.Path, *, verify: bool = False, plugins: Sequence[str] = ()
) -> list[Row]:
    """Returns step, bytes, metrics (None if it was not evaluated), whether it is the best, verdict
    and problem of each.

    Metrics are of validation data under `validation`, or where a run has none of test data under
    `test`: none is the best then.

    Args:
        verify: whether to hash all files; otherwise they have to be there and have their sizes.
        plugins: files or modules that the run was trained with.

    Raises:
        ConfigError: if there is no run.
    """
    run = RunDirectory(pathlib.Path(run_dir))
    config = run.load_trusted_config(plugins)
    description = read_description(run)
    split = "validation" if description.has_validation else "test"
    best_metric = create_task(config, description).best_metric
    rows = _examined(run, split, verify=verify)
    # The only one was being removed, as the run went on.
    while not rows and integrity.steps(run.checkpoints):
        rows = _examined(run, split, verify=verify)
    usable = {row["step"]: row[split] for row in rows if row[split] and row["verdict"] != "damaged"}
    best = integrity.ranked(usable, best_metric)[:1] if description.has_validation else []
    if not rows:
        raise ConfigError("run_dir", run.path, "holds no checkpoint")
    return [row | {"best": row["step"] in best} for row in rows]


def _examined(run: RunDirectory, split: str, *, verify: bool) -> list[Row]:
    rows: list[Row] = []
    for step in integrity.steps(run.checkpoints):
        verdict = integrity.examine(run.checkpoints, step, thorough=verify)
        if not verdict.usable and integrity.vanishes(run.checkpoints, step):
            continue
        metrics = integrity.read_metrics(run.checkpoints, step)
        rows.append(
            {
                "step": step,
                "bytes": integrity.size(run.checkpoints, step),
                split: metrics,
                "best": False,
            }
        )
        rows[-1] |= {"verdict": verdict.state, "problem": verdict.problem}
    return rows


def print_table(rows: Sequence[Row]) -> None:
    """Prints a table of checkpoints on standard output, one row each."""
    table = rich.table.Table()
    for title in ("step", "size"):
        table.add_column(title, justify="right", no_wrap=True)
    split = "validation" if "validation" in rows[0] else "test"
    table.add_column(f"{split} metrics")
    table.add_column("verdict")
    for row in rows:
        metrics = escape(printable(metrics_text(row[split]))) if row[split] else "not evaluated"
        colour = _COLOURS[row["verdict"]]
        verdict = f"[{colour}]{row['verdict']}[/{colour}]" + (
            f": {escape(row['problem'])}" if row["problem"] else ""
        )
        best = " (best)" if row["best"] else ""
        table.add_row(str(row["step"]), bytes_text(row["bytes"]), metrics + best, verdict)
    rich.console.Console(emoji=False).print(table)
