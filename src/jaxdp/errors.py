"""The error for a setting that cannot work, and `flag`, by which its remedy names settings."""

from typing import Any

from jaxdp.text.flags import Sentence, flag, for_python
from jaxdp.text.messages import brief, shown

__all__ = ["ConfigError", "flag"]


class ConfigError(ValueError):
    """An invalid setting. Commands print it as one line and exit with code 2.

    Its text, which is fit for a terminal, names settings by their keywords; `for_command` returns
    the line with their flags.

    Args:
        field: name of the setting as in the configuration, e.g. `global_batch_size`; empty if it
            concerns no single setting.
        value: the offending value.
        remedy: what is wrong and what to do instead, one sentence, which names settings by `flag`.
    """

    def __init__(self, field: str, value: object, remedy: str) -> None:
        self.field = field
        self.value = value
        self.remedy = Sentence(remedy)
        super().__init__(field, value, self.remedy)

    @property
    def template(self) -> str:
        """The text with its parts."""
        remedy = self.remedy.template
        # Unquoted, because the value may be the name of an object.
        return (
            f"{flag(self.field, brief(self.value), quote='')}: {remedy}" if self.field else remedy
        )

    def __str__(self) -> str:
        return for_python(self)

    def __reduce__(self) -> Any:
        # Another process may not know the class of a value.
        return ConfigError, (self.field, shown(self.value), self.remedy)
