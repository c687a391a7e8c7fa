"""Reads and writes settings as YAML, and hashes the settings that name a run."""

import hashlib
import itertools
import pathlib
import stat
from collections.abc import Callable
from typing import Any, cast

import yaml

from jaxdp.config import deprecation
from jaxdp.config.conversion import as_written, convert
from jaxdp.config.optimization import DEFAULT_OPTIMIZER
from jaxdp.config.settings import (
    Settings,
    fields,
    settings_with,
)
from jaxdp.config.train import TrainConfig
from jaxdp.errors import ConfigError
from jaxdp.text import parsing
from jaxdp.text.messages import brief, nearest, one_line

FILLED = "filled_in"  # names `Settings.filled` in a file


def load(path: str | pathlib.Path, cls: type[Settings] = TrainConfig) -> dict[str, Any]:
    """Reads settings from a file that `to_yaml` or a person wrote.

    Returns:
        only the settings of the file. All other settings, and settings that were filled in, get
        their defaults.

    Raises:
        ConfigError: if the file cannot be read, is not a mapping, or has a name or a type of value
            that `cls` does not have.
    """
    try:
        path = pathlib.Path(path)
        mode = path.stat().st_mode
        # <(COMMAND) of a shell ends, but other pipes might never end.
        from_shell = stat.S_ISFIFO(mode) and any(map(path.is_relative_to, ("/dev", "/proc")))
        if not stat.S_ISREG(mode) and not from_shell:
            raise ConfigError("config", path, "is no regular file; give a file of settings")
        with path.open(encoding="utf-8") as file:
            return parse(file.read(parsing.MOST_CHARACTERS + 1), path, cls)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("config", path, f"cannot be read: {one_line(error)}") from error


def parse(
    text: str,
    path: str | pathlib.Path,
    cls: type[Settings] = TrainConfig,
    *,
    warn: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Returns the settings of a text, as `load` does.

    Args:
        path: names the text in errors.
        warn: called with a line about each removed setting of a run, which is left out. None for a
            file that a person wrote, in which removed settings are refused, and values have the
            same meaning as after flags.

    Raises:
        ConfigError: as `load` does.
    """
    try:
        content: Any = parsing.parse_yaml(text) or {}
        # The file of a run has the types that were written.
        texts: Any = parsing.parse_yaml(text, as_text=True) or {} if warn is None else None
    except ValueError as error:
        raise ConfigError("config", path, f"cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError("config", path, "must consist of `name: value` lines")
    known, settings = fields(cls), cast(dict[str, Any], content)
    noted = settings.pop(FILLED, None)
    filled = [name for name in known if isinstance(noted, list) and name in noted]
    if warn is None:  # the user starts from the settings of a run
        settings = {name: value for name, value in settings.items() if name not in filled}
    settings = deprecation.drop_removed(settings)
    for name, value in list(settings.items()):
        removed = deprecation.removal(value, name) if isinstance(value, str) else None
        if name in known and not removed:
            continue
        removed = removed or deprecation.removal(name)
        remedy = f"unknown setting {brief(name)!r}; {nearest(str(name), known)}"
        if removed:
            remedy = f"has {name}: {brief(value)}, which {removed}"
        if warn is None or not removed:
            raise ConfigError("config", path, remedy)
        warn(f"{path} {remedy}")
        del settings[name]
    converted = dict[str, Any]()
    for name, value in settings.items():
        facts = known[name]
        written = as_written(facts, value, texts.get(name)) if texts is not None else value
        converted[name] = convert(facts, written)
    return converted if warn is None else converted | {"filled": frozenset(filled)}


class _Dumper(yaml.SafeDumper):
    """Writes a value that occurs twice in full, because `load` reads no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def to_yaml(config: Settings) -> str:
    """Returns settings as YAML that `load` reads."""
    content = config.plain() | ({FILLED: sorted(config.filled)} if config.filled else {})
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False)


def defining(config: TrainConfig) -> dict[str, Any]:
    """Returns the settings that define a run."""
    named: dict[str, Any] = {}
    for name, value in config.as_given().part(TrainConfig).plain().items():
        names_run = fields(TrainConfig)[name].names_run
        if names_run == "always" or (names_run == "if_set" and value):
            named[name] = value
    if named["strategy"] in deprecation.EXCHANGES:
        named["strategy"] = TrainConfig().strategy
    # Runs without an optimizer keep their folders, although the default depends on their data.
    named["optimizer"] = named["optimizer"] or DEFAULT_OPTIMIZER
    # Runs with removed settings keep their folders.
    return deprecation.DEFINING_DEFAULTS | named


def kept(config: TrainConfig) -> dict[str, Any]:
    """Returns the settings that stay the same when a run continues."""
    values = config.part(TrainConfig).plain()
    names = [settings_with(TrainConfig, resume=resume) for resume in ("fixed", "start")]
    return {name: values[name] for name in itertools.chain(*names)}


def run_hash(config: TrainConfig) -> str:
    """Returns 8 hexadecimal digits that are equal for settings that define the same run."""
    text = yaml.safe_dump(defining(config))  # which sorts the settings
    return hashlib.sha256(text.encode()).hexdigest()[:8]
