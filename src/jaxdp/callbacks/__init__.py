"""Callbacks, which show, record, save or steer a run, one file each.

A callback is an object with any of the methods in `HOOKS`, for example

    class PrintLoss:
        def on_evaluate(self, run, event):
            print(event.step, event.metrics["loss"])

Each takes the run (`events.Run`) and an event; `on_row` takes the run and the row of metrics that
it may add fields to. Where several processes train, a callback is called in the first one only,
unless it says `every_process = True`. A callback that keeps a state across restarts has
`state_dict()`, of plain JSON values, and `load_state_dict(state)`. The latter is called before
`on_start`, and only with what `state_dict` returned. `close()` is called at the end, whatever ends
the run. One that only draws or logs says `only_reports = True`: if it raises, it is left out with a
warning, and the run goes on. Register a class with `@callbacks.register("name")` to use it as
`--callbacks name:keyword=value`.
"""

import collections
import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxdp import deprecation, events
from jaxdp.config import parse_keywords
from jaxdp.events import Run
from jaxdp.parsing import one_line
from jaxdp.registry import ConfigError, Registry, check_keywords
from jaxdp.rundir.read import Row, warn, warn_again

if TYPE_CHECKING:
    from jaxdp.callbacks.device_monitor import DeviceMonitor as DeviceMonitor
    from jaxdp.callbacks.early_stopping import EarlyStopping as EarlyStopping
    from jaxdp.callbacks.json_lines import JsonLines as JsonLines
    from jaxdp.callbacks.mlflow import MLflow as MLflow
    from jaxdp.callbacks.profiler import Profiler as Profiler
    from jaxdp.callbacks.progress import Progress as Progress
    from jaxdp.callbacks.tensorboard import TensorBoard as TensorBoard
    from jaxdp.callbacks.wandb import WandB as WandB


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
__getattr__ = _callbacks.class_named


def create(callback: Any) -> Any:
    """Returns a callback object from an object, or from text as in
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
        raise ConfigError("callbacks", _name(callback), problem)
    return callback


def _parse(text: str) -> Any:
    name, _, words = text.partition(":")
    if name not in names() and (sentence := deprecation.removal(name, "callbacks")):
        raise ConfigError("callbacks", name, sentence)
    kind = _callbacks[name]
    try:
        keywords = parse_keywords(words.split(",")) if words else {}
    except ConfigError as error:
        remedy = f"write NAME:KEYWORD=VALUE,KEYWORD=VALUE; {error.remedy}"
        raise ConfigError("callbacks", text, remedy) from error
    check_keywords("callbacks", kind, keywords, reserved=())
    try:
        return kind(**keywords)
    except TypeError as error:  # a keyword that has no default is missing
        raise ConfigError("callbacks", text, one_line(error)) from error


class CallbackError(RuntimeError):
    """A callback raised an exception, which is the cause of this one."""


class CallbackList:
    """Calls the callbacks of a run, in order.

    Args:
        callbacks: objects; those that are not for every process are left out where `primary` is
            false.
        primary: whether this is the first process.
    """

    def __init__(self, callbacks: Sequence[Any], *, primary: bool) -> None:
        # Each by the name of its class, with a number for the second and further ones of a class.
        self._callbacks: dict[str, Any] = {}
        counts = collections.Counter[str]()
        for each in callbacks:
            if primary or _in_every_process(each):
                name = _name(each)
                counts[name] += 1
                key = name if counts[name] == 1 else f"{name}-{counts[name]}"
                self._callbacks[key] = each
        self._left_out = set[str]()
        self.current: Any = None

    def _methods(self, name: str) -> list[tuple[str, Callable[..., Any]]]:
        """Returns the methods of this name, each with the name of its callback."""
        methods = [
            (key, getattr(each, name, None))
            for key, each in self._callbacks.items()
            if key not in self._left_out
        ]
        return [(key, method) for key, method in methods if callable(method)]

    def call(self, hook: str, run: Run, event: Any) -> None:
        """Calls `hook` of each callback.

        Raises:
            CallbackError: if one raises anything but an OSError or ConfigError, which commands
                report in one line, unless it only reports.
        """
        for key, method in self._methods(hook):
            with self._naming(key, hook):
                method(run, event)

    @contextlib.contextmanager
    def _naming(self, key: str, hook: str) -> Generator[None]:
        self.current = callback = self._callbacks[key]
        try:
            yield
        except Exception as error:
            is_setting = isinstance(error, ConfigError) and hook == "on_start"
            if is_setting or not getattr(callback, "only_reports", False):
                self._raise(error, callback, hook)
            self._left_out.add(key)
            reason = f"{type(error).__name__}: {one_line(error)[:300]}"
            goes_on = "" if hook == "close" else "; it is left out, and the run goes on"
            warn_again(f"callback {key} failed in {hook}: {reason}{goes_on}")
        finally:
            self.current = None

    def _raise(self, error: Exception, callback: Any, hook: str) -> None:
        """Raises the error of a callback, with its name."""
        if isinstance(error, ConfigError | OSError):
            error.add_note(f"in callback {_name(callback)}, {hook}")
            raise error
        if type(error).__module__.startswith("optuna."):  # a pruned trial, which a study awaits
            raise error
        raise CallbackError(
            f"callback {_name(callback)} failed in {hook}: {type(error).__name__}: {error}"
        ) from error

    def current_is_everywhere(self) -> bool:
        """Whether the callback that is being called is called in every process."""
        return self.current is not None and _in_every_process(self.current)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of each callback that has any: by the name of its class, with a number
        for the second and further ones of a class.
        """
        return {key: method() for key, method in self._methods("state_dict")}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Gives each callback its state, if there is one.

        A checkpoint of version 0.2 has one state for all callbacks of a class: the first of them
        gets it, with a warning.
        """
        for key, method in self._methods("load_state_dict"):
            callback = self._callbacks[key]
            if key in states:
                with self._naming(key, "load_state_dict"):
                    method(states[key])
            elif _name(callback) in states:
                warn(f"the checkpoint holds no state of {key}, which begins anew")

    def close(self) -> None:
        """Closes all callbacks, the last one first, even if one of them fails to."""
        with contextlib.ExitStack() as stack:
            for key, callback in self._callbacks.items():
                if callable(close := getattr(callback, "close", None)):
                    stack.callback(self._close, key, close)

    def _close(self, key: str, close: Callable[[], Any]) -> None:
        if not getattr(self._callbacks[key], "only_reports", False):
            close()
            return
        with self._naming(key, "close"):
            close()


def _in_every_process(callback: Any) -> bool:
    return bool(getattr(callback, "every_process", False))


def _name(callback: Any) -> str:
    return type(callback).__name__
