"""Fetches weights from the Hugging Face hub, or finds them in its cache."""

import importlib
import pathlib
import re
from typing import Any

from jaxdp.data.hub_tables import waiting_for_hub, without_secrets
from jaxdp.errors import ConfigError
from jaxdp.inference.hub_layout import CONFIG, WEIGHTS
from jaxdp.text.console import say
from jaxdp.text.messages import brief, one_line

_TIMM, _HUB = "timm:", "hf://"
_REPOSITORY = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", re.ASCII)


def is_name(path: str) -> bool:
    """Returns whether this is a name on the hub, not a path."""
    return path.startswith((_TIMM, _HUB))


def parse(path: str) -> tuple[str, str | None]:
    """Returns the repository and the revision of a name.

    Raises:
        ConfigError: for another form.
    """
    name = path.removeprefix(_HUB)
    if path.startswith(_TIMM):
        name = f"timm/{path.removeprefix(_TIMM)}"
    match = _REPOSITORY.fullmatch(name)
    if match is None:
        remedy = "must be timm:NAME, e.g. timm:resnet18.a1_in1k, or hf://ORGANIZATION/NAME"
        raise ConfigError("init_from", path, remedy)
    repository, revision = match.groups()
    return repository, revision


def fetch(
    path: str, repository: str, revision: str | None, size: str
) -> tuple[pathlib.Path, pathlib.Path]:
    """Returns `config.json` and `model.safetensors` of one revision, in a folder with its name, and
    prints whether the revision is another than that in the cache.

    Args:
        path: the name, for errors.
        size: of the weights, as an error shows it; empty if unknown.

    Raises:
        ConfigError: if one of them cannot be fetched and is not in the cache.
    """
    before = _cached_revision(path, repository, revision)
    config = _fetch(path, repository, revision, CONFIG, size)
    now = config.parent.name
    weights = _fetch(path, repository, now, WEIGHTS, size)
    if before not in (None, now):
        say(f"note: {path} has changed: its revision was {before}, and is {now}")
    return config, weights


def _library(path: str, part: str = "") -> Any:
    """Returns the library of the hub, or a part such as `.errors`."""
    try:
        return importlib.import_module(f"huggingface_hub{part}")
    except ModuleNotFoundError as error:
        remedy = "needs huggingface_hub: pip install '.[hub]'"
        raise ConfigError("init_from", path, remedy) from error


def _cached_revision(path: str, repository: str, revision: str | None) -> str | None:
    """Returns the revision that the cache holds under this name; None if it holds none."""
    cache = pathlib.Path(_library(path, ".constants").HF_HUB_CACHE)
    folder = cache / f"models--{repository.replace('/', '--')}"
    file = folder / "refs" / (revision or "main")
    return file.read_text().strip() if file.is_file() else None


def _fetch(path: str, repository: str, revision: str | None, file: str, size: str) -> pathlib.Path:
    """Returns a file of a repository in the cache of the hub, fetched if necessary."""
    library, errors = _library(path), _library(path, ".errors")
    try:
        with waiting_for_hub(path):
            return pathlib.Path(library.hf_hub_download(repository, file, revision=revision))
    except errors.GatedRepoError as error:
        remedy = "asks for consent to its terms on its page, and for a token: hf auth login"
        raise ConfigError("init_from", path, remedy) from error
    except errors.RepositoryNotFoundError as error:
        remedy = f"the hub has no {repository}, or it is private and needs a token: hf auth login"
        raise ConfigError("init_from", path, remedy) from error
    except errors.RevisionNotFoundError as error:
        raise ConfigError("init_from", path, f"{repository} has no revision {revision}") from error
    except errors.LocalEntryNotFoundError as error:
        fetch = f"hf download {repository} {CONFIG} {WEIGHTS}"
        if revision:
            fetch = f"hf download --revision {revision} {repository} {CONFIG} {WEIGHTS}"
        held = f"{file} is not in the cache, and the hub cannot be reached"
        remedy = f"{held}; with a network: {fetch}{size}"
        raise ConfigError("init_from", path, remedy) from error
    except errors.EntryNotFoundError as error:
        remedy = (
            f"{repository} has no {file}; other files of weights can be pickles, which are not read"
        )
        if file == CONFIG:
            remedy = f"{repository} has no {CONFIG}, which says which model its weights are for"
        raise ConfigError("init_from", path, remedy) from error
    except (errors.HFValidationError, OSError, RuntimeError, ValueError) as error:
        problem = brief(without_secrets(one_line(error)))
        raise ConfigError("init_from", path, f"{file} cannot be fetched: {problem}") from error
