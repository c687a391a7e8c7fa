"""Random contents of files, and what may befall those that are there."""

# Over 300 lines: five formats of files, each with its own ways to be wrong.

import contextlib
import dataclasses
import io
import itertools
import json
import operator
import os
import pathlib
import re
import shutil
import struct
import zipfile
from typing import Any

import jax.numpy as jnp
import numpy as np
import tifffile
import yaml
from hypothesis import strategies as st
from PIL import Image

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
    "task",
    "mean",
    "metrics",
    "steps",
    "step",
    "split",
    "status",
    "model",
    "model_kwargs",
    "image_shape",
    "class_names",
    "examples",
)

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
            "profile: 1:30",
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


_KINDS = (
    "number",
    "texts",
    "flip",
    "cut",
    "replace",
    "change",
    "change",
    "insert",
    "delete",
    "folder",
    "empty",
    "link",
    "loop",
    "pipe",
    "sparse",
    "parent",
    *LINKS,
)
plain_values = values.map(lambda value: json.loads(json.dumps(value)))
shares = st.integers(0, 9999).map(lambda number: number / 10000)
damages = st.builds(Damage, shares, st.sampled_from(_KINDS), shares, blobs, plain_values)


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture, and what is wrong with it.

    Attributes:
        kind: the format, as Pillow calls it, or TIFF options.
        mode: of Pillow.
        edits: (share of the place, bytes written there).
        cut: share of the bytes that are left.
        head: whether edits land in the first 100 bytes, where sizes are.
    """

    kind: str
    mode: str
    size: tuple[int, int]
    edits: tuple[tuple[float, bytes], ...]
    cut: float
    head: bool

    def content(self) -> bytes:
        content = bytearray(self._whole())
        span = min(len(content), 100) if self.head else len(content)
        for where, data in self.edits:
            place = int(where * span)
            content[place : place + len(data)] = data
        return bytes(content[: int(self.cut * len(content))] if self.cut < 1 else content)

    def _whole(self) -> bytes:
        file = io.BytesIO()
        height, width = self.size
        pixels = np.random.default_rng(height * 99 + width).integers(
            0, 256, (height, width, 4), np.uint8
        )
        if self.kind.startswith("tiff"):
            shape = {
                "tiff": pixels[..., 0],
                "tiff-stack": np.moveaxis(pixels, 2, 0),
                "tiff-float": pixels[..., 0].astype(np.float32) / 7,
                "tiff-16": pixels[..., :3].astype(np.uint16) * 200,
                "tiff-imagej": np.moveaxis(pixels, 2, 0),
                "tiff-ome": pixels[..., :3],
            }[self.kind]
            tifffile.imwrite(
                file, shape, imagej=self.kind == "tiff-imagej", ome=self.kind == "tiff-ome"
            )
            return file.getvalue()
        image = Image.fromarray(pixels, "RGBA").convert(self.mode)
        try:
            image.save(file, self.kind)
        except (OSError, ValueError):  # a mode that the format does not have
            image.convert("RGB").save(file, self.kind)
        return file.getvalue()


_SUFFIXES = {
    "PNG": ".png",
    "JPEG": ".jpg",
    "GIF": ".gif",
    "BMP": ".bmp",
    "WEBP": ".webp",
    "PPM": ".ppm",
    "TIFF": ".tif",
}
_LARGE = [
    struct.pack(order + kind, number)
    for order in "<>"
    for kind, numbers in (("I", (0, 1, 2**16, 2**31 - 1, 2**32 - 1)), ("H", (0, 65535)))
    for number in numbers
]
_edits = st.lists(
    st.tuples(shares, st.sampled_from(_LARGE) | st.binary(min_size=1, max_size=4)), max_size=3
).map(tuple)
_kinds = st.sampled_from(
    [*_SUFFIXES, "tiff", "tiff-stack", "tiff-float", "tiff-16", "tiff-imagej", "tiff-ome"]
)
_sizes = st.tuples(st.sampled_from([1, 2, 7, 8, 8, 8, 33]), st.sampled_from([1, 8, 8, 8, 65]))
pictures = st.builds(
    Picture,
    _kinds,
    st.sampled_from(["L", "L", "RGB", "RGBA", "P", "1", "LA", "CMYK", "I", "F", "I;16"]),
    _sizes,
    _edits,
    st.sampled_from([1.0, 1.0, 0.99, 0.5, 0.1]),
    st.booleans(),
)


def suffix_of(picture: Picture) -> str:
    return _SUFFIXES.get(picture.kind, ".tif")


picture_files = st.one_of(
    pictures.map(lambda picture: (suffix_of(picture), picture.content())),
    st.tuples(
        st.sampled_from(sorted(set(_SUFFIXES.values()))), pictures.map(Picture.content) | blobs
    ),
)


@dataclasses.dataclass(frozen=True)
class Archive:
    """An npz file: what arrays it has, what their headers claim, and what befell the file.

    Attributes:
        arrays: name, shape, dtype, and the header's text in place of the right one, nothing for
            that.
        edits: as of a picture, in the whole file.
    """

    arrays: tuple[tuple[str, tuple[int, ...], str, str], ...]
    edits: tuple[tuple[float, bytes], ...]
    cut: float
    compressed: bool

    def content(self) -> bytes:
        file = io.BytesIO()
        kind = zipfile.ZIP_DEFLATED if self.compressed else zipfile.ZIP_STORED
        with zipfile.ZipFile(file, "w", kind) as target:
            for number, (name, shape, dtype, header) in enumerate(self.arrays):
                member = io.BytesIO()
                rng = np.random.default_rng(number)
                content = (
                    rng.integers(0, 3, shape)
                    if "labels" in name or "masks" in name
                    else rng.integers(0, 256, shape)
                )
                with np.errstate(all="ignore"):
                    np.lib.format.write_array(member, content.astype(dtype), allow_pickle=True)
                data = member.getvalue()
                if header:
                    text = (header + "\n").encode("latin1", errors="replace")
                    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data[128:]
                target.writestr(f"{name}.npy", data)
        found = bytearray(file.getvalue())
        for where, data in self.edits:
            place = int(where * len(found))
            found[place : place + len(data)] = data
        return bytes(found[: int(self.cut * len(found))] if self.cut < 1 else found)


_FIELDS = [
    "images",
    "labels",
    "masks",
    "targets",
    "class_names",
    "train_images",
    "train_labels",
    "test_images",
    "test_labels",
    "val_images",
    "val_labels",
    "x_train",
    "y_train",
    "x_test",
    "y_test",
    "train_masks",
    "test_masks",
]
_dtypes = st.sampled_from(
    [
        "|u1",
        "|u1",
        "|u1",
        "<i8",
        "<u2",
        "<f4",
        "<f8",
        "<c8",
        "|S3",
        "<U2",
        "|O",
        "|b1",
        "<M8[s]",
        "|V4",
        ">i4",
    ]
)
_shapes = st.one_of(
    st.just((40, 8, 8)),
    st.just((40, 8, 8, 3)),
    st.just((40,)),
    st.just((20, 8, 8)),
    st.just((20,)),
    st.lists(st.sampled_from([0, 1, 2, 8, 40]), max_size=5).map(tuple),
)
_headers = st.sampled_from(
    [
        "",
        "",
        "",
        "",
        "",
        "",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1099511627776, 256, 256, 1)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 8, 8)}",
        "{'descr': '|u1', 'fortran_order': True, 'shape': (40, 8, 8)}",
        "{'descr': [('a', '|u1')], 'fortran_order': False, 'shape': (3,)}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (3,)}",
        "{'descr': '|u1', 'shape': (3,)}",
        "[" * 200,
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2.5,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999999999999, 0)}",
    ]
)
_member = st.tuples(
    st.sampled_from(_FIELDS) | st.text("abé/. _", min_size=1, max_size=6),
    _shapes,
    _dtypes,
    _headers,
)
_pairs = st.sampled_from(
    [
        (("images", (40, 8, 8), "|u1", ""), ("labels", (40,), "<i8", "")),
        (("images", (40, 8, 8, 3), "<f4", ""), ("labels", (40,), "|u1", "")),
        (("images", (40, 8, 8), "<u2", ""), ("masks", (40, 8, 8), "|u1", "")),
        (
            ("train_images", (40, 8, 8), "|u1", ""),
            ("train_labels", (40,), "<i8", ""),
            ("test_images", (20, 8, 8), "|u1", ""),
            ("test_labels", (20,), "<i8", ""),
        ),
    ]
)
archives = st.builds(
    lambda base, more, edits, cut, compressed: Archive((*base, *more), edits, cut, compressed),
    _pairs | st.just(()),
    st.lists(_member, max_size=3),
    _edits,
    st.sampled_from([1.0, 1.0, 1.0, 0.9, 0.3]),
    st.booleans(),
)


@dataclasses.dataclass(frozen=True)
class Tensors:
    """A safetensors file whose header is not what its content is."""

    header: bytes
    length: int | None
    data: bytes

    def content(self) -> bytes:
        return (
            struct.pack("<Q", len(self.header) if self.length is None else self.length)
            + self.header
            + self.data
        )


_entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(
            ["F32", "F16", "BF16", "F64", "I64", "U8", "BOOL", "F8_E4M3", "X"]
        ),
        "shape": st.lists(st.sampled_from([0, 1, 2, 3, 2**40, -1]), max_size=3),
        "data_offsets": st.sampled_from([[0, 4], [0, 0], [4, 0], [0, 2**50], [8, 12], [0, 24]]),
    }
)
_names = st.sampled_from(
    [
        "head.kernel",
        "convs.0.kernel",
        "fc.weight",
        "",
        "a/b",
        "../x",
        "\n\x1b[31m",
        "layer1.0.bn1.num_batches_tracked",
    ]
)
tensors = st.builds(
    Tensors,
    (st.dictionaries(_names, _entries, max_size=3) | plain_values).map(
        lambda value: json.dumps(value).encode()
    ),
    st.sampled_from([None, None, None, 0, 3, 2**63, 2**32]),
    st.binary(max_size=32),
)

_SAFETENSORS = {
    "bool": "BOOL",
    "int8": "I8",
    "int32": "I32",
    "complex64": "C64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
_OF_BOTH, _OF_SAFETENSORS = ("float16", "float32", "float64"), ("bfloat16",)


@dataclasses.dataclass(frozen=True)
class Weights:
    """A file of weights in which one array has another dtype, and one of its numbers another value.

    Attributes:
        suffix: `.safetensors` or `.npz`.
        which: the array, as a share of all.
    """

    suffix: str
    which: float
    dtype: str
    value: float | None

    def changed(self, arrays: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], bool]:
        """Returns the arrays, and whether they are weights: finite floats, as float32 as well."""
        name = sorted(arrays)[int(self.which * len(arrays))]
        array = np.array(arrays[name], np.complex64 if self.dtype == "complex64" else np.float64)
        if self.value is not None:
            array.flat[0] = self.value
        with np.errstate(all="ignore"):
            array = array.astype(jnp.dtype(self.dtype))
            known = (*_OF_BOTH, *_OF_SAFETENSORS) if self.suffix == ".safetensors" else _OF_BOTH
            fits = self.dtype in known and bool(np.isfinite(array.astype(np.float32)).all())
        return arrays | {name: array}, fits

    def write(self, path: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
        if self.suffix == ".npz":
            np.savez(path, **arrays)  # pyright: ignore[reportArgumentType]
            return
        header, data = {"__metadata__": {"format": "jaxdp"}}, b""
        for name, array in arrays.items():
            content = array.tobytes()
            about = {"dtype": _SAFETENSORS[array.dtype.name], "shape": array.shape}
            header[name] = about | {"data_offsets": (len(data), len(data) + len(content))}
            data += content
        path.write_bytes(Tensors(json.dumps(header).encode(), None, data).content())


weights = st.builds(
    Weights,
    st.sampled_from([".safetensors", ".npz"]),
    shares,
    st.sampled_from(sorted(_SAFETENSORS)),
    st.sampled_from([None, None, 3.0, -0.0, 7e4, 1e30, 1e300, float("nan"), float("inf")]),
)
