"""Lines for people on standard error."""

import sys

from jaxdp.text.messages import printable

_warned: set[str] = set()  # a watcher of runs reads its files again and again


def warn(text: str) -> None:
    """Prints a warning on standard error, the same one once."""
    say(f"warning: {text}")


def say(line: str) -> None:
    """Prints a line on standard error, the same one once."""
    if line not in _warned:
        _warned.add(line)
        sys.stderr.write(f"{printable(line)}\n")


def warn_again(text: str) -> None:
    """Prints a warning on standard error, however often the same one was printed."""
    sys.stderr.write(f"warning: {printable(text)}\n")
