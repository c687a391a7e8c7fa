"""Opens datasets of the Hugging Face hub, and folders of its libraries, as tables."""

import contextlib
import importlib
import re
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from jaxdp.data.hub_columns import find_columns
from jaxdp.data.request import Request
from jaxdp.errors import ConfigError
from jaxdp.text.console import say
from jaxdp.text.messages import brief, one_line, some

# What `save_to_disk` writes for one split, and for several.
_SAVED = (("state.json", "dataset_info.json"), ("dataset_dict.json",))
# Parts of errors and addresses that no line may show.
_SECRETS = (
    (re.compile(r"(\w+://)[^/\s@]*@"), r"\1"),
    (re.compile(r"(\w+://[^\s?'\"<>]*)\?[^\s'\"<>)\]]*"), r"\1"),
    (re.compile(r"\b(hf|api_org)_[A-Za-z0-9]{6,}"), r"\1_..."),
    (re.compile(r"(?i)\b(bearer|basic)\s+[^\s'\",]+"), r"\1 ..."),
)
_PATIENCE = 3.0  # seconds
_NETWORK = ("httpx", "httpx2", "requests", "urllib3")  # libraries with errors of a connection


def import_library(request: Request) -> Any:
    """Returns the library `datasets`."""
    try:
        # The import takes two seconds, for which other datasets need not wait.
        library: Any = importlib.import_module("datasets")
    except ModuleNotFoundError as error:
        raise request.error("needs Hugging Face's datasets: pip install '.[hub]'") from error
    if not hasattr(library, "load_dataset_builder"):  # a file or a folder of the user
        place = getattr(library, "__file__", None) or next(iter(library.__path__))
        hidden = f"{place} is imported as datasets; rename it if the library is installed"
        raise request.error(f"needs Hugging Face's datasets: pip install '.[hub]'; {hidden}")
    return library


@contextlib.contextmanager
def waiting_for_hub(name: str) -> Iterator[None]:
    """Prints one line if an answer takes long, instead of the library's two for each try.

    Without a network, the library tries for half a minute.
    """
    logging: Any = importlib.import_module("huggingface_hub.utils.logging")
    timer = threading.Timer(_PATIENCE, say, (f"note: {name}: waiting for the hub",))
    timer.daemon = True
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        logging.set_verbosity(before)


def open_tables(request: Request, library: Any) -> dict[str, Any]:
    """Returns the table of each split, downloaded and prepared if necessary.

    Raises:
        ConfigError: if it cannot be found, downloaded or read.
    """
    name, revision, configuration = _parsed(request.argument)
    place, folder = name, Path(name).expanduser()
    if folder.is_dir():
        if not name.startswith((".", "~", "/")):
            say(f"note: {request.config.dataset} is read from the folder {folder.resolve()}")
        if any(all((folder / file).is_file() for file in files) for files in _SAVED):
            return _saved(request, library, folder, configuration)
        place = str(folder)
    elif name.startswith((".", "~", "/")):
        raise request.error("there is no such folder")
    try:
        try:
            wait = waiting_for_hub if place == name else contextlib.nullcontext
            with wait(str(request.config.dataset)):
                return _prepared(request, library, place, configuration, revision)
        except Exception as error:
            cached = _downloaded(name, revision) if _is_unreachable(error) else None
            if cached is None:
                raise
            say(f"note: {request.config.dataset}: the hub cannot be reached; read from {cached}")
            return _prepared(request, library, cached, configuration)
    except ConfigError:
        raise
    except Exception as error:  # a network, a server, a disk or any exception of a builder
        # The cause is not chained, because it may hold a signed address.
        raise request.error(_remedy(error, name, revision)) from None


def _parsed(argument: str) -> tuple[str, str, str]:
    """Returns name, revision and configuration; a folder's name may hold an @ or a colon."""
    if Path(argument).expanduser().is_dir():
        return argument, "", ""
    name, _, configuration = argument.partition(":")
    if Path(name).expanduser().is_dir():
        return name, "", configuration
    name, _, revision = name.partition("@")
    return name, revision, configuration


def _saved(request: Request, library: Any, folder: Path, configuration: str) -> dict[str, Any]:
    """Returns the tables in a folder of `save_to_disk`."""
    request.refuse("data_dir")
    if configuration:
        raise request.error(f"{folder} was written by save_to_disk, and has no configurations")
    try:
        saved = library.load_from_disk(str(folder))
    except Exception as error:  # a broken or incomplete folder
        problem = brief(one_line(error)) or type(error).__name__
        raise request.error(f"{folder} cannot be read ({problem}); save it again") from error
    if isinstance(saved, library.Dataset):
        return {"train": saved}
    return {str(split): table for split, table in saved.items()}


