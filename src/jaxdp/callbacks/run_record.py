"""Writes what a run directory says about a run: its settings, its dataset, its history and its
result.
"""

import contextlib

from jaxdp import source_files
from jaxdp.data.fingerprint import fingerprint
from jaxdp.events import Ended, RolledBack, Run, Started
from jaxdp.registry import ConfigError
from jaxdp.rundir.layout import RunDirectory
from jaxdp.rundir.read import warn, warn_again


class RunRecord:
    """Writes config.yaml, dataset.json, sources.json, history.jsonl and summary.json.

    Where there is something to say, also rollbacks.json and skipped.csv.
    """

    def __init__(self) -> None:
        self._started = False

    def on_start(self, run: Run, event: Started) -> None:
        """Writes settings, the dataset's description and digests of source files, once.

        The history then says that the run has started or resumed, and what has changed.
        """
        if not self._started:
            self._started = True
            directory, setup = _directory(run), run.setup
            facts, examples, sources = {}, fingerprint(setup.dataset.train), source_files.digests()
            if event.resumed:
                changed = directory.changed_settings(setup.config)
                if (before := _known_examples(directory)) not in (None, examples):
                    changed["examples"] = [before, examples]
                    warn(
                        f"{setup.config.dataset} has other examples than when {directory.path}"
                        " began, though as many"
                    )
                if files := directory.changed_sources(sources):
                    text = source_files.text(files)
                    warn_again(f"{directory.path}: {text}; its weights go on under the new code")
                changed |= files
                facts = {"changed": changed} if changed else {}
            elif setup.initial_weights is not None:
                facts = {"initial_weights": setup.initial_weights.facts()}
            directory.write_config(setup.config)
            directory.write("dataset.json", {**run.description, "fingerprint": examples})
            directory.record(
                "resumed" if event.resumed else "started", event.step, **run.where(), **facts
            )
            directory.write("sources.json", sources)  # last: a kill before it loses no event

    def on_rollback(self, run: Run, event: RolledBack) -> None:
        """Counts the rollback, which halves the learning rate of whatever resumes the run."""
        directory = _directory(run)
        directory.write("rollbacks.json", {"rollbacks": event.count})
        directory.record(
            "rollback", event.step, to_step=event.to_step, reason=event.reason, **run.where()
        )

    def on_end(self, run: Run, event: Ended) -> None:
        """Writes how the run ended."""
        directory = _directory(run)
        directory.record(
            event.status,
            event.step,
            **({"reason": event.reason} if event.reason else {}),
            **run.where(),
        )
        lost = run.setup.skipped().items()
        directory.write_skipped(
            (split, error.where, error.problem) for split, errors in lost for error in errors
        )
        directory.write("summary.json", dict(event.summary))


def _known_examples(directory: RunDirectory) -> str | None:
    """Returns the fingerprint of the examples that the run was trained on so far.

    None where nobody knows it.
    """
    with contextlib.suppress(ConfigError):
        return directory.read("dataset.json").get("fingerprint")
    return None


def _directory(run: Run) -> RunDirectory:
    assert run.folder is not None
    return RunDirectory(run.folder)
