"""The error for a setting that cannot work."""

import re
from typing import Any

from jaxdp.text.messages import brief, printable, shown

# A flag, perhaps with a value; the flags of a command to run stay as they are.
_VALUE = r"(?:[A-Z0-9]|(?:binary|imagenet|pages|skip|[0-9a-f]{6})\b)[^\s;,]*"


_FLAG = re.compile(rf"python -m [^;]*|--(?P<name>[a-z][a-z-]*)(?: (?P<value>{_VALUE}))?")


class ConfigError(ValueError):
    """An invalid setting. Commands print it as one line and exit with code 2.

    Its text, which is fit for a terminal, names settings by their flags on the command line, and
    by their keywords in a program.

    Args:
        field: name of the setting as in the configuration, e.g. `global_batch_size`; empty if it
            concerns no single setting.
        value: the offending value.
        remedy: what is wrong and what to do instead, one sentence, in which settings are flags.
    """

    names_flags = False  # a command sets it while it runs

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(field, value, remedy)
        self.field = field
        self.value = value
        self.remedy = remedy

    def __str__(self) -> str:
        value, remedy = brief(self.value), self.remedy
        if self.names_flags:
            head = f"--{self.field.replace('_', '-')} {value}".rstrip()
        else:
            head = f"{self.field}={value}".removesuffix("=")
            remedy = _FLAG.sub(_keyword, remedy)
        return printable(f"{head}: {remedy}" if self.field else remedy)

    def __reduce__(self) -> Any:
        # Another process may not know the class of a value.
        return ConfigError, (self.field, shown(self.value), self.remedy)


def _keyword(flag: re.Match[str]) -> str:
    """Returns a flag as the keyword that a program gives."""
    if flag["name"] is None:
        return flag[0]
    name = flag["name"].replace("-", "_")
    return f"{name}={flag['value']}" if flag["value"] else name
