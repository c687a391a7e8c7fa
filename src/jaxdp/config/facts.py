"""Defines the facts of a setting."""

import dataclasses
from typing import Any, Literal

from jaxdp.config.values import Range
from jaxdp.plugins.listing import with_names


@dataclasses.dataclass(frozen=True)
class Facts:
    """Facts of a setting.

    The defaults are the safe choices. Without other facts, a setting is fixed when a run resumes,
    is part of the name of the run's folder, and is part of the compiled step.

    Attributes:
        help: text of `--help`; `help_text` names what {PLACE} stands for.
        checks: ranges of its number, or conditions of its text.
        metavar: the placeholder of the value in `--help`; "" to derive it from the type.
        numbers: types of number that a setting of text accepts in YAML and Python.
        separator: the separator of names in one word; "" if each word is a name.
        positional: whether it is positional on the command line, without a flag.
        alias: a short flag.
        basic: whether `--help` of training shows it. `--help-all` shows all settings.
        resume: whether a run continues with another value. `fixed`: never; `start`: not, but
            another run may start from its weights; `presence`: while it stays zero or nonzero;
            `free`: always.
        program: whether the compiled step depends on it.
        names_run: whether it is part of the hash in a run's folder. `if_set`: where it has a value,
            as settings have that older runs lack; `never`: such a setting is free on resume.
        saved: whether `config.yaml` keeps it. A setting that only says how a command runs is not
            kept and names no run; the program does not depend on it.
        set_by: objects that determine it, and with which it cannot be given, separated by spaces.
        each_fit: whether each call of `Trainer.fit` may change it.
        loads_data: whether `jaxdp.data.load` accepts it.
        excludes: setting with which it cannot be combined.
        none: what None means as a value of its own; "" for a setting that is never None in a run.
        default: its default.
        name: its name.
        annotation: its type.
    """

    help: str
    checks: tuple[Range, ...] = ()
    metavar: str = ""
    numbers: tuple[type, ...] = ()
    separator: str = ""
    positional: bool = False
    alias: str = ""
    basic: bool = False
    resume: Literal["fixed", "start", "presence", "free"] = "fixed"
    program: bool = True
    names_run: Literal["always", "if_set", "never"] = "always"
    saved: bool = True
    set_by: str = ""
    each_fit: bool = True
    loads_data: bool = True
    excludes: str = ""
    none: str = ""
    default: Any = None
    name: str = ""
    annotation: Any = None

    @property
    def help_text(self) -> str:
        return with_names(self.help)
