"""What a run's model knows of its dataset, from dataset.json or, where that is damaged, from the dataset itself."""

import contextlib
import dataclasses
from typing import Any

from jaxdp.components import open_data
from jaxdp.config import TrainConfig
from jaxdp.data.sources import Description
from jaxdp.run_directory import RunDirectory
from jaxdp.run_files import DamagedFile, warn


def read_description(run: RunDirectory, config: TrainConfig | None = None) -> Description:
    """Returns what the run's model needs to know of its dataset; if its file is damaged, it is made again from the dataset.

    Args:
        config: settings of the run, which name the dataset; None where it is not to be opened.

    Raises:
        ConfigError: if there is no run, or neither the file nor the dataset can be read.
    """
    try:
        content = run.read_dataset()
    except DamagedFile as damaged:
        if config is None:
            raise
        try:
            description = open_data(config)[1].describe()
        except Exception as error:  # whatever the sources of others raise
            raise damaged from error
        warn(f"{damaged.path} cannot be read ({damaged.problem}); made again from {config.data.dataset}")
        if not run.is_being_written():
            with contextlib.suppress(OSError):  # a folder that is only read
                run.write_dataset(dataclasses.asdict(description))
        return description
    known = {field.name for field in dataclasses.fields(Description)}  # a later version may have more
    plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in content.items()}
    return Description(**{name: value for name, value in plain.items() if name in known})
