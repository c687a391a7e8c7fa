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
from jaxdp.config import Settings, TrainConfig, conversion, deprecation, facts_of, fields
from jaxdp.errors import ConfigError, flag
from jaxdp.text import console
from jaxdp.text.flags import for_command
from jaxdp.text.messages import closest, shown

Config = TypeVar("Config", bound=Settings)
Fields = Mapping[str, "dataclasses.Field[Any]"]

# Errors of a name that no file can have.
OF_NAMES = (errno.ENAMETOOLONG, errno.ELOOP, errno.EILSEQ)

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
    hidden: Sequence[str] = (),
    **defaults: Any,
) -> Config:
    """Parses flags into `cls`, shown in `--help` by its groups.

    Args:
        cls: the settings of the command.
        argv: arguments without the program's name.
        description: one line.
        defaults_file: whether to offer `--config FILE`; flags override its values.
        hidden: settings for which this command has no flags.
        **defaults: defaults of this command that differ from the settings' own.

    Raises:
        ConfigError: for anything that cannot be parsed.
        SystemExit: with 0 after `--help`.
    """
    own = {name: field for name, field in fields(cls).items() if name not in hidden}
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
            separator = facts_of(own[name]).separator
            given[name] = conversion.from_words(texts, own[name].type, separator=separator)
    values = defaults | (config_lib.load(path, cls) if path else {})
    for name in config_lib.displaced_by(cls, given) - given.keys():
        values.pop(name, None)
    values |= given
    for name, field in fields(cls).items():
        if name not in values and field.default is field.default_factory:  # both are MISSING
            raise ConfigError(
                "", "", f"{_flag(name, field)} is required: {facts_of(field).help_text}"
            )
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
    cls: type[Settings], own: Fields, prog: str, description: str, *, everything: bool
) -> _Parser:
    """Returns the parser of a command; its help shows what `everything` and the facts say."""
    positional = [_flag(name, field) for name, field in own.items() if facts_of(field).positional]
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
            field = remaining.pop(name, None)  # a command may declare a setting of a group anew
            if field is None:
                continue
            facts, is_shared = facts_of(field), group in TrainConfig.__mro__
            visible = everything or facts.basic or facts.positional or not is_shared
            left_out += not visible
            if section is None and visible:
                title = (group.__doc__ or "").partition("\n")[0].rstrip(".")
                section = parser.add_argument_group(title)
            _add(section if visible else parser, name, field, visible=visible)
    parser.add_argument("-h", "--help", action="help", help="show this help, and exit")
    more = f"show {left_out} more flags" if left_out else "show all flags"
    parser.add_argument("--help-all", action="help", help=f"{more}, and exit")
    return parser


def _add(section: Any, name: str, field: "dataclasses.Field[Any]", *, visible: bool) -> None:
    """Adds the flag of a setting to a section of the help."""
    facts, default = facts_of(field), field.default
    text = facts.help_text
    if default not in (dataclasses.MISSING, None, False, ()) and "(default" not in text:
        text += (
            f" (default: {facts.separator.join(default) if facts.separator else shown(default)})"
        )
    options: dict[str, Any] = {"help": text.replace("%", "%%") if visible else argparse.SUPPRESS}
    many = conversion.takes_many(field.type) and not facts.separator
    if field.type is bool:
        options["action"] = argparse.BooleanOptionalAction
    else:
        options["metavar"] = facts.metavar or conversion.metavar(field.type)
        options |= {"nargs": "*"} if many else {}
    if facts.positional:
        options |= {"metavar": _flag(name, field), "nargs": "*" if many else "?"}
        section.add_argument(name, **options)
        return
    aliases = [facts.alias] if facts.alias else []
    section.add_argument(*aliases, _flag(name, field), dest=name, **options)


def _flag(name: str, field: "dataclasses.Field[Any]") -> str:
    if facts_of(field).positional:
        return facts_of(field).metavar or name.upper()
    return "--" + name.replace("_", "-")


class Exit(Exception):
    """Ends a command with an exit code and one line on standard error."""

    def __init__(self, code: int, line: str) -> None:
        super().__init__(line)
        self.code = code


@dataclasses.dataclass
class Ending:
    """How a command ended."""

    code: int = 0


@contextlib.contextmanager
def ending(prog: str) -> Iterator[Ending]:
    """Turns exceptions of the block into an exit code and one line on standard error, which may be
    closed or full.

    The code is 2 for a ConfigError, or a path that is too long, circular or cannot be encoded. It
    is 1 when interrupted, or if a file or standard output cannot be read or written. When the
    reader of standard output is gone (`... | head`) it is 141, as in a shell.
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
            is_usage = isinstance(error, ConfigError) or getattr(error, "errno", None) in OF_NAMES
            end.code = EXIT_USAGE_ERROR if is_usage else 1
            print(f"{prog}: error: {for_command(error)}", file=sys.stderr)
        finally:
            streams.finish()


def command(
    cls: type[Config], prog: str, description: str, **options: Any
) -> Callable[[Callable[[Config], int]], Callable[..., int]]:
    """Makes a command of a function from settings to an exit code.

    Args:
        cls: the settings of the command.
        prog: e.g. `jaxdp.train`.
        **options: of `parse`.
    """

    def decorate(function: Callable[[Config], int]) -> Callable[..., int]:
        @functools.wraps(function)
        def main(argv: Sequence[str] | None = None) -> int:
            with ending(prog) as end:
                words = sys.argv[1:] if argv is None else argv
                name = f"python -m {prog}"
                config = parse(cls, words, prog=name, description=description, **options)
                end.code = function(config)
            return end.code

        return main

    return decorate


def main(command: Callable[[Sequence[str]], int], argv: Sequence[str] | None, prog: str) -> int:
    """Runs a command that parses its arguments itself, and returns its exit code."""
    with ending(prog) as end:
        end.code = command(sys.argv[1:] if argv is None else argv)
    return end.code
