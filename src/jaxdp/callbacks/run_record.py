"""Writes what a run directory says about a run: its settings, its dataset, its history and its result."""

from jaxdp.config import OF_ONE_COMMAND, TrainConfig
from jaxdp.events import Ended, RolledBack, Run, Started
from jaxdp.run_directory import RunDirectory


class RunRecord:
    """Writes config.yaml, dataset.json, history.jsonl, rollbacks.json, skipped.csv and summary.json."""

    def __init__(self) -> None:
        self._started = False

    def on_start(self, run: Run, event: Started) -> None:
        """Writes the settings and the dataset's description, once, and that the run has started."""
        if not self._started:
            self._started = True
            directory, setup = _directory(run), run.setup
            facts = {}
            if event.resumed:
                facts = {"changed": changed} if (changed := _changed(directory.load_config(), setup.config)) else {}
            elif setup.initial_weights is not None:
                facts = {"initial_weights": setup.initial_weights.facts()}
            directory.write_config(setup.config)
            directory.write_dataset(run.description)
            directory.record("resumed" if event.resumed else "started", event.step, **run.where(), **facts)

    def on_rollback(self, run: Run, event: RolledBack) -> None:
        """Counts the rollback, which halves the learning rate of whatever resumes the run."""
        directory = _directory(run)
        directory.write_rollbacks(event.count)
        directory.record("rollback", event.step, to_step=event.to_step, reason=event.reason, **run.where())

    def on_end(self, run: Run, event: Ended) -> None:
        """Writes how the run ended."""
        directory = _directory(run)
        directory.record(event.status, event.step, **({"reason": event.reason} if event.reason else {}), **run.where())
        lost = run.setup.skipped().items()
        directory.write_skipped((split, error.where, error.problem) for split, errors in lost for error in errors)
        directory.write_summary(dict(event.summary))


def _changed(before: TrainConfig, now: TrainConfig) -> dict[str, list[object]]:
    """Returns the settings of training that are others than before, each with its old and its new value."""
    old, new = before.plain(), now.plain()
    names = [name for name in new if name not in OF_ONE_COMMAND and old[name] != new[name]]
    return {name: [old[name], new[name]] for name in names}


def _directory(run: Run) -> RunDirectory:
    assert run.folder is not None
    return RunDirectory(run.folder)
