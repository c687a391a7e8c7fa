"""Defines the base class of callbacks, and creates callbacks by name."""

import pathlib
from collections.abc import Callable
from typing import Any

from jaxdp.callbacks import events
from jaxdp.callbacks.events import Run
from jaxdp.config import deprecation, parse_keywords
from jaxdp.errors import ConfigError
from jaxdp.plugins.registry import Registry, check_keywords
from jaxdp.rundir.read import Row
from jaxdp.text.messages import one_line


class Callback:
    """Names the methods of a callback, for editors: a base class that no callback needs.

    Each takes the run and an event.
    """

    def on_start(self, run: Run, event: events.Started) -> None:
        """Is called before the first step."""

    def on_activity(self, run: Run, event: events.Activity) -> None:
        """Is called when the process begins to do something else."""

    def on_step_begin(self, run: Run, event: events.StepBegin) -> None:
        """Is called before each call to the devices."""

    def on_step_end(self, run: Run, event: events.StepEnd) -> None:
        """Is called after each call to the devices; the next step consumes `event.state`."""

    def on_row(self, run: Run, row: Row) -> None:
        """Is called with each row of metrics before it is complete, and may add fields."""

    def on_log(self, run: Run, event: events.Logged) -> None:
        """Is called with each complete row."""

    def on_evaluate(self, run: Run, event: events.Evaluated) -> None:
        """Is called after each evaluation, once its loss is known to be finite."""

    def on_save(self, run: Run, event: events.Saving) -> None:
        """Is called with a copy of the state in host memory whenever a checkpoint is due."""

    def on_end(self, run: Run, event: events.Ended) -> None:
        """Is called when a run ends."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))

_callbacks: Registry[Callable[..., Any]] = Registry("callbacks", "jaxdp.callbacks")
register = _callbacks.register
names = _callbacks.entries


def folder_of(run: Run, callback: str) -> pathlib.Path:
    """Returns the run directory, in which a callback writes.

    Raises:
        ConfigError: for a run without a run directory.
    """
    if run.folder is None:
        raise ConfigError("callbacks", callback, "writes into the run directory; give run_dir")
    return run.folder


def create(callback: Any) -> Any:
    """Returns a callback object from an object, or from text such as
    `early_stopping:patience=5,metric=accuracy`.

    Raises:
        ConfigError: for an unknown name or keyword, and for an object that has none of the methods
            of a callback.
    """
    if isinstance(callback, str):
        return _parse(callback)
    if isinstance(callback, type):
        name = callback.__name__
        raise ConfigError("callbacks", name, f"is a class; give an object: {name}(...)")
    if not any(callable(getattr(callback, hook, None)) for hook in HOOKS):
        problem = f"is no callback: it has none of the methods {', '.join(HOOKS)}"
        raise ConfigError("callbacks", type(callback).__name__, problem)
    return callback


def _parse(text: str) -> Any:
    name, _, words = text.partition(":")
    if name not in names() and (sentence := deprecation.removal(name, "callbacks")):
        raise ConfigError("callbacks", name, sentence)
    kind = _callbacks[name]
    try:
        keywords = parse_keywords(words.split(",")) if words else {}
    except ConfigError as error:
        remedy = f"write NAME:KEYWORD=VALUE,KEYWORD=VALUE; {error.remedy.template}"
        raise ConfigError("callbacks", text, remedy) from error
    check_keywords("callbacks", kind, keywords, reserved=())
    try:
        return kind(**keywords)
    except TypeError as error:  # a keyword without a default is missing
        raise ConfigError("callbacks", text, one_line(error)) from error
