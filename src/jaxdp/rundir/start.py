"""Opens the folder of a new run, or of a run that continues with the same settings and data."""

import json
import math
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from jaxdp import config as config_lib
from jaxdp.config import LOCAL, TrainConfig
from jaxdp.errors import ConfigError, flag
from jaxdp.rundir.layout import RunDirectory, saved_steps
from jaxdp.rundir.read import DamagedFile
from jaxdp.rundir.write import check_folder
from jaxdp.text.console import warn
from jaxdp.text.messages import brief, valid_text


def open_run(config: TrainConfig, description: Mapping[str, Any], *, create: bool) -> RunDirectory:
    """Finds the folder for a configuration with its batch size filled in.

    Args:
        description: of the dataset, as plain values.
        create: whether this process creates it, and makes sure that it can be written.

    Raises:
        ConfigError: if it cannot be written, or holds a run that the settings do not continue.
    """
    run = RunDirectory(_folder(config))
    check_utf8(run.path)
    if config.resume == "never" and not config.run_dir:
        default, number = run.path, 2
        while run.file("config.yaml").exists():
            run, number = RunDirectory(default.with_name(f"{default.name}-{number}")), number + 1
    holds_run = run.file("config.yaml").exists()
    if holds_run and config.resume == "never":
        raise ConfigError(
            "resume",
            "never",
            f"{run.path} already holds a run; give another {flag('run_dir')}, or remove that one",
        )
    if create:
        run.check_links()
    if holds_run:
        _check_same_run(config, description, run, create=create)
    if create:
        check_folder("run_dir", run.path)
    return run


def will_resume(config: TrainConfig) -> bool:
    """Returns whether a configuration, with its batch size filled in, continues from a
    checkpoint.
    """
    checkpoints = RunDirectory(_folder(config)).checkpoints
    return config.resume != "never" and bool(saved_steps(checkpoints))


def create_run(path: pathlib.Path) -> RunDirectory:
    """Creates a folder for a run that is already complete.

    Raises:
        ConfigError: if it is not empty, or cannot be written.
    """
    check_utf8(path)
    LOCAL.check("run_dir", str(path))
    check_folder("run_dir", path)
    if any(path.iterdir()):
        raise ConfigError("", path, f"{path} is not empty; give another folder")
    return RunDirectory(path)


def check_utf8(path: pathlib.Path) -> None:
    """Raises ConfigError for a run folder in which Orbax can neither save nor read."""
    whole = str(path.absolute())
    if valid_text(whole) != whole:
        raise ConfigError("run_dir", path, f"the path {whole} is not UTF-8; give another folder")


def _folder(config: TrainConfig) -> pathlib.Path:
    """Returns the folder that `--run-dir` names, or the folder for these settings."""
    if config.run_dir:
        return pathlib.Path(config.run_dir)
    dataset = valid_text(str(config.dataset)).replace(":", "-")
    names = [f"{config.model}-{re.sub(odd, '_', dataset)}" for odd in (r"[/\\]", r"[^\w ,.+@~-]")]
    # Version 0.3 kept more characters in the name, and such a run continues in its folder.
    earlier, folder = (
        pathlib.Path("runs", f"{name}-{config_lib.run_hash(config)}") for name in names
    )
    return earlier if (earlier / "config.yaml").exists() else folder


def _check_same_run(
    config: TrainConfig, description: Mapping[str, Any], run: RunDirectory, *, create: bool
) -> None:
    """Raises ConfigError for changes since the run began that are not allowed."""
    ours, theirs = config.plain(), run.load_config().plain()
    fields = config_lib.fields(TrainConfig)
    # batch_norm comes last, because its default depends on the batch size, which is then the
    # setting to name.
    for name, facts in sorted(fields.items(), key=lambda item: item[0] == "batch_norm"):
        now = ours[name]
        then = theirs[name]
        changed = bool(now) != bool(then) if facts.resume == "presence" else now != then
        if changed and facts.resume != "free":
            ways = f"use that, or another {flag('run_dir')}"
            remedy = f"the run in {run.path} has {brief(then)}; {ways}"
            if facts.resume == "start":
                remedy += f", which {flag('init_from', str(run.path))} starts from its weights"
            raise ConfigError(name, now, remedy)
    if not run.file("dataset.json").exists():
        return
    try:
        before = run.read("dataset.json")
    except DamagedFile as error:
        if create:
            source = config.dataset
            warn(f"{error.path} cannot be read ({error.problem}); made again from {source}")
            run.write("dataset.json", description)
        return
    _check_same_data(config, description, before, run)
    if create:
        _compare_statistics(config, description, before, run)


def _check_same_data(
    config: TrainConfig,
    description: Mapping[str, Any],
    before: Mapping[str, Any],
    run: RunDirectory,
) -> None:
    """Raises ConfigError for another task or other examples than in the dataset.json of a run."""
    own, theirs = description["own_task"], before.get("own_task", description["own_task"])
    if own != theirs:
        was = f"was trained with {theirs}" if theirs else "was trained with a task by name"
        remedy = f"the run in {run.path} {was}; give that, or another {flag('run_dir')}"
        raise ConfigError("task", own or config.task, remedy)
    counted = json.dumps([*map(str, range(before["num_classes"]))])
    for name in ("num_classes", "image_shape", "class_names", "examples"):
        now, then = (json.dumps(content[name]) for content in (description, before))
        # Version 0.3 counted the classes if there were more classes than names.
        is_old = name == "class_names" and "named" not in before and then == counted
        if now != then and not is_old:
            remedy = (
                f"has changed since the run in {run.path} began: {name} was {then}, is {now}; use"
                f" another {flag('run_dir')}"
            )
            raise ConfigError("dataset", config.dataset, remedy)


def _compare_statistics(
    config: TrainConfig,
    description: Mapping[str, Any],
    before: Mapping[str, Any],
    run: RunDirectory,
) -> None:
    """Warns if images are normalized by other numbers than before."""
    for name in ("mean", "std"):
        now, then = description[name], before[name]
        if any(not math.isclose(*both, rel_tol=1e-5) for both in zip(now, then, strict=True)):
            warn(
                f"{config.dataset} is not normalized as when the run in {run.path} began:"
                f" {name} was {brief(then)}, is {brief(now)}; a dataset of items that change is"
                " measured anew at each start, unless mean and std of the Dataset are given"
            )
