"""Defines the content of a run folder, its lock, and the changes since the run began."""

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxdp import config as config_lib
from jaxdp.config import TrainConfig
from jaxdp.errors import ConfigError
from jaxdp.plugins.loading import load_trusted
from jaxdp.rundir import lock, source_files
from jaxdp.rundir.read import DamagedFile, read_lines, read_object, read_text
from jaxdp.rundir.write import append_row, replace_file
from jaxdp.text import csv_text
from jaxdp.text.console import warn
from jaxdp.text.flags import flag, for_python
from jaxdp.text.messages import brief, valid_text
from jaxdp.text.parsing import resolved
from jaxdp.text.units import time_text


class LostFolder(OSError):
    """The folder of a run is no longer where the run began."""

    def __init__(self, remedy: str) -> None:
        super().__init__(for_python(remedy))
        self.template = remedy


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """The folder of a run, which reads and writes the files in it by name."""

    path: pathlib.Path

    def file(self, name: str) -> pathlib.Path:
        return self.path / name

    @property
    def checkpoints(self) -> pathlib.Path:
        return self.path / "checkpoints"

    def read(self, name: str) -> Any:
        """Returns the content of a JSON file, or the rows of a file of rows.

        Rows that cannot be read are left out with a warning; a last row that a kill cut short is
        left out.

        Returns:
            None for a missing file, or with a warning for an unreadable file.

        Raises:
            DamagedFile: if dataset.json, or a file of rows, cannot be read.
            ConfigError: if there is no dataset.json, and so no run.
        """
        path = self.file(name)
        if name.endswith(".jsonl"):
            return read_lines(path)
        if not path.exists():
            if name == "dataset.json":
                raise ConfigError("run_dir", self.path, f"holds no run: there is no {name} in it")
            return None
        try:
            return read_object(path)
        except DamagedFile as error:
            if name == "dataset.json":
                raise
            warn(error)
            return None

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Writes a JSON file."""
        replace_file(self.file(name), json.dumps(content, indent=2) + "\n")

    def record(self, event: str, step: int, **facts: Any) -> None:
        """Adds a line to history.jsonl, with an event of the run, its step and its time.

        Args:
            event: started, resumed, stopped, diverged or done; also worker joined or
                worker lost.
            **facts: further facts, as plain values. For example, for a resumed run, the settings
                that `changed`, each with its old and its new value.
        """
        row = {"time": time_text(), "event": event, "step": step}
        append_row(self.file("history.jsonl"), row | facts)

    def load_config(self) -> TrainConfig:
        """Returns the settings of the run.

        Raises:
            ConfigError: if there is no run, or its settings cannot be read.
        """
        path = self.file("config.yaml")
        if not path.exists():
            raise ConfigError("run_dir", self.path, "holds no run: there is no config.yaml in it")
        text = read_text(path)
        if not text.strip():
            raise DamagedFile(path, "it is empty")
        try:
            return TrainConfig.of(**config_lib.parse(text, path, warn=warn))
        except ConfigError as error:
            is_whole = error.field != "config"
            problem = error.template if is_whole else error.remedy.template
            raise DamagedFile(path, problem.removeprefix("cannot be read: ")) from error

    def load_trusted_config(self, plugins: Sequence[str]) -> TrainConfig:
        """Returns the settings of a run for the use of its model, after importing its plugins,
        which the caller must name.

        Args:
            plugins: that the command or the program names.

        Raises:
            ConfigError: as `load_config` does, and for a plugin that only the folder names, because
                it is code of the folder's author.
        """
        config = self.load_config()
        config = config.replace(plugins=load_trusted(config.plugins, plugins, self.path))
        if changed := source_files.text(self.changed_sources(source_files.digests())):
            warn(f"{self.path}: {changed}; its weights are used under the new code")
        return config

    def write_config(self, config: TrainConfig) -> None:
        defaults = TrainConfig().flat()
        of_command = config_lib.settings_with(TrainConfig, saved=False)
        kept = config.replace(**{name: defaults[name] for name in of_command})
        replace_file(self.file("config.yaml"), config_lib.to_yaml(kept))

    def changed_settings(self, now: TrainConfig) -> dict[str, list[object]]:
        """Returns the settings of training that differ from the run's settings, with old and new
        values.
        """
        if not self.file("config.yaml").exists():  # the old values are unknown
            return {}
        old, new = self.load_config().plain(), now.plain()
        # Version 0.3 did not record the defaults that it filled in.
        unknown = {name for name in now.filled if old[name] is None}
        names = {*config_lib.settings_with(TrainConfig, saved=True)} - unknown
        return {
            name: [old[name], new[name]] for name in old if name in names and old[name] != new[name]
        }

    def changes_text(self, now: TrainConfig) -> str:
        """Returns a text of the settings of training that differ from the run's settings; nothing
        if none differ.
        """

        def text(value: object) -> str:
            return "none" if value is None else brief(value)

        changed = self.changed_settings(now).items()
        return ", ".join(
            f"{name} {text(new)} instead of {text(old)}" for name, (old, new) in changed
        )

    def changed_sources(self, now: Mapping[str, str]) -> dict[str, list[str]]:
        """Returns the source files that have changed since the run last started.

        Each has the first 16 digits of its old and its new digest.

        Args:
            now: the digests of the source files, by name.
        """
        before = self.read("sources.json") or {}  # a run of version 0.2 has none
        digests = [(name, before.get(name, digest), digest) for name, digest in now.items()]
        return {name: [old[:16], new[:16]] for name, old, new in digests if old != new}

    def write_skipped(self, skipped: Iterable[tuple[str, str, str]]) -> None:
        """Adds examples that were left out, as (split, example, reason), to skipped.csv.

        The examples that were listed before a resume stay.
        """
        found = {(split, valid_text(example)): reason for split, example, reason in skipped}
        if not found:
            return
        path, reasons = self.file("skipped.csv"), {("split", "example"): "reason"}
        try:
            rows = csv_text.read(read_text(path)) if path.exists() else []
            reasons |= {(split, example): reason for split, example, reason in rows}
        except ValueError as error:
            warn(f"{path} cannot be read ({error}), and begins anew")
        rows = [(*key, reason) for key, reason in (reasons | found).items()]
        replace_file(path, csv_text.write(rows))

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        """Makes this process the folder's only writer until the block or the process ends.

        The operating system holds the lock (flock) and releases it when the process dies. The text
        in the lock file is for people. On a file system without locks, prints a warning and sets no
        lock.

        Raises:
            ConfigError: if another process writes to the folder.
        """
        return lock.held(self.file(lock.NAME))

    def check_in_place(self, found: os.stat_result) -> None:
        """Raises OSError unless the path still leads to the same folder."""
        with contextlib.suppress(OSError):
            if os.path.samestat(found, self.path.stat()):
                return
        raise LostFolder(
            f"No such file or directory any more: {self.path} was moved, removed or replaced; put"
            f" it back, or give its new path as {flag('run_dir')}"
        )

    def check_links(self) -> None:
        """Makes sure that no link in the folder leads out of it, because a run would change other
        files.

        Raises:
            ConfigError: for the first link that leads out of it.
        """
        whole = resolved(self.path)
        for path in sorted(self.path.rglob("*")):
            name = path.relative_to(self.path)
            # W&B writes there, and links to files that a program saves with it.
            is_of_wandb = name.parts[0] == "wandb" and len(name.parts) > 1
            if path.is_symlink() and not is_of_wandb and not resolved(path).is_relative_to(whole):
                remedy = (
                    f"{name} in it is a link out of it; replace it by what it leads to, or make the"
                    " whole folder the link"
                )
                raise ConfigError("run_dir", self.path, remedy)


def saved_steps(checkpoints: pathlib.Path) -> list[int]:
    """Returns the steps of complete checkpoints, ascending.

    0006 is not a step, and folders that a killed save leaves have another name.
    """
    return sorted(
        int(path.name)
        for path in checkpoints.glob("[0-9]*")
        if path.name.isdecimal() and path.name == str(int(path.name)) and path.is_dir()
    )
