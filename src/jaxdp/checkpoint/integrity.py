"""Finds the checkpoints on disk, ranks them, and compares each with the checksums of its files.

    RUN_DIR/checkpoints/STEP/       as Orbax wrote it
    RUN_DIR/checksums/STEP.json     written once the save is complete
    RUN_DIR/damaged/STEP/           a damaged checkpoint, moved here when the run is resumed

Nothing here needs JAX.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import math
import os
import pathlib
import stat
import time
from collections.abc import Mapping
from typing import Literal

from jaxdp.parsing import printable
from jaxdp.rundir import lock, write
from jaxdp.rundir.layout import saved_steps
from jaxdp.rundir.read import DAMAGED, DamagedFile, read_object
from jaxdp.rundir.write import replace_file

# Files below this are hashed in every examination: they hold names, places and metrics, and take no
# time.
_SMALL = 64 * 1024
_BLOCK = 1024 * 1024
# A checkpoint that lacks files while its run goes on is most likely being removed: this long that
# may take.
_LIVE_SECONDS, _ENDED_SECONDS = 5.0, 0.1
_SYSTEM_ERRORS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.ENOENT,
)

# Name of the metric that ranks checkpoints, and whether larger is better.
BestMetric = tuple[str, bool]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of examining a checkpoint.

    Attributes:
        state: "unverified" if no checksums were written: the run was killed right after the save,
            or is older than they are.
        problem: the file and what is wrong with it; empty unless damaged.
    """

    state: Literal["whole", "damaged", "unverified"]
    problem: str = ""

    @property
    def usable(self) -> bool:
        return self.state != "damaged"


def steps(checkpoints: pathlib.Path) -> list[int]:
    """Returns the steps of complete saves, ascending.

    The remains of a killed save have another name.
    """
    return saved_steps(checkpoints)


def read_metrics(checkpoints: pathlib.Path, step: int) -> dict[str, float] | None:
    """Returns the metrics that were saved with a checkpoint, if there were any and they can be
    read.
    """
    try:
        metrics = read_object(_metrics_file(checkpoints, step), checked=False)
    except DamagedFile:
        return None
    return metrics if all(type(value) in (int, float) for value in metrics.values()) else None


def rank(metrics: Mapping[str, float], best_metric: BestMetric) -> float:
    """Returns a number that is the larger the better the metrics are.

    A value that is not a number is the worst.
    """
    name, larger_is_better = best_metric
    value = metrics[name] if larger_is_better else -metrics[name]
    return -math.inf if math.isnan(value) else value


def ranked(metrics: Mapping[int, Mapping[str, float]], best_metric: BestMetric | None) -> list[int]:
    """Returns the steps that have the metric, the best first; of equals the newest.

    Args:
        metrics: of each step.
        best_metric: None if nothing ranks them.
    """
    if best_metric is None:
        return []
    known = [step for step in metrics if best_metric[0] in metrics[step]]
    return sorted(known, key=lambda step: (rank(metrics[step], best_metric), step), reverse=True)


def size(checkpoints: pathlib.Path, step: int) -> int:
    """Returns how many bytes the files of a checkpoint take.

    One that is being removed has fewer and fewer.
    """
    total = 0
    for path in (checkpoints / str(step)).rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def record(checkpoints: pathlib.Path, step: int) -> None:
    """Writes the checksums of a new checkpoint, and removes those that have no checkpoint now."""
    folder = checkpoints / str(step)
    if folder.is_dir():
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        entries = {
            path.relative_to(folder).as_posix(): {
                "size": path.stat().st_size,
                "sha256": _hash(path),
            }
            for path in files
        }
        target = _list_file(checkpoints, step)
        target.parent.mkdir(exist_ok=True)
        replace_file(target, json.dumps({"step": step, "files": entries}, indent=1) + "\n")
    forget(checkpoints)


def forget(checkpoints: pathlib.Path, step: int | None = None) -> None:
    """Removes the checksums of a step, and of checkpoints that are gone: a step may be saved
    again, with other bytes.
    """
    known = set(steps(checkpoints)) - {step}
    for path in checkpoints.with_name("checksums").glob("*.json"):
        if path.stem.isdecimal() and int(path.stem) not in known:
            path.unlink(missing_ok=True)


