"""Parses flags into a configuration, and turns a usage error into one line and exit code 2."""

import ast
import contextlib
import dataclasses
import inspect
import io
import itertools
import os
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import tyro

from jaxdp import config as config_lib
from jaxdp import deprecation
from jaxdp.exit_codes import EXIT_USAGE_ERROR
from jaxdp.registry import ConfigError, nearest

Config = TypeVar("Config")

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
    """Parses flags into `cls`, shown in `--help` group by group as `cls` inherits them; of a field in several groups, the last.

    Args:
        cls: frozen dataclass, or one that inherits its fields from several.
        argv: arguments without the program's name.
        defaults_file: whether to offer `--config FILE`, whose values the flags override.
        hidden: fields that this command takes no flags for.
        description: one line of at most 80 characters; longer ones are broken within words.
        **defaults: what this command assumes where it differs from the fields' own defaults.

    Raises:
        ConfigError: for anything that cannot be parsed.
        SystemExit: with 0 after `--help`.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}  # pyright: ignore[reportArgumentType]
    argv, renamed = deprecation.rename_flags(argv, fields.keys() - set(hidden))
    for each in renamed:
        print(f"warning: {each}", file=sys.stderr)
    given = {word.split("=")[0][2:].replace("-", "_") for word in argv if word.startswith("--")}
    options = [*(name for name in fields if name not in hidden), "help", *(["config"] if defaults_file else [])]
    for name in sorted(given - set(options)):
        flags = [f"--{option.replace('_', '-')}" for option in options]
        raise ConfigError(name, "", "unknown flag; " + nearest("--" + name.replace("_", "-"), flags))
    path = _value_of("--config", argv) if defaults_file else None
    values = defaults | (config_lib.load(path, cls) if path else {})
    for pair in config_lib.EXCLUSIVE:
        for name, partner in (pair, pair[::-1]):
            if name in given and partner not in given:
                values.pop(partner, None)

    sections = [base for base in reversed(cls.__mro__) if inspect.get_annotations(base)]
    for section in sections if {"-h", "--help"} & set(argv) else ():
        _describe_fields(section)
    arguments: list[Any] = []
    last = {name: section for section in sections for name in inspect.get_annotations(section)}
    if defaults_file:
        file_type = Annotated[str | None, tyro.conf.arg(metavar="FILE", help=_FILE_HELP, help_behavior_hint="")]
        arguments.append(("config", file_type, dataclasses.field(default=path)))
    for section in sections:
        own = inspect.get_annotations(section)
        required = any(fields[name].default is fields[name].default_factory for name in own)  # both are MISSING
        known = {name: values[name] for name in own if name in values}
        shown: Any = _without_flags(section, {name for name in fields if name in hidden or last[name] is not section})
        default = dataclasses.field() if required else dataclasses.field(default=shown(**known))
        title = re.sub("Config$", "", section.__name__).lower()
        arguments.append((title, Annotated[shown, tyro.conf.OmitArgPrefixes], default))
    command = dataclasses.make_dataclass("command", arguments, frozen=True, kw_only=True)
    parsed = _run_tyro(command, argv, prog, description)
    return cls(**{name: value for section in sections for name, value in _fields_of(parsed, section).items()})


def _describe_fields(section: type) -> None:
    """Tells tyro the help texts of the section's fields, in which it would keep the line breaks of the source."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(definition, ast.ClassDef)
    fields = {field.name: field for field in dataclasses.fields(section)}
    for field, text in itertools.pairwise(definition.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            fields[ast.unparse(field.target)].metadata = {"help": " ".join(ast.literal_eval(text.value).split())}  # pyright: ignore[reportAttributeAccessIssue]


def _without_flags(section: type, names: set[str]) -> type:
    """Returns a subclass of the section in which these fields have no flags; the others keep their help."""
    fields = [field for field in dataclasses.fields(section) if field.name in names]
    fixed = [(field.name, Annotated[field.type, tyro.conf.Fixed, tyro.conf.Suppress], _default(field)) for field in fields]
    if not fixed:
        return section
    namespace = {"__doc__": section.__doc__}
    return dataclasses.make_dataclass(section.__name__, fixed, bases=(section,), frozen=True, namespace=namespace)


def _default(field: Any) -> Any:
    return dataclasses.field(default=field.default, default_factory=field.default_factory)


def _fields_of(parsed: Any, section: type) -> dict[str, Any]:
    part = getattr(parsed, re.sub("Config$", "", section.__name__).lower())
    return {name: getattr(part, name) for name in inspect.get_annotations(section)}


def _value_of(flag: str, argv: list[str]) -> str | None:
    value = None
    for word, following in zip(argv, [*argv, ""][1:], strict=True):
        if word == flag:
            value = following
        elif word.startswith(flag + "="):
            value = word.partition("=")[2]
    return value


def _run_tyro(command: type[Config], argv: list[str], prog: str, description: str) -> Config:
    """Runs tyro, and raises ConfigError with the first sentence of the box in which it explains a usage error."""
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            return tyro.cli(command, args=argv, prog=prog, description=description)
    except SystemExit as stop:
        if not stop.code:
            raise
        lines = [re.sub(r"[╭╮╰╯│─]", "", line).strip() for line in box.getvalue().splitlines()[1:]]
        sentence = " ".join(lines[: lines.index("")] if "" in lines else lines)
        raise ConfigError("", "", f"{sentence} (see {prog} --help)") from stop


def main(command: Callable[[Sequence[str]], int], argv: Sequence[str] | None, prog: str) -> int:
    """Runs a command and returns its exit code.

    The code is 2, with one line on standard error, for a ConfigError, 1 when interrupted, and 141, as a shell has it, when nobody
    reads what the command prints (`... | head`).
    """
    try:
        code = command(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return code
    except ConfigError as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return EXIT_USAGE_ERROR
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in the buffer goes there at exit
        return 128 + signal.SIGPIPE
