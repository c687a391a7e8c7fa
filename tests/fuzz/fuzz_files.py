"""Random files: pictures, arrays and weights, and what is wrong with them."""

import dataclasses
import io
import json
import pathlib
import struct
import zipfile

import jax.numpy as jnp
import numpy as np
import tifffile
from fuzz_damage import blobs, plain_values, shares
from hypothesis import strategies as st
from PIL import Image


def edited(content: bytes, edits: tuple[tuple[float, bytes], ...], cut: float, span: int) -> bytes:
    """Returns the content with edits in its first `span` bytes, and only a share `cut` of it."""
    found = bytearray(content)
    for where, data in edits:
        place = int(where * span)
        found[place : place + len(data)] = data
    return bytes(found[: int(cut * len(found))])


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
        content = self._whole()
        return edited(content, self.edits, self.cut, min(len(content), 100 if self.head else 2**62))

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
        content = file.getvalue()
        return edited(content, self.edits, self.cut, len(content))


_FIELDS = (
    "images labels masks targets class_names train_images train_labels test_images "
    "test_labels val_images val_labels x_train y_train x_test y_test train_masks test_masks"
).split()
_dtypes = st.sampled_from(("|u1 |u1 |u1 <i8 <u2 <f4 <f8 <c8 |S3 <U2 |O |b1 <M8[s] |V4 >i4").split())
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
