"""Finds the builder of a set of TensorFlow Datasets, and has TFDS prepare the set, which needs
TensorFlow.
"""

import contextlib
import importlib
import importlib.util
import os
import pathlib
import sys
import textwrap
from typing import Any

from jaxdp.data.request import Request
from jaxdp.registry import closest

_INSTALL = "pip install 'jaxdp[prepare]'"
_LONGEST_MESSAGE = 400


def find_builder(name: str, request: Request) -> Any:
    """Returns TFDS's builder of a set, which knows its features, whether it is prepared or not.

    Args:
        name: as TFDS spells it, with configuration and version if they matter.

    Raises:
        ConfigError: if there is no such set.
    """
    # A few builders import TensorFlow, which logs.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # The import takes a second, for which other datasets do not have to wait.
    library: Any = importlib.import_module("tensorflow_datasets")
    folder = request.config.data_dir and pathlib.Path(request.config.data_dir).expanduser()
    try:
        return library.builder(name, data_dir=folder and os.fspath(folder))
    except library.core.DatasetNotFoundError as error:
        raise request.error(_unknown(name, library, folder)) from error
    except Exception as error:  # whatever the builder of a set raises
        remedy = _one_line(error)
        if "named 'tensorflow'" in remedy:
            remedy = f"cannot be looked up without TensorFlow: {_INSTALL}"
        raise request.error(remedy) from error


def prepared(builder: Any, name: str, request: Request) -> Any:
    """Returns a builder of the same set with its examples on disk; TFDS prepares them if necessary.

    Raises:
        ConfigError: if TFDS cannot prepare them.
    """
    if builder.data_path.exists():
        return builder
    where = f"is not prepared in {builder.data_dir_root}"
    if importlib.util.find_spec("tensorflow") is None:
        raise request.error(f"{where}, and preparing it needs TensorFlow: {_INSTALL}")
    tensorflow: Any = importlib.import_module("tensorflow")
    with contextlib.suppress(RuntimeError):  # TensorFlow was used before
        tensorflow.config.set_visible_devices([], "GPU")  # JAX needs their memory
    try:
        with contextlib.redirect_stdout(sys.stderr):
            builder.download_and_prepare(file_format="array_record")
    except Exception as error:  # a network, a server or a disk
        if not builder.data_path.exists():  # no other process was faster
            remedy = f"{where}, and cannot be prepared: {_one_line(error)}"
            raise request.error(remedy) from error
    return find_builder(name, request)


def _unknown(name: str, library: Any, folder: Any) -> str:
    name, on_disk = name.partition(":")[0].partition("/")[0], list[str]()
    if folder and folder.is_dir():
        on_disk = sorted(
            path.name for path in folder.iterdir() if path.is_dir() and path.name != "downloads"
        )
    close = closest(name, [*library.list_builders(with_community_datasets=False), *on_disk])
    similar = f", did you mean {close}?" if close else ""
    here = f"; prepared in {folder}: {', '.join(on_disk) or 'none'}" if folder else ""
    return f"TensorFlow Datasets has no {name}{similar}{here}"


def _one_line(error: Exception) -> str:
    return textwrap.shorten(str(error), _LONGEST_MESSAGE, placeholder=" ...")
