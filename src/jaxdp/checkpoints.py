"""`python -m jaxdp.checkpoints RUN_DIR`: lists the checkpoints of a run, and whether they still are
what was saved.
"""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence

import rich.console
import rich.table
from rich.markup import escape

from jaxdp.checkpoint import integrity
from jaxdp.command_line import command
from jaxdp.config import REQUIRED, Settings, setting
from jaxdp.parsing import printable
from jaxdp.registry import ConfigError
from jaxdp.rundir.layout import RunDirectory
from jaxdp.rundir.read import Row
from jaxdp.units import bytes_text

DESCRIPTION = "List the checkpoints of a run and whether they are whole."
_COLORS = {"whole": "green", "damaged": "bold red", "unverified": "yellow"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointsConfig(Settings):
    """The run and the form of its list."""

    run_dir: str = setting(REQUIRED, "folder of the run", positional=True)
    plugins: tuple[str, ...] = setting(
        (),
        "Python files or modules that the run was trained with; names that only the run's folder "
        "holds are not imported, since they are code of the folder's author",
        metavar="FILE.py|MODULE",
    )
    verify: bool = setting(
        False,
        "compare every byte with what was saved; otherwise check only that the files are there "
        "and have their sizes",
    )
    json: bool = setting(False, "print one line of JSON instead of a table")


@command(CheckpointsConfig, "jaxdp.checkpoints", DESCRIPTION, restarts=False, defaults_file=False)
def main(asked: CheckpointsConfig) -> int:
    """Lists the checkpoints; returns 1 if one is damaged."""
    rows = list_checkpoints(asked.run_dir, verify=asked.verify, plugins=asked.plugins)
    print(json.dumps(rows)) if asked.json else print_table(rows)
    return int(any(row["verdict"] == "damaged" for row in rows))


def list_checkpoints(
    run_dir: str | pathlib.Path, *, verify: bool = False, plugins: Sequence[str] = ()
) -> list[Row]:
    """Returns step, bytes, metrics, verdict and problem of each checkpoint, and which is the best.

    Metrics are of validation data under `validation`, or of test data under `test` if the run has
    no validation data: then none is the best. Metrics of a step without an evaluation are None.

    Args:
        verify: whether to hash all files; otherwise they have to be there and have their sizes.
        plugins: files or modules that the run was trained with.

    Raises:
        ConfigError: if there is no run.
    """
    from jaxdp.components import create_task
    from jaxdp.inference.saved_model import read_description

    run = RunDirectory(pathlib.Path(run_dir))
    config = run.load_trusted_config(plugins)
    description = read_description(run)
    split = "validation" if description.has_validation else "test"
    best_metric = create_task(config, description).best_metric
    rows = _examine(run, split, verify=verify)
    # The only checkpoint was being removed, as the run went on.
    while not rows and integrity.steps(run.checkpoints):
        rows = _examine(run, split, verify=verify)
    if not rows:
        raise ConfigError("run_dir", run.path, "holds no checkpoint")
    usable = {row["step"]: row[split] for row in rows if row[split] and row["verdict"] != "damaged"}
    best = integrity.ranked(usable, best_metric)[:1] if description.has_validation else []
    return [row | {"best": row["step"] in best} for row in rows]


def _examine(run: RunDirectory, split: str, *, verify: bool) -> list[Row]:
    rows: list[Row] = []
    for step in integrity.steps(run.checkpoints):
        verdict = integrity.examine(run.checkpoints, step, thorough=verify)
        if verdict.problem and integrity.vanishes(run.checkpoints, step):
            continue
        rows.append(
            {
                "step": step,
                "bytes": integrity.size(run.checkpoints, step),
                split: integrity.read_metrics(run.checkpoints, step),
                "best": False,
                "verdict": verdict.state,
                "problem": verdict.problem,
            }
        )
    return rows


def print_table(rows: Sequence[Row]) -> None:
    """Prints a table of checkpoints on standard output, one row each."""
    from jaxdp.reporting.progress import metrics_text

    split = "validation" if "validation" in rows[0] else "test"
    table = rich.table.Table()
    for title in ("step", "size"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column(f"{split} metrics")
    table.add_column("verdict")
    for row in rows:
        metrics = escape(printable(metrics_text(row[split]))) if row[split] else "not evaluated"
        color = _COLORS[row["verdict"]]
        problem = f": {escape(row['problem'])}" if row["problem"] else ""
        table.add_row(
            str(row["step"]),
            bytes_text(row["bytes"]),
            metrics + " (best)" * row["best"],
            f"[{color}]{row['verdict']}[/{color}]{problem}",
        )
    rich.console.Console(emoji=False).print(table)


if __name__ == "__main__":
    sys.exit(main())
