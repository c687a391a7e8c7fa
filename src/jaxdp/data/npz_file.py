"""Reads npz files of others: what an array would take in memory is known before it is read, and
nothing is unpickled.
"""

import contextlib
import math
import os
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxdp.free_memory import check_memory
from jaxdp.units import bytes_text

_HEADERS: Any = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class NpzFile:
    """An npz file that is open; each array is read when it is asked for.

    Attributes:
        names: of the arrays.

    Raises:
        ValueError: if it is none.
        OSError: if it cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # Np.load would take other things for an array, or for a pickle.
        if not zipfile.is_zipfile(path):
            raise ValueError("it is not an npz file")
        try:
            self._file: Any = np.load(path, allow_pickle=False)
        except zipfile.BadZipFile as error:
            raise ValueError(str(error)) from error
        self.names: list[str] = list(self._file)

    def __enter__(self) -> "NpzFile":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def bytes_of(self, name: str) -> int:
        """Returns how many bytes an array takes, by its header.

        Raises:
            ValueError: if the file holds less than that, or is damaged.
        """
        with _one_line():
            member = name if name in self._file.zip.namelist() else name + ".npy"
            held = self._file.zip.getinfo(member).file_size
            with self._file.zip.open(member) as content:
                read = _HEADERS.get(np.lib.format.read_magic(content))
                if read is None:  # of names in other alphabets
                    return held
                shape, _, dtype = read(content)
            wanted = math.prod(shape) * dtype.itemsize
            if wanted > held and not dtype.hasobject:
                raise ValueError(
                    f"it is cut short: {bytes_text(held)} instead of {bytes_text(wanted)}"
                )
            return wanted

    def read(self, name: str) -> np.ndarray:
        """Returns an array.

        Raises:
            ValueError: if it cannot be read, would take more memory than there is, or holds Python
                objects, which can run programs.
        """
        with _one_line():
            check_memory(self.bytes_of(name))
            return self._file[name]


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    """Makes whatever zipfile and NumPy raise for a damaged archive a ValueError of one line."""
    try:
        yield
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
        if "allow_pickle" in said:
            said = "it holds Python objects, which are not read, since they can run programs"
        raise ValueError(said) from error
