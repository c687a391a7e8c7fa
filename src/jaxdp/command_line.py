"""Parses flags into settings, and turns a usage error into one line and exit code 2."""

import argparse
import contextlib
import dataclasses
import errno
import functools
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

from jaxdp import config as config_lib
from jaxdp import deprecation
from jaxdp.config import Settings, TrainConfig, conversion, facts_of, fields
from jaxdp.exit_codes import EXIT_USAGE_ERROR
from jaxdp.parsing import printable
from jaxdp.registry import ConfigError, closest, shown
from jaxdp.runtime import large_pages, streams

Config = TypeVar("Config", bound=Settings)

# Errors of a name that no file can have.
OF_NAMES = (errno.ENAMETOOLONG, errno.ELOOP, errno.EILSEQ)

_FILE_HELP = "YAML file of settings, e.g. the config.yaml of a run; flags override it"
_WIDEST_HELP = 100  # columns


class _Parser(argparse.ArgumentParser):
    """A parser that raises ConfigError, and whose help raises what standard output raises."""

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
        defaults_file: whether to offer `--config FILE`, whose values the flags override.
        hidden: settings for which this command has no flags.
        description: one line.
        **defaults: defaults of this command that differ from the settings' own.

    Raises:
        ConfigError: for anything that cannot be parsed.
        SystemExit: with 0 after `--help`.
    """
    shown_fields = {name: field for name, field in fields(cls).items() if name not in hidden}
    words = [_with_dashes(word) for word in argv]
    _check_flags(words, [*shown_fields, "help", "help_all", "config"], prog)
    parser = _parser(cls, shown_fields, prog, description, everything="--help-all" in words)
    if defaults_file:
        parser.add_argument("--config", metavar="FILE", help=_FILE_HELP, default=None)
    read = vars(parser.parse_args(words))
    path = read.pop("config", None)
    given: dict[str, Any] = {}
    for name, value in read.items():
        field, facts = shown_fields[name], facts_of(shown_fields[name])
        if not isinstance(value, bool):
            texts: list[str] = value if isinstance(value, list) else [value]
            value = conversion.from_words(name, texts, field.type, separator=facts.separator)
        given[name] = _convert(field, value)
    values = defaults | (config_lib.load(path, cls) if path else {})
    for name in config_lib.displaced_by(cls, given.keys()) - given.keys():
        values.pop(name, None)
    values |= given
    for name, field in fields(cls).items():
        if name not in values and field.default is field.default_factory:  # both are MISSING
            facts = facts_of(field)
            raise ConfigError("", "", f"{_flag(name, facts)} is required: {facts.help}")
    return cls.of(**values)


def _convert(field: "dataclasses.Field[Any]", value: Any) -> Any:
    try:
        return config_lib.convert_for(field, value)
    except ConfigError as error:  # a flag has words: neither null nor another type
        remedy = error.remedy.replace(" or null", "").removesuffix(", not a string")
        raise ConfigError(error.field, error.value, remedy) from error


def given_flags(argv: Sequence[str]) -> set[str]:
    """Returns the names of the settings that the arguments give."""
    return {_name(word) for word in argv if word.startswith("--")}


def _name(word: str) -> str:
    return word.partition("=")[0][2:].replace("-", "_")


def _with_dashes(word: str) -> str:
    """Returns an argument with `-` instead of `_` in the name of its flag."""
    if not word.startswith("--"):
        return word
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value


def _check_flags(words: Sequence[str], known: Sequence[str], prog: str) -> None:
    """Raises ConfigError for the first flag that the command does not have."""
    for name in sorted(given_flags(words) - {*known} - {f"no_{name}" for name in known}):
        if sentence := deprecation.removal(name, prog.rpartition(".")[2]):
            raise ConfigError(name, "", sentence)
        flags = ["--" + each.replace("_", "-") for each in known]
        close = closest("--" + name.replace("_", "-"), flags)
        remedy = f"did you mean {close}? " if close else ""
        raise ConfigError(name, "", f"unknown flag; {remedy}see {prog} --help-all")


def _parser(
    cls: type[Settings],
    shown_fields: "dict[str, Any]",
    prog: str,
    description: str,
    *,
    everything: bool,
) -> _Parser:
    width = min(shutil.get_terminal_size().columns, _WIDEST_HELP)
    facts = map(facts_of, shown_fields.values())
    names = [_flag(name, each) for name, each in zip(shown_fields, facts, strict=True)]
    positional = [name for name in names if not name.startswith("--")]
    parser = _Parser(
        prog,
        " ".join([prog, *positional, "[FLAGS]"]),
        description,
        allow_abbrev=False,
        add_help=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: argparse.HelpFormatter(
            prog, max_help_position=30, width=width
        ),
    )
    left_out, remaining = 0, dict(shown_fields)
    for group in cls.__mro__:
        own = [name for name in vars(group).get("__annotations__", ()) if name in remaining]
        section: Any = None
        for name in own:
            field = remaining.pop(name)  # a command may declare a setting of a group anew
            facts = facts_of(field)
            own_group = group not in TrainConfig.__mro__
            visible = everything or facts.basic or facts.positional or own_group
            left_out += not visible
            if section is None and visible:
                title = (group.__doc__ or "").partition("\n")[0].rstrip(".")
                section = parser.add_argument_group(title)
            _add(section if visible else parser, name, field, visible=visible)
    parser.add_argument("-h", "--help", action="help", help="show this help, and exit")
    more = f"show {left_out} more flags" if left_out else "show all flags"
    parser.add_argument("--help-all", action="help", help=f"{more}, and exit")
    return parser


def _add(section: Any, name: str, field: Any, *, visible: bool) -> None:
    """Adds the flag of a setting to a section of the help."""
    facts = facts_of(field)
    text = facts.help
    default = None if field.default is dataclasses.MISSING else field.default
    if default not in (None, False, ()) and "(default" not in text:
        text += (
            f" (default: {facts.separator.join(default) if facts.separator else shown(default)})"
        )
    known: dict[str, Any] = {"help": text.replace("%", "%%") if visible else argparse.SUPPRESS}
    if field.type is bool:
        section.add_argument(_flag(name, facts), action="store_true", **known)
        off = f"--no-{name.replace('_', '-')}"
        section.add_argument(off, dest=name, action="store_false", help=argparse.SUPPRESS)
        return
    known["metavar"] = facts.metavar or conversion.metavar(field.type)
    if conversion.takes_many(field.type) and not facts.separator:
        known["nargs"] = "*"
    if facts.positional:
        known |= {"metavar": _flag(name, facts), "nargs": known.get("nargs", "?")}
        section.add_argument(name, **known)
        return
    aliases = [facts.alias] if facts.alias else []
    section.add_argument(*aliases, _flag(name, facts), dest=name, **known)


def _flag(name: str, facts: config_lib.Facts) -> str:
    if facts.positional:
        return facts.metavar or name.upper()
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
    """Turns exceptions of the block into an exit code and one line on standard error.

    The code is 2 for a ConfigError, 1 when interrupted or where a file or standard output cannot be
    read or written, and 141, as in a shell, when the reader of standard output is gone
    (`... | head`).
    """
    end = Ending()
    streams.complete()
    try:
        with streams.standard_output():
            yield end
            sys.stdout.flush()
        return
    except Exit as error:
        end.code = error.code
        print(error, file=sys.stderr)
        return
    except ConfigError as error:
        message, end.code = str(error), EXIT_USAGE_ERROR
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        end.code = 1
        return
    except BrokenPipeError:
        streams.give_up()
        end.code = 128 + signal.SIGPIPE
        return
    except streams.OutputError as error:
        streams.give_up()
        message, end.code = str(error), 1
    except OSError as error:
        message, end.code = str(error), EXIT_USAGE_ERROR if error.errno in OF_NAMES else 1
    print(f"{prog}: error: {printable(message)}", file=sys.stderr)


def command(
    cls: type[Config], prog: str, description: str, *, restarts: bool = True, **options: Any
) -> Callable[[Callable[[Config], int]], Callable[..., int]]:
    """Makes a command of a function from settings to an exit code.

    Args:
        cls: the settings of the command.
        prog: e.g. `jaxdp.train`.
        restarts: whether the process may start again with large pages of memory.
        **options: those of `parse`.
    """

    def decorate(run: Callable[[Config], int]) -> Callable[..., int]:
        @functools.wraps(run)
        def main(argv: Sequence[str] | None = None) -> int:
            if restarts:
                large_pages.restart()
            best_effort: Any = streams.BestEffortStream(sys.stderr)
            with contextlib.redirect_stderr(best_effort), ending(prog) as end:
                words = sys.argv[1:] if argv is None else argv
                name = f"python -m {prog}"
                end.code = run(parse(cls, words, prog=name, description=description, **options))
            return end.code

        return main

    return decorate


def main(command: Callable[[Sequence[str]], int], argv: Sequence[str] | None, prog: str) -> int:
    """Runs a command that parses its arguments itself, and returns its exit code."""
    with ending(prog) as end:
        end.code = command(sys.argv[1:] if argv is None else argv)
    return end.code
