"""`python -m jaxdp.checkpoints RUN_DIR`: which checkpoints does a run have, and are they still what was saved?"""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from jaxdp import command_line
from jaxdp.checkpoint import integrity
from jaxdp.registry import ConfigError
from jaxdp.run_directory import RunDirectory

DESCRIPTION = "List the checkpoints of a run and whether they are whole."
_COLOURS = {"whole": "green", "damaged": "bold red", "unverified": "yellow"}


@dataclasses.dataclass(frozen=True)
class CheckpointsConfig:
    """What `python -m jaxdp.checkpoints` takes."""

    run_dir: Annotated[str, tyro.conf.Positional]
    """folder of the run"""
    verify: tyro.conf.FlagCreatePairsOff[bool] = False
    """compare every byte with what was saved; otherwise only whether the files are there and have their sizes"""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """print one line of JSON instead of a table"""


def main(argv: Sequence[str] | None = None) -> int:
    return command_line.main(_main, argv, "jaxdp.checkpoints")


def _main(argv: Sequence[str]) -> int:
    command = command_line.parse(
        CheckpointsConfig, argv, prog="python -m jaxdp.checkpoints", description=DESCRIPTION, defaults_file=False
    )
    rows = list_checkpoints(command.run_dir, verify=command.verify)
    if command.json:
        print(json.dumps(rows))
    else:
        _print_table(rows)
    return 1 if any(row["verdict"] == "damaged" for row in rows) else 0


def list_checkpoints(run_dir: str | pathlib.Path, *, verify: bool = False) -> list[dict[str, Any]]:
    """Returns step, bytes, test figures (None if it was not evaluated), whether it is the best, verdict and problem of each.

    Args:
        verify: whether to hash all files; otherwise they have to be there and have their sizes.

    Raises:
        ConfigError: if there is no run.
    """
    from jaxdp.components import create_task
    from jaxdp.inference.predictor import read_description

    run = RunDirectory(pathlib.Path(run_dir))
    config = run.load_config()
    name, larger_is_better = create_task(config, read_description(run)).best_metric
    rows: list[dict[str, Any]] = []
    for step in integrity.steps(run.checkpoints):
        verdict = integrity.examine(run.checkpoints, step, thorough=verify)
        figures = integrity.read_figures(run.checkpoints, step)
        rows.append({"step": step, "bytes": integrity.size(run.checkpoints, step), "test": figures, "best": False})
        rows[-1] |= {"verdict": verdict.state, "problem": verdict.problem}
    usable = [row for row in rows if row["test"] and row["verdict"] != "damaged"]
    if usable:
        sign = 1 if larger_is_better else -1
        max(usable, key=lambda row: (sign * row["test"][name], row["step"]))["best"] = True
    if not rows:
        raise ConfigError("run_dir", run.path, "holds no checkpoint")
    return rows


def _print_table(rows: list[dict[str, Any]]) -> None:
    import rich.console
    import rich.table
    from rich.markup import escape

    from jaxdp.reporting.progress import figures_text

    table = rich.table.Table()
    for title in ("step", "MB"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("test figures")
    table.add_column("verdict")
    for row in rows:
        figures = escape(figures_text(row["test"])) if row["test"] else "not evaluated"
        colour = _COLOURS[row["verdict"]]
        verdict = f"[{colour}]{row['verdict']}[/{colour}]" + (f": {escape(row['problem'])}" if row["problem"] else "")
        best = " (best)" if row["best"] else ""
        table.add_row(str(row["step"]), f"{row['bytes'] / 1e6:.1f}", figures + best, verdict)
    rich.console.Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
