"""The folder of a run: what is in it, who may write to it, and what may change when a run goes on
in it.
"""

# Over 300 lines: the names of the files, who may write them, and how they are written belong
# together.

import contextlib
import dataclasses
import datetime
import errno
import json
import os
import pathlib
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxdp import config as config_lib
from jaxdp import csv_text, run_files, run_lock, source_files
from jaxdp.config import TrainConfig
from jaxdp.parsing import resolved, valid_text
from jaxdp.registry import ConfigError, brief, load_trusted
from jaxdp.run_files import DamagedFile
from jaxdp.run_files import Row as Row
from jaxdp.run_files import read_lines as read_lines
from jaxdp.run_files import replace_file as replace_file
from jaxdp.run_files import rows_text as rows_text

_UNFINISHED = ".orbax-checkpoint-tmp"


class MovedError(OSError):
    """The folder of a run was moved, removed or replaced while the run wrote in it."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__(
            f"No such file or directory any more: {path} was moved, removed or replaced while the"
            " run wrote in it; if it was moved, continue with --run-dir and its new path"
        )


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """The folder of a run: the paths of its files, and methods that read and write them."""

    path: pathlib.Path

    @property
    def config_file(self) -> pathlib.Path:
        return self.path / "config.yaml"

    @property
    def metrics_file(self) -> pathlib.Path:
        return self.path / "metrics.jsonl"

    @property
    def summary_file(self) -> pathlib.Path:
        return self.path / "summary.json"

    @property
    def history_file(self) -> pathlib.Path:
        return self.path / "history.jsonl"

    @property
    def dataset_file(self) -> pathlib.Path:
        return self.path / "dataset.json"

    @property
    def sources_file(self) -> pathlib.Path:
        return self.path / "sources.json"

    @property
    def skipped_file(self) -> pathlib.Path:
        return self.path / "skipped.csv"

    @property
    def plots(self) -> pathlib.Path:
        return self.path / "plots"

    @property
    def checkpoints(self) -> pathlib.Path:
        return self.path / "checkpoints"

    @property
    def _rollbacks_file(self) -> pathlib.Path:
        return self.path / "rollbacks.json"

    @property
    def lock_file(self) -> pathlib.Path:
        return self.path / "writer.lock"

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Makes this process the folder's only writer until the block ends, or the process does,
        whatever ends it.

        The operating system holds the lock (flock) and lets go of it when a process dies: what its
        file says is for people. Where the file system knows no locks the file itself is the lock,
        and one left by a dead process of this host is taken over.

        Raises:
            ConfigError: if another process writes there.
        """
        descriptor = run_lock.take(self.lock_file)
        try:
            yield
        finally:
            # The file goes while it is still locked: who opened it meanwhile finds that it is no
            # longer the one in the folder. Where the folder was moved, another run may have its
            # lock there.
            # Read-only by now: the error that ended the run counts.
            with contextlib.suppress(OSError):
                if run_lock.is_in_place(descriptor, self.lock_file):
                    self.lock_file.unlink()
            os.close(descriptor)

    def opened(self) -> int:
        """Returns a descriptor of the folder, which stays that of this folder wherever it is
        moved.
        """
        return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)

    def is_in_place(self, descriptor: int) -> bool:
        """Whether the path still leads to the folder that was opened."""
        try:
            return os.path.samestat(os.fstat(descriptor), self.path.stat())
        except OSError:
            return False

    def remove_remains(self) -> None:
        """Removes the folder if it holds only unfinished saves.

        A save in the background makes the folder again after the run's own was moved.
        """
        with contextlib.suppress(OSError):
            saves = list(self.checkpoints.iterdir())
            if len(list(self.path.iterdir())) == 1 and all(
                path.name.endswith(_UNFINISHED) for path in saves
            ):
                shutil.rmtree(self.path)

    def check_links(self) -> None:
        """Makes sure that nothing in the folder leads out of it: what a run writes there would
        change other files.

        Raises:
            ConfigError: for the first link that does.
        """
        whole = resolved(self.path)
        for folder, folders, files in os.walk(self.path):
            for path in (pathlib.Path(folder, name) for name in sorted((*folders, *files))):
                if path.is_symlink() and not resolved(path).is_relative_to(whole):
                    name = path.relative_to(self.path)
                    remedy = (
                        f"{name} in it is a link out of it; replace it by what it leads to, or make"
                        " the whole folder the link"
                    )
                    raise ConfigError("run_dir", self.path, remedy)
            if folder == str(self.path) and "wandb" in folders:
                # W&B writes there, and links to files that a program saves with it.
                folders.remove("wandb")

    def is_being_written(self) -> bool:
        """Whether a process that writes there lives, as far as its lock file and this host tell."""
        return run_lock.is_held(self.lock_file)

    def load_config(self) -> TrainConfig:
        """Returns the settings of the run.

        Raises:
            ConfigError: if there is no run, or its settings cannot be read.
        """
        if not self.config_file.exists():
            raise ConfigError("run_dir", self.path, "holds no run: there is no config.yaml in it")
        text = run_files.read_text(self.config_file)
        try:
            return TrainConfig.of(**config_lib.parse(text, self.config_file, warn=run_files.warn))
        except ConfigError as error:
            problem = (
                error.remedy.removeprefix("cannot be read: ")
                if error.field == "config"
                else str(error)
            )
            raise DamagedFile(self.config_file, problem) from error

    def changed_settings(self, now: TrainConfig) -> dict[str, list[object]]:
        """Returns the settings of training that are others than the run has, each with its old and
        its new value.
        """
        if not self.config_file.exists():  # nobody knows what they were
            return {}
        old, new = self.load_config().plain(), now.plain()
        names = [
            name
            for name in config_lib.settings_with(TrainConfig, saved=True)
            if old[name] != new[name]
        ]
        return {name: [old[name], new[name]] for name in names}

    def changes_text(self, now: TrainConfig) -> str:
        """Says which settings of training are others than the run has.

        Nothing if all are as they were.
        """
        changed = self.changed_settings(now)
        texts = list[str]()
        for name, values in changed.items():
            before, after = ("none" if value is None else brief(value) for value in values)
            texts.append(f"{name} {after} instead of {before}")
        return ", ".join(texts)

    def load_trusted_config(self, plugins: Sequence[str]) -> TrainConfig:
        """Returns the settings of a run whose model is to be used, after importing its plugins,
        once somebody else named them.

        Args:
            plugins: that the command or the program names.

        Raises:
            ConfigError: as `load_config` does, and for a plugin that only the folder names: it is
                code of whoever made the folder.
        """
        config = self.load_config()
        config = config.replace(plugins=load_trusted(config.plugins, plugins, self.path))
        if changed := source_files.text(self.changed_sources(source_files.digests())):
            run_files.warn(f"{self.path}: {changed}; its weights are used under the new code")
        return config

    def write_config(self, config: TrainConfig) -> None:
        defaults = TrainConfig().flat()
        of_command = {
            name: defaults[name] for name in config_lib.settings_with(TrainConfig, saved=False)
        }
        replace_file(self.config_file, config_lib.to_yaml(config.replace(**of_command)))

    def changed_sources(self, now: Mapping[str, str]) -> dict[str, list[str]]:
        """Returns the source files that have changed since the run last started.

        Each has the first 16 digits of its old and its new digest.

        Args:
            now: the digests of the source files, by name.
        """
        if not self.sources_file.exists():  # a run of version 0.2
            return {}
        try:
            before = run_files.read_object(self.sources_file)
        except DamagedFile as error:
            run_files.warn(str(error))
            return {}
        changed = [name for name in now if name in before and before[name] != now[name]]
        return {name: [before[name][:16], now[name][:16]] for name in changed}

    def write_sources(self, digests: Mapping[str, str]) -> None:
        replace_file(self.sources_file, json.dumps(digests, indent=2) + "\n")

    def read_rollbacks(self) -> int:
        """Returns how often the run went back to a checkpoint, those times included after which
        nothing was saved.
        """
        if not self._rollbacks_file.exists():
            return 0
        try:
            return run_files.read_object(self._rollbacks_file)["rollbacks"]
        except DamagedFile as error:
            run_files.warn(str(error))
            return sum(row["event"] == "rollback" for row in self.read_history())

    def write_rollbacks(self, count: int) -> None:
        replace_file(self._rollbacks_file, json.dumps({"rollbacks": count}) + "\n")

    def record(self, event: str, step: int, **facts: Any) -> None:
        """Adds a line to history.jsonl: what became of the run at a step, and when.

        Args:
            event: started, resumed, rollback, stopped, diverged or done; also worker joined, worker
                lost or server lost.
            **facts: what else there is to say, as plain values: e.g. of a resumed run which
                settings `changed`, each with its old and its new value.
        """
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        run_files.append_row(self.history_file, {"time": now, "event": event, "step": step} | facts)

    def read_dataset(self) -> dict[str, Any]:
        """Returns what is known of the dataset that the run was trained on.

        Raises:
            DamagedFile: if the file cannot be read.
            ConfigError: if there is no run.
        """
        if not self.dataset_file.exists():
            raise ConfigError("run_dir", self.path, "holds no run: there is no dataset.json in it")
        return run_files.read_object(self.dataset_file)

    def write_dataset(self, description: Mapping[str, Any]) -> None:
        replace_file(self.dataset_file, json.dumps(description, indent=2) + "\n")

    def read_summary(self) -> dict[str, Any] | None:
        """Returns the result of the run, None where there is none yet, or none that can be read,
        which is a warning.
        """
        if not self.summary_file.exists():
            return None
        try:
            return run_files.read_object(self.summary_file)
        except DamagedFile as error:
            run_files.warn(str(error))
            return None

    def is_done(self) -> bool:
        """Whether the run came to its end."""
        summary = self.read_summary()
        return summary is not None and summary["status"] == "done"

    def read_rows(self) -> list[dict[str, Any]]:
        """Returns the rows of metrics.jsonl.

        A last line that a kill cut short is left out, others with a warning.
        """
        return read_lines(self.metrics_file)

    def read_history(self) -> list[dict[str, Any]]:
        """Returns what became of the run so far."""
        return read_lines(self.history_file)

    def write_summary(self, summary: dict[str, Any]) -> None:
        replace_file(self.summary_file, json.dumps(summary, indent=2) + "\n")

    def _read_skipped(self) -> dict[tuple[str, str], str]:
        try:
            _, *rows = csv_text.read(run_files.read_text(self.skipped_file))
            return {(split, example): reason for split, example, reason in rows}
        except ValueError as error:
            aside = run_files.set_aside(self.skipped_file, self.path / run_files.DAMAGED)
            problem = error.problem if isinstance(error, DamagedFile) else str(error)
            run_files.warn(f"{self.skipped_file} cannot be read ({problem}), and moved to {aside}")
            return {}

    def write_skipped(self, skipped: Iterable[tuple[str, str, str]]) -> None:
        """Adds examples that were left out, as (split, example, reason), to skipped.csv.

        What was there before a resume stays.
        """
        found = {(split, valid_text(example)): reason for split, example, reason in skipped}
        if not found:
            return
        if self.skipped_file.is_file():
            found = self._read_skipped() | found
        rows = [("split", "example", "reason"), *((*key, reason) for key, reason in found.items())]
        replace_file(self.skipped_file, csv_text.write(rows))


