"""Lines for people: records of the logger `jaxdp`, which are printed on standard error unless a
program configures logging.
"""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator

from jaxdp.text.flags import Sentence, for_command, for_python

logger = logging.getLogger("jaxdp")
_warned: set[str] = set()  # a watcher of runs reads its files again and again


def warn(text: object) -> None:
    """Prints a warning, a sentence or an error, the same one once."""
    if _is_new(f"warning: {text}"):
        warn_again(text)


def say(text: object) -> None:
    """Prints a line, the same one once."""
    if _is_new(str(text)):
        say_again(text)


def warn_again(text: object) -> None:
    """Prints a warning, however often the same one was printed."""
    logger.warning(Sentence(text))


def say_again(text: object) -> None:
    """Prints a line, however often the same one was printed."""
    logger.info(Sentence(text))


def _is_new(line: str) -> bool:
    is_new = line not in _warned
    _warned.add(line)
    return is_new


class Lines(logging.Handler):
    """Prints records on standard error as it is then: notebooks, bars and tests replace it.

    Args:
        render: makes a line of a sentence.
    """

    def __init__(self, render: Callable[[object], str]) -> None:
        super().__init__()
        self._render = render

    def emit(self, record: logging.LogRecord) -> None:
        line = self._render(record.getMessage() if record.args else record.msg)
        kind = "warning: " if record.levelno >= logging.WARNING else ""
        # A stream that is full, closed or not there ends no run.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"{kind}{line}\n")


def _keep_from_basic_handlers(_: logging.LogRecord) -> bool:
    """Keeps lines from the handlers of a bare `logging.basicConfig()`, which many libraries call
    without knowing: such a handler would print each line with the name of the logger.
    """
    handlers = logging.getLogger().handlers
    if logger.handlers == [_default] and handlers and all(map(_is_basic, handlers)):
        logger.propagate = False
    return True


def _is_basic(handler: logging.Handler) -> bool:
    form = getattr(handler.formatter, "_fmt", None)
    return type(handler) is logging.StreamHandler and form == logging.BASIC_FORMAT


def _is_unseen(_: logging.LogRecord) -> bool:
    """Whether no other handler gets the records of the logger."""
    above = logger.parent if logger.propagate else None
    return logger.handlers == [_default] and not (above and above.hasHandlers())


@contextlib.contextmanager
def for_commands() -> Iterator[None]:
    """Prints lines as commands do while the block runs: with flags, and not once more by handlers
    that a library has given the root logger.
    """
    handler, before = Lines(for_command), (logger.handlers, logger.propagate)
    logger.handlers, logger.propagate = [handler], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before


_default = Lines(for_python)
_default.addFilter(_is_unseen)
logger.addHandler(_default)
logger.addFilter(_keep_from_basic_handlers)
if logger.level == logging.NOTSET:  # the root logger's own level would leave out notes
    logger.setLevel(logging.INFO)
