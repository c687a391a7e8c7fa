"""Finds the checkpoints on disk, ranks them, and tells whether each still is what was saved.

A list of a checkpoint's files with their SHA-256 stands beside it, and is compared.

    RUN_DIR/checkpoints/STEP/       as Orbax wrote it
    RUN_DIR/checksums/STEP.json     written once the save is complete
    RUN_DIR/damaged/STEP/           where a run that continues puts what is damaged, so that the step can be saved again

Nothing here needs JAX.
"""

import dataclasses
import errno
import hashlib
import json
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Literal

from jaxdp.run_directory import replace_file

# Files below this are hashed in every examination: they hold names, places and metrics, and take no time.
_SMALL = 64 * 1024
_BLOCK = 1024 * 1024
_SYSTEM_ERRORS = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOENT,
)  # fmt: skip

BestMetric = tuple[str, bool]  # name of the metric that ranks checkpoints, and whether larger is better


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of examining a checkpoint.

    Attributes:
        state: "unverified" where no checksums were written: the run was killed right after the save, or is older than they are.
        problem: the file and what is wrong with it; empty unless damaged.
    """

    state: Literal["whole", "damaged", "unverified"]
    problem: str = ""

    @property
    def usable(self) -> bool:
        return self.state != "damaged"


def steps(checkpoints: pathlib.Path) -> list[int]:
    """Returns the steps of complete saves, ascending; what a killed save leaves has another name."""
    if not checkpoints.is_dir():
        return []
    names = [path.name for path in checkpoints.iterdir() if path.name.isdecimal() and path.is_dir()]
    return sorted(int(name) for name in names if name == str(int(name)))  # 0006 is not 6


def read_metrics(checkpoints: pathlib.Path, step: int) -> dict[str, float] | None:
    """Returns the test metrics that were saved with a checkpoint, if there were any and they can be read."""
    try:
        metrics = json.loads((checkpoints / str(step) / "metrics" / "metrics").read_text())
    except (OSError, ValueError):
        return None
    return metrics if isinstance(metrics, dict) else None


def rank(metrics: Mapping[str, float], best_metric: BestMetric) -> float:
    """Returns a number that is the larger the better the metrics are; what is not a number is the worst."""
    name, larger_is_better = best_metric
    value = metrics[name] if larger_is_better else -metrics[name]
    return -math.inf if math.isnan(value) else value


def ranked(metrics: Mapping[int, Mapping[str, float]], best_metric: BestMetric) -> list[int]:
    """Returns steps by their validation metrics, the best first; of equals the newest.

    Args:
        metrics: those of each step.
    """
    return sorted(metrics, key=lambda step: (rank(metrics[step], best_metric), step), reverse=True)


def size(checkpoints: pathlib.Path, step: int) -> int:
    """Returns how many bytes the files of a checkpoint take."""
    return sum(path.stat().st_size for path in (checkpoints / str(step)).rglob("*") if path.is_file())


def record(checkpoints: pathlib.Path, step: int) -> None:
    """Writes the checksums of a checkpoint that was just saved, and removes those of checkpoints that are gone."""
    folder = checkpoints / str(step)
    if folder.is_dir():
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        entries = {path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": _hash(path)} for path in files}
        target = _list_file(checkpoints, step)
        target.parent.mkdir(exist_ok=True)
        replace_file(target, json.dumps({"step": step, "files": entries}, indent=1) + "\n")
    forget(checkpoints)


def forget(checkpoints: pathlib.Path, step: int | None = None) -> None:
    """Removes the checksums of a step, and those of checkpoints that are gone: a step may be saved again, with other bytes."""
    known = set(steps(checkpoints)) - {step}
    for path in checkpoints.with_name("checksums").glob("*.json"):
        if path.stem.isdecimal() and int(path.stem) not in known:
            path.unlink(missing_ok=True)


def examine(checkpoints: pathlib.Path, step: int, *, thorough: bool) -> Verdict:
    """Compares a checkpoint with its checksums.

    Args:
        thorough: whether to hash all files; otherwise large ones only have to be there and have the right size.
    """
    try:
        entries = json.loads(_list_file(checkpoints, step).read_text())["files"].items()
        expected = [(str(name), int(entry["size"]), str(entry["sha256"])) for name, entry in entries]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Verdict("unverified")  # a list that cannot be read says nothing about the checkpoint
    for name, length, sha256 in expected:
        path = checkpoints / str(step) / name
        try:
            found = path.stat().st_size
            if found != length:
                return Verdict("damaged", f"{name} has {found} bytes instead of {length}")
            if (thorough or length < _SMALL) and _hash(path) != sha256:
                return Verdict("damaged", f"{name} has other content than was saved")
        except FileNotFoundError:
            return Verdict("damaged", f"{name} is missing")
        except OSError as error:
            return Verdict("damaged", f"{name} cannot be read ({error.strerror})")
    return Verdict("whole")


def find_damaged(checkpoints: pathlib.Path) -> dict[int, str]:
    """Returns the problems of the damaged checkpoints that a resumed run must not meet, by step.

    From the newest down to the first that can be used, checkpoints are hashed; the problems of older ones are those that show
    without reading them whole.
    """
    damaged: dict[int, str] = {}
    found = False
    for step in reversed(steps(checkpoints)):
        verdict = examine(checkpoints, step, thorough=not found)
        found = found or verdict.usable
        if not verdict.usable:
            damaged[step] = verdict.problem
    return damaged


def set_aside(checkpoints: pathlib.Path, step: int) -> pathlib.Path:
    """Moves a checkpoint out of the way and returns where it is now."""
    target = checkpoints.with_name("damaged") / str(step)
    target.parent.mkdir(exist_ok=True)
    number = 2
    while target.exists():
        target, number = target.with_name(f"{step}-{number}"), number + 1
    (checkpoints / str(step)).rename(target)
    forget(checkpoints, step)
    return target


def reason_text(error: Exception) -> str:
    """Says in a few words why files could not be read or written.

    TensorStore's messages are long, and name the system's error somewhere within.
    """
    text = " ".join(str(error).split())
    known = [os.strerror(number) for number in _SYSTEM_ERRORS if os.strerror(number) in text]
    return known[0] if known else text[:200] or type(error).__name__


def _list_file(checkpoints: pathlib.Path, step: int) -> pathlib.Path:
    return checkpoints.with_name("checksums") / f"{step}.json"


def _hash(path: pathlib.Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
