"""Downloads a set of TensorFlow Datasets and writes it into its folder, once, which needs
TensorFlow.
"""

import contextlib
import contextvars
import difflib
import importlib
import importlib.util
import os
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from jaxdp.config import DataConfig
from jaxdp.registry import ConfigError

_INSTALL = "pip install 'jaxdp[prepare]'"
_PATIENCE_SECONDS = 10  # for the first answer of a server
_LONGEST_MESSAGE = 400
_MOST_FILES = 8  # to be named in an error
_shapes_suffice = contextvars.ContextVar("shapes_suffice", default=False)
_WRONG_CHECKSUM = re.compile(r"Artifact (\S+), downloaded to (\S+), has wrong checksum")


def find_builder(name: str, config: DataConfig) -> Any:
    """Returns TFDS's builder of a set, which knows its features, whether it is prepared or not.

    Args:
        name: as TFDS spells it, with configuration and version if they matter.

    Raises:
        ConfigError: if there is no such set.
    """
    # A few builders import TensorFlow, which would chat.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # A second, for which other datasets do not have to wait.
    library: Any = importlib.import_module("tensorflow_datasets")
    folder = pathlib.Path(config.data_dir).expanduser() if config.data_dir else None
    try:
        return library.builder(name, data_dir=os.fspath(folder) if folder else None)
    except library.core.DatasetNotFoundError as error:
        raise ConfigError("dataset", config.dataset, _unknown(name, library, folder)) from error
    except Exception as error:
        remedy = (
            f"cannot be looked up without TensorFlow: {_INSTALL}"
            if "named 'tensorflow'" in str(error)
            else _one_line(error)
        )
        raise ConfigError("dataset", config.dataset, remedy) from error


@contextlib.contextmanager
def shapes_suffice() -> Iterator[None]:
    """Lets sets that are not prepared be opened within it for their shapes, as far as these are
    known.
    """
    token = _shapes_suffice.set(True)
    try:
        yield
    finally:
        _shapes_suffice.reset(token)


def is_described(builder: Any) -> bool:
    """Returns whether no more than the shapes of a set are asked for, and no more is here."""
    return _shapes_suffice.get() and not builder.data_path.exists()


def prepared(builder: Any, name: str, config: DataConfig) -> Any:
    """Returns a builder of the same set whose examples are on disk, after writing them if they were
    not.

    Raises:
        ConfigError: if that cannot be done here; it says what to install, or to download by hand.
    """
    if builder.data_path.exists():
        return builder
    if importlib.util.find_spec("tensorflow") is None:
        remedy = (
            f"is not prepared in {builder.data_dir_root}, and preparing it needs TensorFlow:"
            f" {_INSTALL}"
        )
        raise ConfigError("dataset", config.dataset, remedy)
    try:
        _prepare(builder, importlib.import_module("tensorflow_datasets"), config)
    except Exception:  # whatever it is, nothing is lost where another process was faster
        if not builder.data_path.exists():
            raise
    return find_builder(name, config)


def _unknown(name: str, library: Any, folder: pathlib.Path | None) -> str:
    name = name.partition(":")[0].partition("/")[0]
    found = folder.iterdir() if folder is not None and folder.is_dir() else []
    prepared = sorted(path.name for path in found if path.is_dir() and path.name != "downloads")
    known = sorted({*library.list_builders(with_community_datasets=False), *prepared})
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    here = f"; prepared in {folder}: {', '.join(prepared) or 'none'}" if folder else ""
    return (
        "TensorFlow Datasets has no"
        f" {name}{', did you mean ' + ' or '.join(close) + '?' if close else ''}{here}"
    )


