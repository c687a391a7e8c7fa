"""`python -m jaxdp.sweep config.yaml --grid learning_rate=0.05,0.1 seed=0,1`: trains with each
combination, and compares the runs.

With `--trials 30 'learning_rate=log(1e-4,1)'`, Optuna proposes the runs, and runs that are worse
than most are stopped early. Each run is a process on this machine with its own folder. A failed run
is a row of the table. The same command continues a sweep that was stopped.
"""

import pathlib
import sys
from collections.abc import Mapping, Sequence

from jaxdp import config as config_lib
from jaxdp.cli import command_line
from jaxdp.cli.exit_codes import EXIT_STOPPED
from jaxdp.config import (
    LOCAL,
    POSITIVE,
    ProcessConfig,
    TrainConfig,
    fields,
    setting,
    settings_group,
)
from jaxdp.errors import ConfigError, flag
from jaxdp.rundir import lock, source_files
from jaxdp.rundir.layout import RunDirectory
from jaxdp.sweeps.runs import Sweep, say
from jaxdp.sweeps.search import Search
from jaxdp.sweeps.trials import Grid, Space, Trial
from jaxdp.text.messages import one_line

DESCRIPTION = "Train with every combination of some settings, or search them."
_HIDDEN = ("run_dir", "resume", *fields(ProcessConfig))


@settings_group
class SweepConfig(TrainConfig):
    """The combinations, the number of simultaneous runs, and the folder."""

    grid: tuple[str, ...] = setting(
        (),
        """settings to vary and their values as in YAML, e.g. learning_rate=0.05,0.1 seed=0,1 or
        model_kwargs.depth=20,110""",
        metavar="NAME=VALUE,...",
    )
    trials: tuple[str, ...] = setting(
        (),
        """instead of a grid: how many runs Optuna proposes, and the range of each setting:
        log(LOW,HIGH), uniform(LOW,HIGH), int(LOW,HIGH) or values, e.g. 30
        'learning_rate=log(1e-4,1)' optimizer=nesterov,adam. Validation data choose""",
        metavar="N NAME=RANGE",
    )
    at_a_time: int = setting(1, "runs at once; each gets an equal share of the GPUs", POSITIVE)
    output: str | None = setting(
        None,
        """folder of the sweep, with one for each run and report.html (default: sweeps/HASH, the
        same for the same settings)""",
        LOCAL,
        metavar="PATH",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.grid and self.trials:
            remedy = f"cannot be combined with {flag('grid')}; a search also takes NAME=VALUE,VALUE"
            raise ConfigError("trials", self.trials[0], remedy)


@command_line.program("jaxdp.sweep")
def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    words = list(argv)
    if words and not words[0].startswith("-"):
        words = ["--config", *words]
    config = command_line.parse(
        SweepConfig, words, prog="python -m jaxdp.sweep", description=DESCRIPTION, hidden=_HIDDEN
    )
    shared, given = config.part(TrainConfig), command_line.given_flags(words)
    flag, varied = ("trials", config.trials[1:]) if config.trials else ("grid", config.grid)
    name = config_lib.hash_of(config_lib.defining(shared) | {flag: varied})
    folder = pathlib.Path(config.output or f"sweeps/{name}")
    space = Space(varied, flag, shared, given & fields(TrainConfig).keys(), folder)
    plan = Search(config.trials[0], space) if config.trials else Grid(space)
    changed = _changed_code(folder, shared.plugins)
    with lock.held(folder / lock.NAME, "output"):
        plan.begin()
        code = Sweep(plan, config.at_a_time).run()
        if code == EXIT_STOPPED:
            say("stopped by a signal; the same command continues")
        else:
            _show(plan.trials(), folder, changed)
    return code


def _changed_code(folder: pathlib.Path, plugins: Sequence[str]) -> dict[str, str]:
    """Returns, for each run, which of the user's files have changed since the run began."""
    own = [pathlib.Path(each).expanduser().parent for each in plugins]
    folders = [*own, pathlib.Path(), *sys.path]  # as train imports
    changed: dict[str, str] = {}
    for file in folder.glob("*/sources.json"):
        run = RunDirectory(file.parent)
        now = source_files.find(run.read(file.name) or {}, folders)
        changed[run.path.name] = source_files.text(run.changed_sources(now))
    return changed


def _show(trials: Sequence[Trial], folder: pathlib.Path, changed: Mapping[str, str]) -> None:
    """Prints the tables of a sweep and writes its report, report.html."""
    from jaxdp.reporting import report_page, sweeps

    rows = [
        sweeps.SweptRun(
            trial.settings,
            trial.run.read("summary.json") if trial.run.is_done() else None,
            "; ".join(filter(None, [trial.note, changed.get(trial.name)])),
        )
        for trial in trials
    ]
    sweeps.show(rows)
    written = [trial.run.path for trial in trials if trial.run.file("config.yaml").is_file()]
    if written:
        report = folder / "report.html"
        try:
            report_page.write_report(written, report, title=f"Sweep {folder.name}")
            say(f"{report} is written")
        except Exception as error:  # the runs are complete, and the table is printed
            say(f"{report} could not be written: {type(error).__name__}: {one_line(error)}")


if __name__ == "__main__":
    sys.exit(main())
