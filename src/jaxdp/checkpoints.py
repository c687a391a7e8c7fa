"""`python -m jaxdp.checkpoints RUN_DIR`: lists the checkpoints of a run, and whether they still are
what was saved.
"""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence

from jaxdp.checkpoint import integrity
from jaxdp.command_line import command
from jaxdp.config import REQUIRED, Settings, setting
from jaxdp.parsing import printable
from jaxdp.registry import ConfigError
from jaxdp.rundir.layout import RunDirectory
from jaxdp.rundir.read import Row
from jaxdp.units import bytes_text

DESCRIPTION = "List the checkpoints of a run and whether they are whole."


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
    json: bool = setting(False, "print one line of JSON instead of a table")


@command(CheckpointsConfig, "jaxdp.checkpoints", DESCRIPTION, restarts=False, defaults_file=False)
def main(asked: CheckpointsConfig) -> int:
    """Lists the checkpoints; returns 1 if one is damaged."""
    rows = list_checkpoints(asked.run_dir, plugins=asked.plugins)
    print(json.dumps(rows)) if asked.json else print_table(rows)
    return int(any(row["verdict"] == "damaged" for row in rows))


def list_checkpoints(run_dir: str | pathlib.Path, *, plugins: Sequence[str] = ()) -> list[Row]:
    """Returns step, bytes, metrics, verdict and problem of each checkpoint, and which is the best.

    Metrics are of validation data under `validation`, or of test data under `test` if the run has
    no validation data: then none is the best. Metrics of a step without an evaluation are None.

    Args:
        plugins: files or modules that the run was trained with.

    Raises:
        ConfigError: if there is no run.
    """
    from jaxdp.checkpoint.restore import SavedCheckpoints
    from jaxdp.components import create_task
    from jaxdp.inference.saved_model import read_description

    run = RunDirectory(pathlib.Path(run_dir))
    config = run.load_trusted_config(plugins)
    description = read_description(run)
    split = "validation" if description.has_validation else "test"
    rows: list[Row] = [
        {
            "step": step,
            "bytes": integrity.size(run.checkpoints, step),
            split: integrity.read_metrics(run.checkpoints, step),
            "verdict": verdict.state,
            "problem": verdict.problem,
        }
        for step, verdict in integrity.examine_all(run.checkpoints).items()
    ]
    if not rows:
        raise ConfigError("run_dir", run.path, "holds no checkpoint")
    best_metric = create_task(config, description).best_metric
    ranked = SavedCheckpoints(
        run.checkpoints, best_metric=best_metric if description.has_validation else None
    ).ranked()
    damaged = {row["step"] for row in rows if row["problem"]}
    best = next((step for step in ranked if step not in damaged), None)
    return [row | {"best": row["step"] == best} for row in rows]


def print_table(rows: Sequence[Row]) -> None:
    """Prints a line for each checkpoint on standard output."""
    from jaxdp.reporting.progress import metrics_text

    split = "validation" if "validation" in rows[0] else "test"
    for row in rows:
        metrics = f"{split} {metrics_text(row[split])}" if row[split] else "not evaluated"
        about = metrics + " (best)" * row["best"] + f": {row['problem']}" * bool(row["problem"])
        size = bytes_text(row["bytes"])
        print(f"step {row['step']:<8} {size:>9}  {row['verdict']:<10} {printable(about)}")


if __name__ == "__main__":
    sys.exit(main())
