"""Parses flags into a configuration, and turns a usage error into one line and exit code 2."""

import ast
import contextlib
import dataclasses
import errno
import functools
import inspect
import io
import itertools
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import tyro

from jaxdp import config as config_lib
from jaxdp import deprecation
from jaxdp.config import Settings
from jaxdp.exit_codes import EXIT_USAGE_ERROR
from jaxdp.parsing import printable
from jaxdp.registry import ConfigError, nearest
from jaxdp.runtime import streams

Config = TypeVar("Config", bound=Settings)

OF_NAMES = (errno.ENAMETOOLONG, errno.ELOOP, errno.EILSEQ)

_FILE_HELP = "YAML file of settings, e.g. the config.yaml of a run; flags override it"


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

    Of a name that several groups have, the last is a flag.

    Args:
        cls: the settings that the command takes.
        argv: arguments without the program's name.
        defaults_file: whether to offer `--config FILE`, whose values the flags override.
        hidden: settings that this command takes no flags for.
        description: one line of at most 80 characters; longer ones are broken within words.
        **defaults: what this command assumes where it differs from the settings' own defaults.

    Raises:
        ConfigError: for anything that cannot be parsed.
        SystemExit: with 0 after `--help`.
    """
    places = cls.places()
    argv, renamed = deprecation.rename_flags(argv, places.keys() - set(hidden))
    for each in renamed:
        print(f"warning: {each}", file=sys.stderr)
    given = {word.split("=")[0][2:].replace("-", "_") for word in argv if word.startswith("--")}
    options = [
        *(name for name in places if name not in hidden),
        "help",
        *(["config"] if defaults_file else []),
    ]
    for name in sorted(given - set(options)):
        if sentence := deprecation.removal(name, prog.rpartition(".")[2]):
            raise ConfigError(name, "", sentence)
        flags = [f"--{option.replace('_', '-')}" for option in options]
        raise ConfigError(
            name, "", "unknown flag; " + nearest("--" + name.replace("_", "-"), flags)
        )
    path = _value_of("--config", argv) if defaults_file else None
    values = {
        name: config_lib.convert(name, value, places[name].field.type)
        for name, value in defaults.items()
    }
    values |= config_lib.load(path, cls) if path else {}
    for name in config_lib.displaced_by(given) - given:
        values.pop(name, None)
    parsed = _run_tyro(
        _command(cls, values, hidden, path, defaults_file=defaults_file), argv, prog, description
    )
    return cls.of(
        **{
            name: getattr(parsed if group is None else getattr(parsed, group), field.name)
            for name, (group, field) in places.items()
        }
    )


def _command(
    cls: type[Settings],
    values: Mapping[str, Any],
    hidden: Sequence[str],
    path: str | None,
    *,
    defaults_file: bool,
) -> type:
    """Returns a dataclass from which tyro makes the flags of a command.

    Args:
        values: defaults in place of those of the settings.
        hidden: settings without a flag.
        path: the default of `--config`.
    """
    arguments: list[Any] = []
    if defaults_file:
        file_type = Annotated[
            str | None, tyro.conf.arg(metavar="FILE", help=_FILE_HELP, help_behavior_hint="")
        ]
        arguments.append(("config", file_type, dataclasses.field(default=path)))
    texts = _help_texts(cls)
    places = cls.places()
    for field in dataclasses.fields(cls):
        group = cls.groups().get(field.name)
        if group is None:
            own = (
                dataclasses.field(default=values[field.name])
                if field.name in values
                else _default(field)
            )
            own.metadata = {"help": texts[field.name]}  # pyright: ignore
            arguments.append((field.name, field.type, own))
            continue
        names = {
            place.field.name: name for name, place in places.items() if place.group == field.name
        }
        known = {inner: values[name] for inner, name in names.items() if name in values}
        shown: Any = _with_flags(
            group, {inner for inner, name in names.items() if name not in hidden}
        )
        # Both are MISSING.
        required = any(each.default is each.default_factory for each in dataclasses.fields(group))
        default: Any = (
            dataclasses.field() if required else dataclasses.field(default=shown(**known))
        )
        default.metadata = {"help": group.__doc__}  # else tyro looks through the source for it
        arguments.append((field.name, Annotated[shown, tyro.conf.OmitArgPrefixes], default))
    return dataclasses.make_dataclass("command", arguments, frozen=True, kw_only=True)


def _help_texts(cls: type) -> dict[str, str]:
    """Returns the strings that stand below the fields of a class, without the line breaks of the
    source, which tyro would keep.
    """
    texts = {}
    for section in reversed(cls.__mro__[: cls.__mro__.index(Settings)]):
        for field, text in itertools.pairwise(
            _definitions(section.__module__)[section.__name__].body
        ):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                texts[ast.unparse(field.target)] = " ".join(ast.literal_eval(text.value).split())  # pyright: ignore
    return texts


@functools.cache
def _definitions(module: str) -> dict[str, ast.ClassDef]:
    """Returns the classes of a module by name.

    To look each up with `inspect` takes a second for all of `jaxdp.train`.
    """
    source = inspect.getsource(sys.modules[module])
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}


def _with_flags(group: type, names: set[str]) -> type:
    """Returns a subclass of a group in which only these fields have flags, with their help."""
    texts = _help_texts(group)
    fields = []
    for field in dataclasses.fields(group):
        own = _default(field)
        own.metadata = {"help": texts[field.name]}
        shown = (
            field.type
            if field.name in names
            else Annotated[field.type, tyro.conf.Fixed, tyro.conf.Suppress]
        )
        fields.append((field.name, shown, own))
    # Values are checked once all are there, and without tyro, which would put its words around the
    # error.
    namespace = {"__doc__": group.__doc__, "__post_init__": lambda self: None}
    return dataclasses.make_dataclass(
        group.__name__, fields, bases=(group,), frozen=True, namespace=namespace
    )


def _default(field: Any) -> Any:
    return dataclasses.field(default=field.default, default_factory=field.default_factory)


def _value_of(flag: str, argv: list[str]) -> str | None:
    value = None
    for word, following in zip(argv, [*argv, ""][1:], strict=True):
        if word == flag:
            value = following
        elif word.startswith(flag + "="):
            value = word.partition("=")[2]
    return value


def _run_tyro(command: type, argv: list[str], prog: str, description: str) -> Any:
    """Runs tyro, and raises ConfigError with the first sentence of the box in which it explains a
    usage error.
    """
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            return tyro.cli(command, args=argv, prog=prog, description=description)
    except SystemExit as stop:
        if not stop.code:
            raise
        lines = [re.sub(r"[╭╮╰╯│─]", "", line).strip() for line in box.getvalue().splitlines()[1:]]
        sentence = " ".join(lines[: lines.index("")] if "" in lines else lines)
        # One of our own, which names the flag.
        explained = re.sub(r"^Error parsing (--[\w-]+): (?=\1 )", "", sentence)
        if explained != sentence:
            raise ConfigError("", "", explained) from stop
        raise ConfigError("", "", f"{sentence} (see {prog} --help)") from stop


def main(command: Callable[[Sequence[str]], int], argv: Sequence[str] | None, prog: str) -> int:
    """Runs a command and returns its exit code.

    The code is 2, with one line on standard error, for a ConfigError, 1 when interrupted or where a
    file or standard output cannot be read or written, and 141, as a shell has it, when nobody reads
    what the command prints (`... | head`).
    """
    streams.complete()
    try:
        with streams.standard_output():
            code = command(sys.argv[1:] if argv is None else argv)
            sys.stdout.flush()
        return code
    except ConfigError as error:
        message, code = str(error), EXIT_USAGE_ERROR
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return 1
    except BrokenPipeError:
        streams.give_up()
        return 128 + signal.SIGPIPE
    except streams.OutputError as error:
        streams.give_up()
        message, code = str(error), 1
    except (
        OSError
    ) as error:  # a name that no file can have, or a folder or disk that cannot be read or written
        message, code = str(error), EXIT_USAGE_ERROR if error.errno in OF_NAMES else 1
    print(f"{prog}: error: {printable(message)}", file=sys.stderr)
    return code