def examine(checkpoints: pathlib.Path, step: int, *, thorough: bool) -> Verdict:
    """Compares a checkpoint with its checksums.

    Args:
        thorough: whether to hash all files; otherwise large ones only have to be there and have the
            right size.
    """
    try:
        entries = read_object(_list_file(checkpoints, step), checked=False)["files"].items()
        expected = [
            (str(name), int(entry["size"]), str(entry["sha256"])) for name, entry in entries
        ]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        # A list that cannot be read says nothing about the checkpoint.
        if _metrics_file(checkpoints, step).exists() and read_metrics(checkpoints, step) is None:
            return Verdict("damaged", "metrics/metrics cannot be read")
        return _without_list(checkpoints / str(step))
    for known, length, sha256 in expected:
        path, name = checkpoints / str(step) / known, printable(known)
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                return Verdict("damaged", f"{name} is no regular file")
            if status.st_size != length:
                return Verdict("damaged", f"{name} has {status.st_size} bytes instead of {length}")
            if (thorough or length < _SMALL) and _hash(path) != sha256:
                return Verdict("damaged", f"{name} has other content than was saved")
        except FileNotFoundError:
            return Verdict("damaged", f"{name} is missing")
        except (OSError, ValueError) as error:  # a name that no file can have
            return Verdict(
                "damaged",
                f"{name} cannot be read"
                f" ({error.strerror if isinstance(error, OSError) else error})",
            )
    return Verdict("whole")


def _without_list(folder: pathlib.Path) -> Verdict:
    """Examines a checkpoint without checksums for files that cannot be read: a pipe never ends."""
    for path in folder.rglob("*"):
        if not path.is_file() and not path.is_dir() and path.exists():
            return Verdict(
                "damaged", f"{printable(str(path.relative_to(folder)))} is no regular file"
            )
    return Verdict("unverified")


def find_damaged(checkpoints: pathlib.Path) -> dict[int, str]:
    """Returns the problems of the damaged checkpoints that a resumed run must not meet, by step.

    From the newest down to the first that can be used, checkpoints are hashed; the problems of
    older ones are those that show without reading them whole.
    """
    damaged: dict[int, str] = {}
    found = False
    for step in reversed(steps(checkpoints)):
        verdict = examine(checkpoints, step, thorough=not found)
        found = found or verdict.usable
        if not verdict.usable:
            damaged[step] = verdict.problem
    return damaged


def vanishes(checkpoints: pathlib.Path, step: int) -> bool:
    """Whether a checkpoint that lacks files is only being removed, by the run that goes on.

    Waits until it is gone, if it goes.
    """
    live = lock.is_held(checkpoints.with_name("writer.lock"))
    deadline = time.monotonic() + (_LIVE_SECONDS if live else _ENDED_SECONDS)
    while (checkpoints / str(step)).exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def set_aside(checkpoints: pathlib.Path, step: int) -> pathlib.Path:
    """Moves a checkpoint out of the way and returns where it is now.

    Raises:
        ConfigError: if it cannot be moved.
    """
    target = write.set_aside(checkpoints / str(step), checkpoints.with_name(DAMAGED))
    forget(checkpoints, step)
    return target


def reason_text(error: Exception) -> str:
    """Says in a few words why files could not be read or written.

    TensorStore's messages are long, and name the system's error somewhere within.
    """
    # Orbax's own, over metadata that it cannot read.
    if isinstance(error, AttributeError | LookupError | TypeError):
        return "its metadata are damaged"
    text = " ".join(str(error).split())
    known = [os.strerror(number) for number in _SYSTEM_ERRORS if os.strerror(number) in text]
    return known[0] if known else text[:200] or type(error).__name__


def _metrics_file(checkpoints: pathlib.Path, step: int) -> pathlib.Path:
    return checkpoints / str(step) / "metrics" / "metrics"  # as Orbax has it


def _list_file(checkpoints: pathlib.Path, step: int) -> pathlib.Path:
    return checkpoints.with_name("checksums") / f"{step}.json"


def _hash(path: pathlib.Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
