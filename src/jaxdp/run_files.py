"""Reads and writes the files of a run: it knows what each is for, and what to do about one that is
damaged.

A file that cannot be read is a DamagedFile: one line with the file, its problem and the remedy. A
command that only reads a run changes nothing in its folder. Rows that cannot be read are never
dropped: a reader says how many there are, and the next writer keeps them in `damaged/`. Writing
never follows a link, which could lead out of the folder.
"""

# Over 300 lines: what each file is for stands beside how it is read.

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO, cast

from jaxdp.free_memory import check_memory
from jaxdp.parsing import is_finite, parse_json, printable
from jaxdp.registry import ConfigError

# Plain values by name: a line of metrics.jsonl, of a table, or that `--json` prints.
Row = dict[str, Any]
DAMAGED = "damaged"  # folder beside the files of a run
_MOST_PIXELS, _MOST_CLASSES = 2**20, 2**15  # of a side; of what a dataset tells
_warned: set[str] = set()  # what watches a run reads its files again and again


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    return is_finite(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _list_of(
    holds: Callable[[object], bool], length: int | None = None
) -> Callable[[object], bool]:
    def check(value: object) -> bool:
        return (
            isinstance(value, list)
            and length in (None, len(value))
            and all(map(holds, cast(list[object], value)))
        )

    return check


def _is_counts(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_count, cast(dict[str, object], value).values()))


def _not_digest(sources: Row) -> str:
    """Returns what is wrong in sources.json, nothing if it holds digests by name."""
    digest = re.compile("[0-9a-f]{64}")
    is_right = all(isinstance(each, str) and digest.fullmatch(each) for each in sources.values())
    return "" if is_right else "a digest"


def _mismatch(description: Row) -> str:
    """Returns a field of dataset.json that does not go with the others, nothing if all do: a model
    is made from them.
    """
    *sides, channels = description["image_shape"]
    low, high = description.get("pixel_range") or (0, 1)
    right = {
        "image_shape": (
            all(0 < each <= _MOST_PIXELS for each in sides) and 0 < channels <= _MOST_CLASSES
        ),
        "num_classes": 0 < description["num_classes"] <= _MOST_CLASSES,
        "mean": len(description["mean"]) == channels,
        "std": len(description["std"]) == channels and all(each > 0 for each in description["std"]),
        "class_names": len(description["class_names"]) in (0, description["num_classes"]),
        "kind": description.get("kind", "") in ("", "classification", "segmentation", "regression"),
        "pixel_range": low < high,
    }
    return next((name for name, goes in right.items() if not goes), "")


