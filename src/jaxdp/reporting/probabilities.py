"""Writes the probabilities of the classes at each pixel of an image, from top to bottom: they are never held as a whole."""

import os
import pathlib
from collections.abc import Sequence
from typing import Literal

import numpy as np
import tifffile
from jaxtyping import Float32

from jaxdp.run_files import fresh_name

ProbabilityFormat = Literal["npy", "tiff"]
_IMAGEJ_BYTES = 2**32 - 2**25  # what fits a TIFF file with 32-bit offsets; ImageJ's own kind knows no others


class ProbabilityFile:
    """A file of float32 probabilities, which appears under its name when it is whole.

    `npy` is an array (height, width, classes). `tiff` has a channel for each class, with its name: ImageJ's kind of TIFF, or
    OME-TIFF where that is too large for it.

    Args:
        path: without a suffix.
        size: height and width.
    """

    def __init__(self, path: pathlib.Path, kind: ProbabilityFormat, size: tuple[int, int], class_names: Sequence[str]) -> None:
        self.path = path.with_name(path.name + (".npy" if kind == "npy" else ".tif"))
        self._beside = fresh_name(self.path)
        self._kind, self._size, self._classes, self._row = kind, size, len(class_names), 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "npy":
            self._file = self._beside.open("xb")
            header = {"descr": "<f4", "fortran_order": False, "shape": (*size, self._classes)}
            np.lib.format.write_array_header_1_0(self._file, header)
        else:
            self._start = self._reserve(list(class_names))
            self._file = self._beside.open("r+b")

    def _reserve(self, class_names: list[str]) -> int:
        """Writes the headers of a TIFF file, and returns where its pixels begin; one channel follows the other without a gap."""
        if 4 * self._classes * self._size[0] * self._size[1] < _IMAGEJ_BYTES:
            form = {"imagej": True, "metadata": {"axes": "CYX", "Labels": class_names}}
        else:
            form = {"ome": True, "bigtiff": True, "metadata": {"axes": "CYX", "Channel": {"Name": class_names}}}
        shape = (self._classes, *self._size)
        place = tifffile.imwrite(
            self._beside, shape=shape, dtype="float32", byteorder="<", photometric="minisblack", returnoffset=True, **form
        )
        assert place is not None
        return place[0]

    def write(self, strip: Float32[np.ndarray, "rows width classes"]) -> None:
        """Writes the next rows."""
        if self._kind == "npy":
            self._file.write(np.ascontiguousarray(strip, "<f4").data)
        else:
            height, width = self._size
            for number in range(self._classes):
                self._file.seek(self._start + 4 * width * (height * number + self._row))
                self._file.write(np.ascontiguousarray(strip[..., number], "<f4").data)
        self._row += len(strip)

    def close(self) -> str:
        """Gives the file its name, and returns that."""
        assert self._row == self._size[0], f"{self._row} of {self._size[0]} rows"
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._beside.replace(self.path)
        return str(self.path)
