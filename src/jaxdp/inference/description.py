"""What a run's model knows of its dataset, from dataset.json."""

import dataclasses
from typing import Any

from jaxdp.data.sources import Description
from jaxdp.rundir.layout import RunDirectory


def read_description(run: RunDirectory) -> Description:
    """Returns what the run's model needs to know of its dataset.

    Raises:
        ConfigError: if there is no run, or its dataset.json is damaged.
    """
    # A later version may have more.
    known = {field.name for field in dataclasses.fields(Description)}
    content = {name: value for name, value in run.read("dataset.json").items() if name in known}
    plain: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in content.items()
    }
    return Description(**plain)
