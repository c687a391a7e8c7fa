"""Writes the settings, the dataset, the history and the result of a run into its directory."""

import contextlib
from typing import Any

from jaxdp.callbacks.callback import folder_of
from jaxdp.callbacks.events import Ended, Run, Started
from jaxdp.data.fingerprint import fingerprint
from jaxdp.errors import ConfigError
from jaxdp.rundir import source_files
from jaxdp.rundir.layout import RunDirectory
from jaxdp.text.console import warn, warn_again
from jaxdp.text.flags import for_command


class RunRecord:
    """Writes config.yaml, dataset.json, sources.json, history.jsonl and summary.json, and
    skipped.csv if examples were left out.
    """

    def on_start(self, run: Run, event: Started) -> None:
        """Writes settings, the dataset's description and digests of source files.

        The history then records that the run has started or resumed, and what has changed.
        """
        directory, setup = _directory(run), run.setup
        train = setup.examples.source("train")
        examples = "" if train.source.may_change else fingerprint(train)
        sources = source_files.digests() | setup.inputs.digests
        facts: dict[str, Any] = {}
        if event.resumed:
            changed = directory.changed_settings(setup.config)
            changed |= _changed_examples(directory, setup.config.dataset, examples)
            if files := directory.changed_sources(sources):
                text = source_files.text(files)
                warn_again(f"{directory.path}: {text}; its weights go on under the new code")
            changed |= files
            facts = {"changed": changed} if changed else {}
        elif setup.initial.weights is not None:
            facts = {"initial_weights": setup.initial.weights.facts()}
        directory.write_config(setup.config)
        directory.write("dataset.json", {**run.description, "fingerprint": examples})
        name = "resumed" if event.resumed else "started"
        directory.record(name, event.step, **run.where(), **facts)
        directory.write("sources.json", sources)  # last, so that an earlier kill loses no event

    def on_end(self, run: Run, event: Ended) -> None:
        """Writes how the run ended."""
        directory = _directory(run)
        facts = {"reason": for_command(event.reason)} if event.reason else {}
        directory.record(event.status, event.step, **facts, **run.where())
        directory.write_skipped(
            (split, error.where, for_command(error.problem))
            for split, errors in run.setup.examples.skipped().items()
            for error in errors
        )
        directory.write("summary.json", event.summary)


def _changed_examples(directory: RunDirectory, dataset: str, now: str) -> dict[str, list[object]]:
    """Returns the fingerprint of the examples on which the run was trained and the fingerprint of
    the present examples, with a warning if they differ.
    """
    with contextlib.suppress(ConfigError):  # no file has the former fingerprint
        before = directory.read("dataset.json").get("fingerprint")
        if before and now and before != now:
            warn(f"{dataset} has other examples than when {directory.path} began, though as many")
            return {"examples": [before, now]}
    return {}


def _directory(run: Run) -> RunDirectory:
    return RunDirectory(folder_of(run, "run_record"))