def _prepare(builder: Any, library: Any, config: DataConfig) -> None:
    requests: Any = importlib.import_module("requests")
    util: Any = importlib.import_module("tensorflow_datasets.core.download.util")
    manager: Any = importlib.import_module("tensorflow_datasets.core.download.download_manager")
    downloads = pathlib.Path(builder.data_dir_root) / "downloads"
    by_hand = downloads / "manual" / builder.name
    missing = _missing(builder.url_infos or {}, by_hand)
    reason = _unreachable(next(iter(missing), ""))
    kept = by_hand.is_dir() or any((downloads / builder.name).glob("*.INFO"))
    if reason and not kept:
        raise _download_error(config, reason, missing, by_hand)
    # Files put there by hand keep their names, and MNIST and Fashion-MNIST both have a
    # t10k-images-idx3-ubyte.gz: a folder for each set keeps TFDS from taking what it unpacked for
    # one for the other's.
    settings = library.download.DownloadConfig(
        try_download_gcs=False,
        manual_dir=os.fspath(by_hand) if by_hand.is_dir() else None,
        extract_dir=os.fspath(downloads / "extracted" / builder.name),
    )
    with (
        _modest_tensorflow(),
        _impatient(library, active=bool(reason)),
        contextlib.redirect_stdout(sys.stderr),
    ):
        try:
            builder.download_and_prepare(download_config=settings, file_format="array_record")
        except (requests.exceptions.RequestException, util.DownloadError) as error:
            raise _download_error(config, _one_line(error), missing, by_hand) from error
        except manager.NonMatchingChecksumError as error:
            match = _WRONG_CHECKSUM.search(str(error))
            remedy = (
                f"{match[2]} is not what TFDS knows as {match[1]}; replace it"
                if match
                else _one_line(error)
            )
            raise ConfigError("dataset", config.dataset, f"wrong checksum: {remedy}") from error
        except Exception as error:
            raise ConfigError(
                "dataset", config.dataset, f"cannot be prepared: {_one_line(error)}"
            ) from error


def _missing(url_infos: Mapping[str, Any], by_hand: pathlib.Path) -> dict[str, str]:
    """Returns the address of each file that was not put there by hand, with the name that TFDS
    looks for.
    """
    names = {url: info.filename or url.rpartition("/")[2] for url, info in url_infos.items()}
    return {url: name for url, name in names.items() if not (by_hand / name).exists()}


def _download_error(
    config: DataConfig, reason: str, missing: Mapping[str, str], by_hand: pathlib.Path
) -> ConfigError:
    files = (
        ", ".join(f"{name} ({url})" for url, name in list(missing.items())[:_MOST_FILES])
        or "what it asks for"
    )
    which = (
        "what it needs of " * (len(missing) > 1) + files + ", ..." * (len(missing) > _MOST_FILES)
    )
    return ConfigError(
        "dataset",
        config.dataset,
        f"cannot be downloaded ({reason}); put {which} into {by_hand} and start again",
    )


def _unreachable(url: str) -> str:
    """Returns why a server cannot be reached, or nothing if it can: TFDS itself would try for
    minutes.
    """
    requests: Any = importlib.import_module("requests")
    if not url.startswith("http"):
        return ""
    try:
        requests.head(url, timeout=_PATIENCE_SECONDS)
    except requests.exceptions.RequestException as error:
        return f"no connection to {url.split('/')[2]}: {type(error).__name__}"
    return ""


@contextlib.contextmanager
def _modest_tensorflow() -> Iterator[None]:
    """TensorFlow encodes images here, on the host: it must not take the GPU's memory away from
    JAX.
    """
    tensorflow: Any = importlib.import_module("tensorflow")
    with contextlib.suppress(RuntimeError):  # somebody has used it already
        tensorflow.config.set_visible_devices([], "GPU")
    yield


@contextlib.contextmanager
def _impatient(library: Any, *, active: bool) -> Iterator[None]:
    """Without a network, what was put there by hand may be all that is needed.

    If not, the error need not wait for 10 retries.
    """
    downloader: Any = importlib.import_module("tensorflow_datasets.core.download.downloader")
    if not active:
        yield
        return
    retries, downloader.MAX_RETRIES = downloader.MAX_RETRIES, 0
    library.disable_progress_bar()
    try:
        yield
    finally:
        downloader.MAX_RETRIES = retries
        library.enable_progress_bar()


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + " ..."
