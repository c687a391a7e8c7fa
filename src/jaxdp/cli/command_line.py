"""Parses flags into settings, and turns a usage error into one line and exit code 2."""

import argparse
import contextlib
import dataclasses
import errno
import functools
import inspect
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from jaxdp import config as config_lib
from jaxdp.cli import streams
from jaxdp.cli.exit_codes import EXIT_USAGE_ERROR
from jaxdp.config import REQUIRED, Facts, Settings, TrainConfig, conversion, deprecation, fields
from jaxdp.errors import ConfigError, flag
from jaxdp.text import console
from jaxdp.text.flags import for_command
from jaxdp.text.messages import closest, shown

Config = TypeVar("Config", bound=Settings)

# Errors of a name that no file can have.
_OF_NAMES = (errno.ENAMETOOLONG, errno.ELOOP, errno.EILSEQ)

_FILE_HELP = "YAML file of settings, e.g. the config.yaml of a run; flags override it"


class _HelpFormatter(argparse.HelpFormatter):
    """Breaks no line inside a name."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)


class _Parser(argparse.ArgumentParser):
    """A parser that raises ConfigError, and in its help the errors of standard output."""

    def print_help(self, file: Any = None) -> None:
        print(self.format_help(), end="", file=file, flush=True)

    def error(self, message: str) -> NoReturn:
        sentence = re.sub(r"^argument (\S+?)(/-\S+)*: ", r"\1: ", message)
        raise ConfigError("", "", f"{sentence} (see {self.prog} --help)")


def parse(
    cls: type[Config],
    argv: Sequence[str],
    *,
    prog: str,
    description: str,
    defaults_file: bool = True,
    **defaults: Any,
) -> Config:
    """Parses flags into `cls`, shown in `--help` by its groups.

    Args:
        cls: the settings of the command.
        argv: arguments without the program's name.
        description: one line.
        defaults_file: whether to offer `--config FILE`; flags override its values.
        **defaults: defaults of this command that differ from the settings' own.

    Raises:
        ConfigError: for anything that cannot be parsed.
        SystemExit: with 0 after `--help`.
    """
    own = fields(cls)
    words = [_with_dashes(word) for word in argv]
    _check_flags(words, [*own, "help", "help_all", "config"], prog)
    parser = _create_parser(cls, own, prog, description, everything="--help-all" in words)
    if defaults_file:
        parser.add_argument("--config", metavar="FILE", help=_FILE_HELP)
    given = vars(parser.parse_args(words))
    path = given.pop("config", None)
    for name, value in given.items():
        if not isinstance(value, bool):
            texts = value if isinstance(value, list) else [value]
            given[name] = conversion.from_words(own[name], texts)
    values = defaults | (config_lib.load(path, cls) if path else {})
    for name in config_lib.displaced_by(cls, given) - given.keys():
        values.pop(name, None)
    values |= given
    for name, facts in own.items():
        if name not in values and facts.default is REQUIRED:
            raise ConfigError("", "", f"{_flag(facts)} is required: {facts.help_text}")
    return cls.of(**values)


def given_flags(argv: Iterable[str]) -> set[str]:
    """Returns the names of the settings that the arguments give."""
    flags = (word[2:].partition("=")[0] for word in argv if word.startswith("--"))
    return {flag.replace("-", "_") for flag in flags}


def _with_dashes(word: str) -> str:
    """Returns an argument with `-` instead of `_` in the name of its flag."""
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value if word.startswith("--") else word


def _check_flags(words: Sequence[str], known: Sequence[str], prog: str) -> None:
    """Raises ConfigError for the first flag that the command does not have."""
    for name in sorted(given_flags(words) - {*known} - {f"no_{name}" for name in known}):
        if sentence := deprecation.removal(name, prog.rpartition(".")[2]):
            raise ConfigError(name, "", sentence)
        close = closest(name, known)
        remedy = f"did you mean {flag(close)}? " if close else ""
        raise ConfigError(name, "", f"unknown flag; {remedy}see {prog} --help-all")


def _create_parser(
    cls: type[Settings], own: Mapping[str, Facts], prog: str, description: str, *, everything: bool
) -> _Parser:
    """Returns the parser of a command; its help shows what `everything` and the facts say."""
    positional = [_flag(facts) for facts in own.values() if facts.positional]
    parser = _Parser(
        prog,
        " ".join([prog, *positional, "[FLAGS]"]),
        description,
        allow_abbrev=False,
        add_help=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=_HelpFormatter,
    )
    left_out, remaining = 0, dict(own)
    for group in cls.__mro__:
        section: Any = None
        for name in inspect.get_annotations(group):
            facts = remaining.pop(name, None)  # a command may declare a setting of a group anew
            if facts is None:
                continue
            is_shared = group in TrainConfig.__mro__
            visible = everything or facts.basic or facts.positional or not is_shared
            left_out += not visible
            if section is None and visible:
                title = (group.__doc__ or "").partition("\n")[0].rstrip(".")
                section = parser.add_argument_group(title)
            _add(section if visible else parser, facts, visible=visible)
    parser.add_argument("-h", "--help", action="help", help="show this help, and exit")
    more = f"show {left_out} more flags" if left_out else "show all flags"
    parser.add_argument("--help-all", action="help", help=f"{more}, and exit")
    return parser


def _add(section: Any, facts: Facts, *, visible: bool) -> None:
    """Adds the flag of a setting to a section of the help."""
    text, default = facts.help_text, facts.default
    if default not in (REQUIRED, None, False, (), {}) and "(default" not in text:
        text += (
            f" (default: {facts.separator.join(default) if facts.separator else shown(default)})"
        )
    options: dict[str, Any] = {"help": text.replace("%", "%%") if visible else argparse.SUPPRESS}
    many = conversion.takes_many(facts.annotation) and not facts.separator
    if facts.annotation is bool:
        options["action"] = argparse.BooleanOptionalAction
    else:
        options["metavar"] = facts.metavar or conversion.metavar(facts.annotation)
        options |= {"nargs": "*"} if many else {}
    if facts.positional:
        options |= {"metavar": _flag(facts), "nargs": "*" if many else "?"}
        section.add_argument(facts.name, **options)
        return
    aliases = [facts.alias] if facts.alias else []
    section.add_argument(*aliases, _flag(facts), dest=facts.name, **options)


def _flag(facts: Facts) -> str:
    if facts.positional:
        return facts.metavar or facts.name.upper()
    return "--" + facts.name.replace("_", "-")


class Exit(Exception):
    """Ends a command with an exit code and one line on standard error."""

    def __init__(self, code: int, line: str) -> None:
        super().__init__(line)
        self.code = code


def exit_code(error: BaseException) -> int:
    """Returns the exit code for an error that ends a command: 2 for a ConfigError, or a path that
    is too long, circular or cannot be encoded; otherwise 1.
    """
    is_usage = isinstance(error, ConfigError) or getattr(error, "errno", None) in _OF_NAMES
    return EXIT_USAGE_ERROR if is_usage else 1


@dataclasses.dataclass
class Ending:
    """How a command ended."""

    code: int = 0


@contextlib.contextmanager
def ending(prog: str) -> Iterator[Ending]:
    """Turns exceptions of the block into an exit code and one line on standard error, which may be
    closed or full.

    The code is 1 when interrupted, and 141, as in a shell, when the reader of standard output is
    gone (`... | head`). Otherwise `exit_code` says it.
    """
    end = Ending()
    streams.complete()
    errors: Any = streams.BestEffortStream(sys.stderr)
    with contextlib.redirect_stderr(errors), console.for_commands():
        try:
            output: Any = streams.StandardOutput(sys.stdout)
            with contextlib.redirect_stdout(output):
                yield end
                sys.stdout.flush()
        except Exit as error:
            end.code = error.code
            print(error, file=sys.stderr)
        except KeyboardInterrupt:
            end.code = 1
            print(f"{prog}: interrupted", file=sys.stderr)
        except BrokenPipeError:
            end.code = 128 + signal.SIGPIPE
        except (ConfigError, OSError) as error:
            end.code = exit_code(error)
            print(f"{prog}: error: {for_command(error)}", file=sys.stderr)
        finally:
            streams.finish()


def program(
    prog: str, read: Callable[[Sequence[str]], Any] = lambda words: words
) -> Callable[[Callable[[Any], int]], Callable[..., int]]:
    """Makes a command of a function that returns an exit code.

    Args:
        prog: e.g. `jaxdp.train`.
        read: makes the argument of the function from the arguments of the command; by default, it
            gets them as they are.
    """

    def decorate(function: Callable[[Any], int]) -> Callable[..., int]:
        @functools.wraps(function)
        def main(argv: Sequence[str] | None = None) -> int:
            with ending(prog) as end:
                end.code = function(read(sys.argv[1:] if argv is None else argv))
            return end.code

        return main

    return decorate


def command(
    cls: type[Config], prog: str, description: str, **options: Any
) -> Callable[[Callable[[Config], int]], Callable[..., int]]:
    """Makes a command of a function from settings to an exit code.

    Args:
        cls: the settings of the command.
        prog: e.g. `jaxdp.train`.
        **options: of `parse`.
    """
    name = f"python -m {prog}"
    return program(
        prog, functools.partial(parse, cls, prog=name, description=description, **options)
    )
