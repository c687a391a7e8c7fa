"""Damage to the files of a run folder."""

import contextlib
import dataclasses
import itertools
import json
import operator
import os
import pathlib
import re
import shutil
from typing import Any

import yaml
from hypothesis import strategies as st

# Python takes minutes for the first, or refuses to read or to print them.
_NUMBERS = (
    "1:" * 400_000 + "1", "1:1:1.5", "-1:30", "9" * 5000, "0x" + "f" * 5000, "-0x" + "f" * 900,
    "0b" + "1" * 5000, "0" + "7" * 5000, "1_" * 3000 + "1", "1e5000",
)  # fmt: skip
# They command a terminal, or are formulas to a spreadsheet.
_ODD_TEXTS = ("\x1b[31m", "\x9b31m", "\x1b]0;title\x07", "\u202e", "\r\n", "=1+1", "@", "+", "-a")
_OF_ONE_FILE = {"number": "config.yaml", "texts": "dataset.json"}
LINKS = ("mine", "theirs", "nothing", "endless", "prepared")
OUTSIDE = "outside"  # a folder beside that of the run, of which nothing may change
SPARSE_BYTES = 2**36  # that a file claims to have, of which there is nothing on the disk
_NAMES = (
    "task mean metrics steps step split status model model_kwargs image_shape class_names examples"
).split()

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.sampled_from([2**31, -(2**63), 2**64, 10**30, 10**400]),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["digits", "cnn", "done", "classification", "1e-3", "*", "~", "group:4"]),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(_NAMES) | st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
texts = st.one_of(
    values.map(json.dumps),
    values.map(lambda value: yaml.safe_dump(json.loads(json.dumps(value)))),
    st.text(max_size=60),
    st.sampled_from(
        [
            "[" * 5000,
            "{" * 40,
            "a: &a [*a]",
            "&a a: *b",
            "!!python/name:os.system",
            "- " * 3000,
            "{}",
            "null",
            "NaN",
            "\ufeff{}",
            "seed: " + "1:" * 10**6 + "1",
            "seed: !!int " + "1:" * 10**5 + "1",
            "seed: 0x" + "f" * 5000,
            "seed: 1:30",
            "steps: 1:30:00.5",
        ]
    ),
)
blobs = st.one_of(
    texts.map(lambda text: text.encode(errors="surrogatepass")),
    st.binary(max_size=64),
    st.just(b"\0" * 4096),
)


@dataclasses.dataclass(frozen=True)
class Damage:
    """What becomes of one file of a folder.

    Attributes:
        which: the file, as a share of their sorted list.
        kind: flip, cut, replace, change, delete, folder, empty, link, loop, pipe, sparse or insert.
            parent removes the file's folder. number and texts change a value in the settings and
            the names of the classes. Links out of the folder take the place of a file or folder at
            its top: mine (to a file), theirs (to a folder), nothing (to where a file would be
            made), endless, and prepared, which has the name that version 0.2 wrote to first.
        where: position in the file, as a share.
        content: what it has then, or what is added.
        name: a field that a JSON or YAML file has changed, as a share of all.
    """

    which: float
    kind: str
    where: float
    content: bytes
    value: Any

    def apply(self, folder: pathlib.Path) -> str:
        """Does it, and returns to which file."""
        name = _OF_ONE_FILE.get(self.kind, "*")
        found = folder.iterdir() if self.kind in LINKS else folder.rglob(name)
        found = (
            path
            for path in found
            if not path.is_symlink() and (path.is_file() or self.kind in LINKS)
        )
        files = sorted(found)
        if not files:
            return ""
        path = files[int(self.which * len(files))]
        if self.kind in LINKS:
            return _link_out(folder, path, self.kind)
        content = path.read_bytes() if path.stat().st_size < 2**24 else b""
        place = int(self.where * len(content))
        if self.kind == "flip" and content:
            place = min(place, len(content) - 1)
            content = (
                content[:place]
                + bytes([content[place] ^ (1 << (len(self.content) % 8))])
                + content[place + 1 :]
            )
            path.write_bytes(content)
        elif self.kind == "cut":
            path.write_bytes(content[:place])
        elif self.kind == "replace":
            path.write_bytes(self.content)
        elif self.kind == "change":
            path.write_bytes(_changed(path, content, self.where, self.value))
        elif self.kind == "insert":
            path.write_bytes(content[:place] + self.content + content[place:])
        elif self.kind == "number":
            number = _NUMBERS[len(self.content) % len(_NUMBERS)]
            path.write_bytes(_numbered(content, self.where, number))
        elif self.kind == "texts":
            path.write_bytes(_with_odd_texts(content, len(self.content)))
        elif self.kind == "sparse":
            os.truncate(path, SPARSE_BYTES)
        else:
            path.unlink()
            if self.kind == "folder":
                path.mkdir()
            elif self.kind == "empty":
                path.touch()
            elif self.kind == "link":
                path.symlink_to("nowhere")
            elif self.kind == "loop":
                path.symlink_to(path.name)
            elif self.kind == "pipe":
                os.mkfifo(path)
            elif self.kind == "parent":
                shutil.rmtree(path.parent) if path.parent != folder else None
        return str(path.relative_to(folder))


def _link_out(folder: pathlib.Path, path: pathlib.Path, kind: str) -> str:
    outside = folder.parent / OUTSIDE
    if kind == "prepared":
        with contextlib.suppress(FileExistsError):
            path.with_name(path.name + ".new").symlink_to(outside / "mine")
    else:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        path.symlink_to(outside / kind)
    return str(path.relative_to(folder))


def _changed(path: pathlib.Path, content: bytes, where: float, value: Any) -> bytes:
    """Returns the content of a JSON or YAML file with one value of it replaced."""
    try:
        lines = content.decode().splitlines() if path.suffix == ".jsonl" else [content.decode()]
        number = int(where * len(lines))
        read = yaml.safe_load if path.suffix == ".yaml" else json.loads
        found = read(lines[number])
        target = found
        while isinstance(target, dict) and target:
            key = sorted(map(str, target))[int(where * 7919) % len(target)]
            inner = target.get(key)
            if not isinstance(inner, dict) or not inner or where > 0.5:
                target[key] = value
                break
            target = inner
        lines[number] = yaml.safe_dump(found) if path.suffix == ".yaml" else json.dumps(found)
        return "\n".join(lines).encode(errors="surrogatepass") + b"\n"
    except (ValueError, IndexError, yaml.YAMLError, UnicodeError):
        return content


def _numbered(content: bytes, where: float, number: str) -> bytes:
    """Returns the text of a YAML file with one of its values replaced by a number."""
    values = list(re.finditer(rb"(?<=: )\S+", content))
    if not values:
        return content
    start, end = values[int(where * len(values))].span()
    return content[:start] + number.encode() + content[end:]


def _with_odd_texts(content: bytes, first: int) -> bytes:
    """Returns the content of dataset.json with other names of classes."""
    try:
        found = json.loads(content)
        odd = itertools.islice(itertools.cycle(_ODD_TEXTS), first, None)
        names = list(map(operator.add, odd, found["class_names"]))
        return json.dumps(found | {"class_names": names}).encode()
    except (ValueError, LookupError, TypeError):  # it was damaged before
        return content


_KINDS = [
    *"number texts flip cut replace change change insert delete folder".split(),
    *"empty link loop pipe sparse parent".split(),
    *LINKS,
]
plain_values = values.map(lambda value: json.loads(json.dumps(value)))
shares = st.integers(0, 9999).map(lambda number: number / 10000)
damages = st.builds(Damage, shares, st.sampled_from(_KINDS), shares, blobs, plain_values)
