"""Calls the callbacks of a run in order."""

import collections
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxdp.callbacks.events import Run
from jaxdp.errors import ConfigError
from jaxdp.text.console import warn, warn_again
from jaxdp.text.messages import one_line

# The hooks at which callbacks write in the run directory.
_WRITTEN_AT = ("on_row", "on_save", "on_end")


class CallbackError(RuntimeError):
    """A callback raised an exception, which is the cause of this one."""


class CallbackList:
    """Calls the callbacks of a run, in order.

    Args:
        callbacks: callback objects. If `primary` is false, callbacks that are not for every process
            are left out.
        run: the run that they are called with.
        primary: whether this is the first process.
        before_writing: is called before they write in the run directory.
    """

    def __init__(
        self,
        callbacks: Sequence[Any],
        run: Run,
        *,
        primary: bool,
        before_writing: Callable[[], None] = lambda: None,
    ) -> None:
        self._run, self._before_writing = run, before_writing
        # Each callback by the name of its class, with a number if the class has several callbacks.
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

    def call(self, hook: str, event: Any) -> None:
        """Calls `hook` of each callback with the run and an event, or a row.

        Raises:
            CallbackError: if a callback raises an exception, unless the callback only reports.
                Commands print an OSError or a ConfigError in one line, so these propagate.
        """
        if hook in _WRITTEN_AT:
            self._before_writing()
        for key, method in self._methods(hook):
            self._call(key, hook, method, self._run, event)

    def _call(self, key: str, hook: str, method: Callable[..., Any], *arguments: Any) -> None:
        """Calls a method of a callback. An error gets the name of the callback."""
        self.current = callback = self._callbacks[key]
        try:
            method(*arguments)
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
        """Raises the error of a callback, with the name of the callback."""
        if isinstance(error, ConfigError | OSError):
            error.add_note(f"in callback {_name(callback)}, {hook}")
            raise error
        if type(error).__module__.startswith("optuna."):  # a pruned trial, which a study expects
            raise error
        raise CallbackError(
            f"callback {_name(callback)} failed in {hook}: {type(error).__name__}: {error}"
        ) from error

    def current_is_everywhere(self) -> bool:
        """Whether the current callback is called in every process."""
        return self.current is not None and _in_every_process(self.current)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of each callback that has a state, by the name of its class, with a
        number if the class has several callbacks.
        """
        return {key: method() for key, method in self._methods("state_dict")}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Passes each callback its state, if there is one.

        A checkpoint of version 0.2 has one state for all callbacks of a class. The first of these
        callbacks gets it, with a warning.
        """
        for key, method in self._methods("load_state_dict"):
            callback = self._callbacks[key]
            if key in states:
                self._call(key, "load_state_dict", method, states[key])
            elif _name(callback) in states:
                warn(f"the checkpoint holds no state of {key}, which begins anew")

    def close(self) -> None:
        """Closes all callbacks, the last one first, even if closing one fails."""
        with contextlib.ExitStack() as stack:
            for key, callback in self._callbacks.items():
                if callable(close := getattr(callback, "close", None)):
                    stack.callback(self._call, key, "close", close)


def _in_every_process(callback: Any) -> bool:
    return bool(getattr(callback, "every_process", False))


def _name(callback: Any) -> str:
    return type(callback).__name__