def claim(config: TrainConfig, description: Mapping[str, Any], *, create: bool) -> RunDirectory:
    """Finds the folder for a configuration whose batch size is filled in.

    Args:
        description: of the dataset, as plain values.
        create: whether this process creates it, and makes sure that it can be written.

    Raises:
        ConfigError: if it cannot be written, or holds a run that the settings do not continue.
    """
    run = RunDirectory(_folder(config))
    check_utf8(run.path)
    default = run.path
    if config.resume == "never" and not config.run_dir:
        number = 2
        while run.config_file.exists():
            run, number = RunDirectory(default.with_name(f"{default.name}-{number}")), number + 1
    if run.config_file.exists() and config.resume == "never":
        raise ConfigError(
            "resume",
            "never",
            f"{run.path} already holds a run; give another --run-dir, or remove that one",
        )
    if create:
        run.check_links()
    if run.config_file.exists():
        _check_same_run(config, description, run, create=create)
    if create:
        check_folder("run_dir", run.path)
    return run


def will_resume(config: TrainConfig) -> bool:
    """Whether there is a checkpoint from which a configuration whose batch size is filled in goes
    on.
    """
    checkpoints = RunDirectory(_folder(config)).checkpoints
    return (
        config.resume != "never"
        and checkpoints.is_dir()
        and any(is_step(path) for path in checkpoints.iterdir())
    )


