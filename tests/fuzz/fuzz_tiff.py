"""Random TIFF files of several pages, and what tifffile reads of each page."""

import dataclasses
import pathlib
from typing import Any

import numpy as np
import tifffile
from example_files import bad_example, refused
from hypothesis import strategies as st

from jaxdp.data.image_file import Picture, pages_of, read_header, read_image, read_mask

_OF_ANOTHER_PAGE = 0b101  # bits of NewSubfileType
_ALPHA = {"assocalpha": 1, "unassalpha": 2}


@dataclasses.dataclass(frozen=True)
class Pages:
    """Pages that are written at once.

    Attributes:
        count: how many.
        samples: 1, 2 (grey and one more), 3 (RGB) or 4.
        extra: what the last one of 2 or 4 samples is tagged as.
        white: whether 0 is tagged as white.
        few: whether there are only the ends of the type.
        mark: NewSubfileType.
        shaped: whether tifffile's metadata are written.
    """

    count: int
    size: tuple[int, int]
    dtype: str
    samples: int
    extra: str
    separate: bool
    white: bool
    few: bool
    mark: int
    shaped: bool
    compression: str | None
    tiled: bool

    @property
    def channels(self) -> int:
        """How many channels an image has."""
        return self.samples - (self.samples in (2, 4) and self.extra in _ALPHA)

    def pixels(self, seed: int) -> np.ndarray:
        """Returns (count, samples, height, width)."""
        rng, dtype = np.random.default_rng(seed), np.dtype(self.dtype)
        shape = (self.count, self.samples, *self.size)
        if self.few or dtype == np.bool_:
            most = np.iinfo(dtype).max if dtype.kind in "iu" else 1
            return (rng.integers(0, 2, shape) * most).astype(dtype)
        return rng.integers(0, 200, shape).astype(dtype)

    def write(self, writer: tifffile.TiffWriter, seed: int, software: str | None) -> None:
        pixels = self.pixels(seed)
        planar = "separate" if self.separate else "contig"
        options: dict[str, Any] = {"planarconfig": planar} if self.samples > 1 else {}
        if self.samples in (2, 4):
            options["extrasamples"] = [self.extra]
        grey = "miniswhite" if self.white and self.samples == 1 else "minisblack"
        pixels = pixels if self.separate else np.moveaxis(pixels, 1, -1)
        pixels = pixels[:, 0] if self.samples == 1 and self.separate else pixels
        pixels = pixels[..., 0] if self.samples == 1 and not self.separate else pixels
        writer.write(
            pixels[0] if self.count == 1 else pixels,
            photometric="rgb" if self.samples > 2 else grey,
            subfiletype=self.mark,
            metadata={} if self.shaped else None,
            software=software,
            compression=None if self.dtype == "bool" else self.compression,
            tile=(16, 16) if self.tiled and self.dtype != "bool" else None,
            **options,
        )


@dataclasses.dataclass(frozen=True)
class Stack:
    """A TIFF file.

    Attributes:
        named: whether the Software tag names tifffile.
    """

    parts: tuple[Pages, ...]
    named: bool
    bigtiff: bool
    byteorder: str

    def write(self, path: pathlib.Path) -> None:
        with tifffile.TiffWriter(path, bigtiff=self.bigtiff, byteorder=self.byteorder) as writer:  # type: ignore
            for seed, part in enumerate(self.parts):
                part.write(writer, seed, None if self.named else "")

    def check(self, path: pathlib.Path) -> None:
        """Raises AssertionError unless the file is read as its pages are."""
        pages = [part for part in self.parts for _ in range(part.count)]
        with tifffile.TiffFile(path) as file:
            assert len(file.pages) == len(pages)
            stored = [np.atleast_3d(page.asarray()) for page in file.pages]
        whole = [n for n, page in enumerate(pages) if not page.mark & _OF_ANOTHER_PAGE]
        whole = whole or list(range(len(pages)))
        # (H, W, C), whichever way the samples lie
        for number, page in enumerate(pages):
            if page.samples > 1 and page.separate:
                stored[number] = np.moveaxis(stored[number], 0, -1)
        found = pages_of(path, read_header(path), None)
        if len({pages[number].channels for number in whole}) > 1:
            assert len(found) == 1
            with bad_example("channels, unlike page"):
                read_image(found[0], path)
        else:
            assert len(found) == len(whole), (found, whole)
            for picture, number in zip(found, whole, strict=True):
                _check_image(picture, pages[number], stored[number])
        self._check_masks(path, [(pages[number], stored[number]) for number in whole])

    def _check_masks(self, path: pathlib.Path, pages: list[tuple[Pages, np.ndarray]]) -> None:
        if any(page.samples > 1 and not page.separate for page, _ in pages):
            return
        found = pages_of(path, read_header(path, "pages"), "pages")
        known = self.named or self.parts[0].shaped
        planes = [(page, plane) for page, stored in pages for plane in np.moveaxis(stored, -1, 0)]
        assert len(found) == len(planes), (found, len(planes))
        for picture, (page, plane) in zip(found, planes, strict=True):
            most = 1 if plane.dtype == np.bool_ else 2 ** (8 * plane.dtype.itemsize) - 1
            ends = plane.dtype.kind in "bui" and bool(np.isin(plane, [0, most]).all())
            if page.white and page.samples == 1 and not known and ends:
                with refused(f"--mask-values 0,{most} if 0"):
                    read_mask(picture, picture)
            else:
                mask = read_mask(picture, picture)
                assert mask.dtype == (np.uint8 if page.dtype == "bool" else page.dtype)
                assert (mask == plane).all()


def _check_image(picture: Picture, page: Pages, stored: np.ndarray) -> None:
    pixels, _ = read_image(picture, picture)
    wanted = stored.astype(np.float64) * (255 if stored.dtype == np.bool_ else 1)
    if page.channels < page.samples:
        alpha, wanted = wanted[..., -1:], wanted[..., :-1]
        if _ALPHA[page.extra] == 2:
            # bool is read as 0 and 255, int16 as float.
            most = {"bool": 255, "uint8": 255, "uint16": 65535}.get(page.dtype, 1)
            wanted = wanted * alpha / most
    assert pixels.shape == wanted.shape, (picture, page)
    exact = page.channels == page.samples
    np.testing.assert_allclose(pixels, wanted, atol=0 if exact else 1.01, rtol=0 if exact else 1e-5)


_parts = st.builds(
    Pages,
    count=st.sampled_from([1, 1, 1, 2, 3]),
    size=st.sampled_from([(32, 32), (32, 32), (16, 16), (8, 8), (32, 48), (7, 5)]),
    dtype=st.sampled_from(["uint8", "uint8", "uint16", "float32", "int16", "bool"]),
    samples=st.sampled_from([1, 1, 1, 1, 2, 3, 4]),
    extra=st.sampled_from(["unspecified", *_ALPHA]),
    separate=st.booleans(),
    white=st.booleans(),
    few=st.booleans(),
    mark=st.sampled_from([0, 0, 0, 1, 2]),
    shaped=st.booleans(),
    compression=st.sampled_from([None, None, "zlib", "lzw", "packbits"]),
    tiled=st.booleans(),
).map(lambda part: dataclasses.replace(part, separate=part.separate and part.samples > 1))
_alike = st.lists(_parts, min_size=1, max_size=5).map(
    lambda parts: [dataclasses.replace(part, samples=1, separate=False) for part in parts]
)
stacks = st.builds(
    Stack,
    (_alike | st.lists(_parts, min_size=1, max_size=3)).map(tuple),
    st.booleans(),
    st.booleans(),
    st.sampled_from("<>"),
)
