"""Loads the result of a run from its folder."""

import pathlib
from collections.abc import Sequence
from typing import Any

from flax import nnx

from jaxdp import models
from jaxdp.build.saved_model import read_description, restore
from jaxdp.build.task import create_task
from jaxdp.errors import ConfigError
from jaxdp.result import Result
from jaxdp.rundir.layout import RunDirectory
from jaxdp.runtime import devices as devices_lib
from jaxdp.runtime import platform
from jaxdp.trainer import Trainer


class LoadedResult(Result):
    """The result of a run in a folder, which can go on."""

    def trainer(self, **settings: Any) -> Trainer:
        """Returns a trainer with the settings of the run; its `fit` continues the run.

        Where the run had objects, such as `data`, they are given again.
        """
        given = self.config.as_given().changed()
        given |= {"data": given.pop("dataset", None), "run_dir": str(self.run_dir)}
        return Trainer(**given | settings)


def load(
    run_dir: str | pathlib.Path,
    *,
    step: int | None = None,
    model: nnx.Module | None = None,
    plugins: Sequence[str] = (),
    devices: int | None = None,
    deterministic: bool = False,
) -> LoadedResult:
    """Returns the result of a run from its folder; the dataset need not be there to predict.

    Args:
        run_dir: what `run_dir` of a run or `Result.save` named.
        step: which checkpoint; by default the best by validation data, or the newest where there
            are none.
        model: for a run that was trained with a model object that jaxdp does not know: one of the
            same structure.
        plugins: files or modules that the run was trained with; those that only its folder names
            are not run.
        devices: how many to simulate on a CPU.
        deterministic: whether GPU kernels must give the same bits every time.

    Raises:
        ConfigError: if there is no run or no such checkpoint, or the model does not fit.
    """
    directory = RunDirectory(pathlib.Path(run_dir))
    precision = directory.load_config().precision
    devices_lib.ensure(devices, deterministic=deterministic, precision=precision)
    platform.check_backend()
    config = directory.load_trusted_config(plugins)
    description = read_description(directory)
    if model is None and config.model not in models.names():
        remedy = (
            "was trained with a model object; give one of the same structure:"
            f" load({str(run_dir)!r}, model=...)"
        )
        raise ConfigError("model", config.model, remedy)
    saved_step, state = restore(directory, config, description, step, model)
    summary = directory.read("summary.json")
    return LoadedResult(
        config,
        description,
        create_task(config, description),
        summary or {"status": "stopped", "metrics": {}, "steps": saved_step},
        directory.read("metrics.jsonl"),
        lambda: state,
        run_dir=directory.path,
    )