def is_step(path: pathlib.Path) -> bool:
    """Whether a folder holds a complete checkpoint, by its name: 0006 is none, and what a killed
    save leaves has another name.
    """
    return path.name.isdecimal() and path.name == str(int(path.name)) and path.is_dir()


def _folder(config: TrainConfig) -> pathlib.Path:
    """Returns the folder that `--run-dir` names, or the one for these settings."""
    if config.run_dir:
        return pathlib.Path(config.run_dir)
    # A backslash is a separator to Orbax.
    dataset = re.sub(r"[/\\]", "_", valid_text(str(config.dataset))).replace(":", "-")
    return pathlib.Path("runs", f"{config.model}-{dataset}-{config_lib.run_hash(config)}")


def claim_new(path: pathlib.Path) -> RunDirectory:
    """Creates a folder for a run that is complete already.

    Raises:
        ConfigError: if there is something in it, or it cannot be written.
    """
    check_utf8(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        holds_something = any(path.iterdir())
    except OSError as error:
        raise ConfigError(
            "", path, f"{path} cannot be written ({error.strerror}); give another folder"
        ) from error
    if holds_something:
        raise ConfigError("", path, f"{path} is not empty; give another folder")
    return RunDirectory(path)


def check_utf8(path: pathlib.Path) -> None:
    """Raises ConfigError for the folder of a run where Orbax can neither save nor read."""
    whole = str(path.absolute())
    if valid_text(whole) != whole:
        raise ConfigError("run_dir", path, f"the path {whole} is not UTF-8; give another folder")


def check_folder(field: str, folder: pathlib.Path) -> None:
    """Creates a folder where there is none, and makes sure that files can be written in it.

    Args:
        field: the setting that names it.

    Raises:
        ConfigError: if they cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            field, folder, f"cannot be written ({error.strerror}); give another folder"
        ) from error


def check_file(field: str, path: pathlib.Path, example: str) -> None:
    """Makes sure that a path names a regular file, or a new one, so that `replace_file` replaces
    nothing else.

    Args:
        field: the setting that names it.
        example: name of a file, for the error.

    Raises:
        ConfigError: for a folder, a device, a pipe or a socket, and a symbolic link to one.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:  # not there, which is fine, or out of reach, which writing will tell
        if error.errno == errno.ELOOP:
            raise ConfigError(
                field, path, f"is a link to itself; give a file, e.g. {example}"
            ) from error
        return
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "no regular file"
        raise ConfigError(field, path, f"is {what}; give a file, e.g. {example}")


def _check_same_run(
    config: TrainConfig, description: Mapping[str, Any], run: RunDirectory, *, create: bool
) -> None:
    """Raises ConfigError for what has changed since the run began, and must not."""
    ours_by_name, saved = config.plain(), run.load_config().plain()
    for name, field in config_lib.fields(TrainConfig).items():
        ours, theirs, resume = ours_by_name[name], saved[name], config_lib.facts_of(field).resume
        changed = bool(ours) != bool(theirs) if resume == "presence" else ours != theirs
        if changed and resume != "free":
            fresh = f", which --init-from {run.path} starts from its weights" * (resume == "start")
            remedy = f"the run in {run.path} has {brief(theirs)}; "
            remedy += f"use that, or another --run-dir{fresh}"
            raise ConfigError(name, ours, remedy)
    before = description
    if run.dataset_file.exists():
        try:
            before = run.read_dataset()
        except DamagedFile as error:
            if create:
                run_files.warn(
                    f"{error.path} cannot be read ({error.problem}); made again from"
                    f" {config.dataset}"
                )
                run.write_dataset(description)
    for name in ("num_classes", "image_shape", "class_names", "examples"):
        now, then = (json.dumps(content[name]) for content in (description, before))
        if now != then:
            remedy = (
                f"has changed since the run in {run.path} began: {name} was {then}, is {now}; use"
                " another --run-dir"
            )
            raise ConfigError("dataset", config.dataset, remedy)
