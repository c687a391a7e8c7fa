"""Finds the builder of a set of TensorFlow Datasets, and has TFDS prepare the set, which needs
TensorFlow.
"""

import contextlib
import difflib
import importlib
import importlib.util
import os
import pathlib
import sys
from typing import Any

from jaxdp.config import DataConfig
from jaxdp.registry import ConfigError

_INSTALL = "pip install 'jaxdp[prepare]'"
_LONGEST_MESSAGE = 400


def find_builder(name: str, config: DataConfig) -> Any:
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
    folder = pathlib.Path(config.data_dir).expanduser() if config.data_dir else None
    try:
        return library.builder(name, data_dir=os.fspath(folder) if folder else None)
    except library.core.DatasetNotFoundError as error:
        raise ConfigError("dataset", config.dataset, _unknown(name, library, folder)) from error
    except Exception as error:  # whatever the builder of a set raises
        remedy = (
            f"cannot be looked up without TensorFlow: {_INSTALL}"
            if "named 'tensorflow'" in str(error)
            else _one_line(error)
        )
        raise ConfigError("dataset", config.dataset, remedy) from error


def prepared(builder: Any, name: str, config: DataConfig) -> Any:
    """Returns a builder of the same set with its examples on disk; TFDS prepares them if necessary.

    Raises:
        ConfigError: if TFDS cannot prepare them.
    """
    if builder.data_path.exists():
        return builder
    where = f"is not prepared in {builder.data_dir_root}"
    if importlib.util.find_spec("tensorflow") is None:
        raise ConfigError(
            "dataset", config.dataset, f"{where}, and preparing it needs TensorFlow: {_INSTALL}"
        )
    tensorflow: Any = importlib.import_module("tensorflow")
    with contextlib.suppress(RuntimeError):  # TensorFlow was used before
        tensorflow.config.set_visible_devices([], "GPU")  # JAX needs their memory
    try:
        with contextlib.redirect_stdout(sys.stderr):
            builder.download_and_prepare(file_format="array_record")
    except Exception as error:  # a network, a server or a disk
        if not builder.data_path.exists():  # no other process was faster
            remedy = f"{where}, and cannot be prepared: {_one_line(error)}"
            raise ConfigError("dataset", config.dataset, remedy) from error
    return find_builder(name, config)


def _unknown(name: str, library: Any, folder: pathlib.Path | None) -> str:
    name = name.partition(":")[0].partition("/")[0]
    entries = folder.iterdir() if folder is not None and folder.is_dir() else []
    on_disk = sorted(path.name for path in entries if path.is_dir() and path.name != "downloads")
    known = sorted({*library.list_builders(with_community_datasets=False), *on_disk})
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    here = f"; prepared in {folder}: {', '.join(on_disk) or 'none'}" if folder else ""
    similar = ", did you mean " + " or ".join(close) + "?" if close else ""
    return f"TensorFlow Datasets has no {name}{similar}{here}"


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + " ..."