def _optional(holds: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or holds(value)


@dataclasses.dataclass(frozen=True)
class _Kind:
    """A kind of file.

    Attributes:
        purpose: what is in it, after "it has".
        remedy: what makes it again, or what to do instead.
        fields: what its object, or each of its rows, must have.
        optional: what these may have beside it.
        mismatch: returns a field that does not go with the others, if all are there.
    """

    purpose: str
    remedy: str
    fields: Mapping[str, Callable[[object], bool]] = dataclasses.field(
        default_factory=dict[str, Callable[[object], bool]]
    )
    optional: Mapping[str, Callable[[object], bool]] = dataclasses.field(
        default_factory=dict[str, Callable[[object], bool]]
    )
    mismatch: Callable[[Row], str] = lambda content: ""


_AGAIN = "the same training command writes it again"
_KINDS = {
    "config.yaml": _Kind(
        "the settings",
        "put a copy back, or move it away and give the training command with all its flags, which"
        " writes it again",
    ),
    "dataset.json": _Kind(
        "what the model knows of its dataset",
        _AGAIN,
        {
            "task": _is_text,
            "num_classes": _is_count,
            "image_shape": _list_of(_is_count, 3),
            "mean": _list_of(_is_number),
            "std": _list_of(_is_number),
            "class_names": _list_of(_is_text),
            "examples": _is_counts,
        },
        {
            "kind": _is_text,
            "dtype": lambda value: value in ("uint8", "uint16", "float32"),
            "pixel_range": _optional(_list_of(_is_number, 2)),
            "instances": lambda value: isinstance(value, bool),
            "fingerprint": _is_text,
        },
        _mismatch,
    ),
    "summary.json": _Kind(
        "the result",
        _AGAIN,
        {"status": _is_text, "steps": _is_count, "metrics": lambda value: isinstance(value, dict)},
        {
            "ended_early": lambda value: (
                isinstance(value, dict) and _is_count(cast(Row, value).get("total_steps"))
            )
        },
    ),
    "sources.json": _Kind("digests of the user's source files", _AGAIN, mismatch=_not_digest),
    "rollbacks.json": _Kind(
        "how often the run went back", "they are counted in history.jsonl", {"rollbacks": _is_count}
    ),
    "wandb-id.txt": _Kind("the name of the run at Weights & Biases", "another one is begun there"),
    "mlflow-id.txt": _Kind("the name of the run at MLflow", "another one is begun there"),
    "metrics.jsonl": _Kind(
        "the metrics", "keep a copy and move it away", {"step": _is_count, "split": _is_text}
    ),
    "history.jsonl": _Kind(
        "what became of the run",
        "keep a copy and move it away",
        {"step": _is_count, "event": _is_text},
    ),
}


class DamagedFile(ConfigError):
    """A file of a run that cannot be read.

    Args:
        path: of the file, in the folder of its run.
        problem: what is wrong with it.
    """

    def __init__(self, path: pathlib.Path, problem: str) -> None:
        self.path, self.problem = path, problem
        kind = _KINDS.get(path.name)
        about = f"; it has {kind.purpose}: {kind.remedy}" if kind is not None else ""
        super().__init__("run_dir", path.parent, f"{path.name} cannot be read ({problem}){about}")


def read_bytes(path: pathlib.Path) -> bytes:
    """Returns what a file holds.

    Raises:
        DamagedFile: if it cannot be read, is no regular file, which might never end, or would take
            more memory than is free.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise DamagedFile(path, "it is no regular file")
        check_memory(status.st_size)
        return path.read_bytes()
    except OSError as error:
        raise DamagedFile(path, error.strerror or str(error)) from error
    except DamagedFile:
        raise
    except ValueError as error:
        raise DamagedFile(path, str(error)) from error


def read_text(path: pathlib.Path) -> str:
    """Returns what a text file holds.

    Raises:
        DamagedFile: if it cannot be read, see `read_bytes`, or is no UTF-8.
    """
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise DamagedFile(path, f"byte {error.start} is no UTF-8") from error


def read_line(path: pathlib.Path) -> str:
    """Returns the line in a text file.

    Nothing where there is none, or none that can be read, which is a warning.
    """
    try:
        return read_text(path).strip() if path.exists() else ""
    except DamagedFile as error:
        warn(str(error))
        return ""


def read_object(path: pathlib.Path, *, checked: bool = True) -> dict[str, Any]:
    """Returns the object in a JSON file.

    Args:
        checked: whether it must have what a file of its name has; otherwise it may have anything.

    Raises:
        DamagedFile: if the file cannot be read, or holds something else.
    """
    try:
        content = parse_json(read_text(path))
    except DamagedFile:
        raise
    except ValueError as error:
        raise DamagedFile(path, str(error)) from error
    problem = _problem(content, _KINDS.get(path.name) if checked else None)
    if problem:
        raise DamagedFile(path, problem)
    return content


def read_rows(path: pathlib.Path, *, checked: bool = True) -> tuple[list[Row], int]:
    """Returns the rows of a file of one object a line, and how many lines cannot be read.

    None where there is no file.

    A last line that is cut short is no row yet, or never became one, and does not count.

    Args:
        checked: whether each must have what a row of this file has.

    Raises:
        DamagedFile: if the file cannot be read at all.
    """
    rows, _, lost, _ = _sorted_lines(path, checked=checked)
    return rows, len(lost)


def read_lines(path: pathlib.Path) -> list[Row]:
    """Returns the rows of a file, and warns of those that cannot be read."""
    rows, lost = read_rows(path)
    if lost:
        warn(
            f"{path}: {rows_count(lost)} cannot be read, and left out; the next start of the run"
            f" moves them to {DAMAGED}/"
        )
    return rows


def keep_readable(path: pathlib.Path, *, torn: bool) -> list[Row]:
    """Leaves the rows that can be read in a file, moves the others to `damaged/` with a warning,
    and returns the former.

    Args:
        torn: whether a last line that was cut short is moved, too; otherwise it is dropped, for a
            file whose last rows come again.
    """
    rows, kept, lost, last = _sorted_lines(path)
    lost = lost + [last] * bool(torn and last)
    if lost:
        aside = path.parent / DAMAGED / path.name
        aside.parent.mkdir(exist_ok=True)
        with open(aside, "ab", opener=no_link) as file:
            file.writelines(line + b"\n" for line in lost)
        warn(f"{path}: {rows_count(len(lost))} cannot be read, and moved to {aside}")
    content = b"".join(line + b"\n" for line in kept)
    if path.exists() and content != path.read_bytes():
        replace_file(path, content)
    return rows


def append_row(path: pathlib.Path, row: Mapping[str, Any]) -> None:
    """Adds a row to a file; what a kill cut short before it is moved to `damaged/`."""
    with open(path, "ab+", opener=no_link) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        cut_short = file.read(1) not in (b"", b"\n")
    if cut_short:
        keep_readable(path, torn=True)
    with open(path, "ab", opener=no_link) as file:
        file.write(rows_text([row]).encode())


def rows_count(count: int) -> str:
    """Returns e.g. `1 row` or `2 rows`."""
    return f"{count} row{'' if count == 1 else 's'}"


def rows_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Returns what a file of one object a line holds."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def warn(text: str) -> None:
    """Prints a warning on standard error, the same one once."""
    if text not in _warned:
        _warned.add(text)
        warn_again(text)


def warn_again(text: str) -> None:
    """Prints a warning on standard error, however often the same one was printed."""
    sys.stderr.write(f"warning: {printable(text)}\n")


def set_aside(path: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Moves a file or folder into another folder, under a name that is free there, and returns
    where it is now.

    Raises:
        ConfigError: if it cannot be moved.
    """
    target, number = folder / path.name, 2
    try:
        folder.mkdir(exist_ok=True)
        while target.exists():
            target, number = target.with_name(f"{path.name}-{number}"), number + 1
        shutil.move(path, target)  # also to another file system
    except OSError as error:
        remedy = (
            f"{path} is damaged and cannot be moved to {target} ({error.strerror or error}); move"
            " it away yourself"
        )
        raise ConfigError("run_dir", folder.parent, remedy) from error
    return target


def no_link(path: str, flags: int) -> int:
    """Opens a file as `open(..., opener=no_link)` needs it, and fails for a link, which could lead
    out of the folder.
    """
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[BinaryIO]:
    """Opens a new file that replaces another at the end of the block: at every instant the old or
    the new content is there.

    Where there is a link, the new file replaces the link, and its target stays.
    """
    # No link can wait under a name that cannot be foreseen.
    written = path.with_name(f".{secrets.token_hex(8)}.new")
    try:
        with written.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        written.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            written.unlink()
        # The name of the new file says nothing to a person.
        if isinstance(error, OSError) and error.filename:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def replace_file(path: pathlib.Path, content: str | bytes) -> None:
    """Writes a file as `replacing` does."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def _sorted_lines(
    path: pathlib.Path, *, checked: bool = True
) -> tuple[list[Row], list[bytes], list[bytes], bytes]:
    """Returns the rows of a file, their lines, those that cannot be read, and a last one that was
    cut short.
    """
    try:
        if not path.exists():
            return [], [], [], b""
    except OSError as error:
        raise DamagedFile(path, error.strerror or str(error)) from error
    lines = read_bytes(path).split(b"\n")
    kind = _KINDS.get(path.name) if checked else None
    rows, kept, lost = list[Row](), list[bytes](), list[bytes]()
    for line in lines:
        if not line.strip():
            continue
        try:
            row = parse_json(line.decode())
        except ValueError:  # no UTF-8, too
            row: Any = None
        if _problem(row, kind):
            lost.append(line)
        else:
            rows.append(row)
            kept.append(line)
    last = lost.pop() if lost and lost[-1] is lines[-1] else b""
    return rows, kept, lost, last


def _problem(content: object, kind: _Kind | None) -> str:
    """Returns what an object lacks that a file of this kind has, nothing if all is there."""
    if not isinstance(content, dict):
        return "it holds no object"
    if kind is None:
        return ""
    wrong = [
        name
        for name, holds in kind.fields.items()
        if name not in content or not holds(content[name])
    ]
    wrong += [
        name
        for name, holds in kind.optional.items()
        if name in content and not holds(content[name])
    ]
    wrong = wrong or list(filter(None, [kind.mismatch(cast(Row, content))]))
    return f"{wrong[0]} is missing in it, or no such value" if wrong else ""