def _prepared(
    request: Request, library: Any, name: str, configuration: str, revision: str = ""
) -> dict[str, Any]:
    """Returns the tables of a dataset of the hub, or of a folder in its layout."""
    cache = request.config.data_dir and str(Path(request.config.data_dir).expanduser())
    builder = library.load_dataset_builder(
        name, configuration or None, revision=revision or None, cache_dir=cache
    )
    # Without a network, datasets 5.2 takes the tables that were prepared last, of any revision.
    is_cached = type(builder).__module__.endswith(".cache")
    if is_cached and revision not in ("", builder.hash):
        raise ConnectionError(f"its tables are of revision {builder.hash}, not {revision}")
    if builder.info.features:
        find_columns(request, builder.info.features)  # before a useless download
    builder.download_and_prepare()
    return {str(split): table for split, table in builder.as_dataset().items()}


def _downloaded(name: str, revision: str) -> str | None:
    """Returns the folder in which `hf download` has put all files of a dataset, if there is one.

    A folder of which no list of files is known may be a part of a dataset only, and does not count.
    """
    try:
        hub: Any = importlib.import_module("huggingface_hub")
        asked = {"repo_type": "dataset", "revision": revision or None}
        hub.get_cached_repo_tree(name, **asked)
        return hub.snapshot_download(name, **asked, local_files_only=True)
    except Exception:  # it is not there, not complete, or the library is older
        return None


def _causes(error: BaseException) -> Iterable[BaseException]:
    """Yields an error and what caused it."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


def _is_unreachable(error: BaseException) -> bool:
    """Returns whether there was no answer of the hub."""
    causes = [*_causes(error)]
    if any(getattr(each, "response", None) is not None for each in causes):
        return False
    return any(
        isinstance(each, ConnectionError | TimeoutError)
        or "LocalEntryNotFoundError" in str(each)  # by which the hub's library means no answer
        or type(each).__module__.partition(".")[0] in _NETWORK
        for each in causes
    )


def _remedy(error: Exception, name: str, revision: str) -> str:
    """Returns why a dataset cannot be read and what to do, in one line without secrets."""
    text, kind = _shown(error), type(error).__name__
    fetch = f"hf download --repo-type dataset {name}"
    if revision:
        fetch = f"hf download --repo-type dataset {name} --revision {revision}"
    listed = re.search(r"[Aa]vailable(?: configs)?(?: in the cache)?: \[(.*?)\]", text)
    known = re.findall("'([^']*)'", listed[1]) if listed else []
    if known:
        held = f"has the configurations {some(known, 16)}; write one after a colon"
        return f"{held}, e.g. hf:{name}:{known[0]}"
    if "scripts are no longer supported" in text:
        return (
            "is made by a script of its own, which is not run; take the hub's copy in Parquet, if"
            f" it has one: hf download --repo-type dataset {name} --revision refs/convert/parquet"
            " --local-dir FOLDER, and give hf:FOLDER/CONFIG"
        )
    if kind in ("DatasetNotFoundError", "RepositoryNotFoundError", "GatedRepoError"):
        way = "check the name, or run hf auth login if it is private"
        if "is a gated dataset" in text:
            way = "ask for access on its page, and run hf auth login"
        return f"{brief(text)}; {way}"
    if _is_unreachable(error):
        return (
            f"is not in the cache, and the hub cannot be reached ({brief(text)}); where there is a"
            f" network, run {fetch}, or give a folder as hf:./FOLDER"
        )
    if isinstance(error, FileNotFoundError):
        return f"{brief(text)}; write hf:OWNER/NAME, or hf:./FOLDER with Parquet files"
    return f"cannot be read ({brief(text)}); if a file of it is broken, fetch or write it again"


def _shown(error: BaseException) -> str:
    """Returns the text of an error, and of its cause if it says more, without tokens and signed
    addresses.
    """
    kind = type(error).__name__
    cause = error.__cause__ if kind.startswith("DatasetGeneration") else None
    text = without_secrets(one_line(cause or error).rstrip("."))
    return text or type(cause or error).__name__


def without_secrets(text: str) -> str:
    """Returns a text without passwords, tokens and the signatures of addresses."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text
