"""Reads untrusted npz files. Unpickles nothing, and refuses arrays that would take all memory."""

import contextlib
import os
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxdp.data.dataset import native
from jaxdp.runtime.free_memory import check_memory
from jaxdp.text.messages import one_line


def open_npz(path: str | os.PathLike[str]) -> Any:
    """Returns NumPy's view of a file; `read_array` reads an array of its `files`.

    Raises:
        ValueError: if it is not an npz file.
        OSError: if it cannot be read.
    """
    # np.load would read other files as an array, or as a pickle.
    if not zipfile.is_zipfile(path):
        raise ValueError("it is not an npz file")
    with _one_line(zipfile.BadZipFile):
        return np.load(path, allow_pickle=False)


def read_array(file: Any, name: str) -> np.ndarray:
    """Returns an array of a file, with the byte order of this machine.

    Raises:
        ValueError: if it cannot be read, would take more memory than is free, or holds Python
            objects, which can run programs.
    """
    with _one_line(Exception):
        member = name if name in file.zip.namelist() else name + ".npy"
        check_memory(file.zip.getinfo(member).file_size)
        return native(file[name])


@contextlib.contextmanager
def _one_line(kind: type[Exception]) -> Iterator[None]:
    """Converts any exception of zipfile and NumPy for a damaged archive into a ValueError of one
    line.
    """
    try:
        yield
    except kind as error:
        said = one_line(error) or type(error).__name__
        if "allow_pickle" in said:
            said = "it holds Python objects, which are not read, since they can run programs"
        raise ValueError(said) from error
