"""Finds the checkpoints on disk, ranks them, and compares each with the checksums of its files.

    RUN_DIR/checkpoints/STEP/       as Orbax wrote it
    RUN_DIR/checksums/STEP.json     written once the save is complete
    RUN_DIR/damaged/STEP/           a damaged checkpoint, moved here when the run is resumed

This module does not require JAX.
"""

import contextlib
import errno
import hashlib
import json
import math
import os
import pathlib
import shutil
import stat
import time
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypedDict

from jaxdp.errors import ConfigError
from jaxdp.rundir.layout import saved_steps as steps
from jaxdp.rundir.read import DAMAGED, DamagedFile, read_object
from jaxdp.rundir.schemas import Count, conforms
from jaxdp.rundir.write import replace_file
from jaxdp.text.messages import one_line, printable

# Maximum time to remove a checkpoint, because a run that continues keeps only the newest
# checkpoints.
_REMOVAL_SECONDS = 1.0

# Name of the metric that ranks checkpoints, and whether larger is better.
BestMetric = tuple[str, bool]


class Verdict(NamedTuple):
    """The result of examining a checkpoint.

    Attributes:
        state: "unverified" if no checksums were written, because the run was killed right after the
            save, or is older than checksums.
        problem: the file and its problem; empty unless damaged.
    """

    state: Literal["whole", "damaged", "unverified"]
    problem: str = ""


class FileSum(TypedDict):
    """A file of a checkpoint, in its list of checksums."""

    size: Count
    sha256: str


class Checksums(TypedDict):
    """The list of a checkpoint's files."""

    files: dict[str, FileSum]


def read_metrics(checkpoints: pathlib.Path, step: int) -> dict[str, float] | None:
    """Returns the metrics that were saved with a checkpoint, if they exist and can be read."""
    try:
        metrics = read_object(_metrics_file(checkpoints, step))
    except DamagedFile:
        return None
    return metrics if all(type(value) in (int, float) for value in metrics.values()) else None


def read_position(checkpoints: pathlib.Path, step: int) -> dict[str, Any]:
    """Returns the data that were saved with a checkpoint in addition to its arrays; nothing if they
    cannot be read.
    """
    try:
        content = read_object(checkpoints / str(step) / "_CHECKPOINT_METADATA")  # as Orbax names it
    except DamagedFile:
        return {}
    found = content.get("custom_metadata")
    return found if isinstance(found, dict) else {}


def rank(metrics: Mapping[str, float], best_metric: BestMetric) -> float:
    """Returns a number that is larger for better metrics.

    A value that is not a number is the worst.
    """
    name, larger_is_better = best_metric
    value = metrics[name] if larger_is_better else -metrics[name]
    return -math.inf if math.isnan(value) else value


def record(checkpoints: pathlib.Path, step: int) -> None:
    """Writes the checksums of a new checkpoint, and removes checksums without a checkpoint."""
    folder = checkpoints / str(step)
    if folder.is_dir():
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        entries = {
            str(path.relative_to(folder)): {"size": path.stat().st_size, "sha256": _hash(path)}
            for path in files
        }
        target = _list_file(checkpoints, step)
        target.parent.mkdir(exist_ok=True)
        replace_file(target, json.dumps({"step": step, "files": entries}, indent=1) + "\n")
    forget(checkpoints)


def forget(checkpoints: pathlib.Path, step: int | None = None) -> None:
    """Removes the checksums of a step, and of removed checkpoints, because a step may be saved
    again with other bytes.
    """
    known = set(steps(checkpoints)) - {step}
    for path in checkpoints.with_name("checksums").glob("*.json"):
        if path.stem.isdecimal() and int(path.stem) not in known:
            path.unlink(missing_ok=True)


def examine(checkpoints: pathlib.Path, step: int) -> Verdict:
    """Compares each byte of a checkpoint with its checksums."""
    entries: dict[str, FileSum] | None = None
    with contextlib.suppress(DamagedFile):
        content = read_object(_list_file(checkpoints, step))
        entries = content["files"] if conforms(content, Checksums) else None
    if entries is None:  # which says nothing about the checkpoint
        if _metrics_file(checkpoints, step).exists() and read_metrics(checkpoints, step) is None:
            return Verdict("damaged", "metrics/metrics cannot be read")
        return _without_list(checkpoints / str(step))
    for name, entry in entries.items():
        if problem := _problem(checkpoints / str(step) / name, entry):
            return Verdict("damaged", f"{printable(name)} {problem}")
    return Verdict("whole")


def _problem(path: pathlib.Path, entry: FileSum) -> str:
    """Returns the problem of a file of a checkpoint; nothing if it equals the saved file."""
    length = entry["size"]
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return "is no regular file"
        if status.st_size != length:
            return f"has {status.st_size} bytes instead of {length}"
        if _hash(path) != entry["sha256"]:
            return "has other content than was saved"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except ValueError as error:  # a name that no file can have
        return f"cannot be read ({error})"
    return ""


def _without_list(folder: pathlib.Path) -> Verdict:
    """Examines a checkpoint without checksums for unreadable files, such as a pipe, which never
    ends.
    """
    for path in folder.rglob("*"):
        if not path.is_file() and not path.is_dir() and path.exists():
            return Verdict(
                "damaged", f"{printable(str(path.relative_to(folder)))} is no regular file"
            )
    return Verdict("unverified")


def examine_all(checkpoints: pathlib.Path) -> dict[int, Verdict]:
    """Examines all checkpoints by step, without those that are removed meanwhile."""
    verdicts = {step: examine(checkpoints, step) for step in steps(checkpoints)}
    return {
        step: verdict
        for step, verdict in verdicts.items()
        if not verdict.problem or not vanishes(checkpoints, step)
    }


def vanishes(checkpoints: pathlib.Path, step: int) -> bool:
    """Returns whether a checkpoint that lacks files is only being removed. Waits until it is
    gone.
    """
    deadline = time.monotonic() + _REMOVAL_SECONDS
    while (checkpoints / str(step)).exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def set_aside(checkpoints: pathlib.Path, step: int) -> pathlib.Path:
    """Moves a checkpoint into the folder `damaged`, and returns its new location.

    Raises:
        ConfigError: if it cannot be moved.
    """
    path, folder = checkpoints / str(step), checkpoints.with_name(DAMAGED)
    target, number = folder / path.name, 2
    try:
        folder.mkdir(exist_ok=True)
        while target.exists():
            target, number = folder / f"{step}-{number}", number + 1
        shutil.move(path, target)  # also to another file system
    except OSError as error:
        remedy = f"{path} is damaged and cannot be moved to {target}; move it away yourself"
        raise ConfigError("run_dir", folder.parent, remedy) from error
    forget(checkpoints, step)
    return target


def reason_text(error: Exception) -> str:
    """Returns in a few words why files could not be read or written.

    TensorStore's messages are long, and name the system's error somewhere within.
    """
    # Orbax's own error for metadata that it cannot read.
    if isinstance(error, AttributeError | LookupError | TypeError):
        return "its metadata are damaged"
    text = one_line(error)
    known = (reason for reason in map(os.strerror, errno.errorcode) if reason in text)
    return next(known, text[:200] or type(error).__name__)


def _metrics_file(checkpoints: pathlib.Path, step: int) -> pathlib.Path:
    return checkpoints / str(step) / "metrics" / "metrics"  # as Orbax names it


def _list_file(checkpoints: pathlib.Path, step: int) -> pathlib.Path:
    return checkpoints.with_name("checksums") / f"{step}.json"


def _hash(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
