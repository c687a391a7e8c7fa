"""Loads the result of a run from its folder."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxdp import models, tasks
from jaxdp.build import pretrained
from jaxdp.build.initial_weights import read_initial
from jaxdp.build.inputs import NOTHING, Inputs
from jaxdp.build.model import create_model
from jaxdp.build.saved_model import read_description, restore
from jaxdp.build.task import create_task
from jaxdp.errors import ConfigError
from jaxdp.plugins.loading import load_plugins
from jaxdp.result import Result
from jaxdp.rundir.layout import RunDirectory
from jaxdp.runtime import devices as devices_lib
from jaxdp.runtime import platform
from jaxdp.step.keys import create_key
from jaxdp.step.state import create_train_state
from jaxdp.text.messages import some
from jaxdp.trainer import Trainer


class LoadedResult(Result):
    """The result of a run in a folder, which can be continued."""

    def trainer(self, **settings: Any) -> Trainer:
        """Returns a trainer with the settings of the run; its `fit` continues the run. For weights
        by name, `fit` starts from them.

        If the run used objects, such as `data`, pass them again.
        """
        given = self.config.as_given().changed()
        dataset = given.pop("dataset", None)
        if self.run_dir is not None:  # else it has weights by name, and `init_from` names them
            given |= {"data": dataset, "run_dir": str(self.run_dir)}
        objects = {"model": self._inputs.model, "task": self._inputs.task or self._inputs.loss}
        given |= {name: value for name, value in objects.items() if value is not None}
        return Trainer(**given | settings)


def load(
    run_dir: str | pathlib.Path,
    *,
    step: int | None = None,
    model: nnx.Module | None = None,
    task: tasks.Task | Callable[..., Any] | None = None,
    plugins: Sequence[str] = (),
    devices: int | None = None,
    deterministic: bool = False,
) -> LoadedResult:
    """Returns the result of a run from its folder. Prediction does not require the dataset.

    Args:
        run_dir: the folder given as `run_dir` or to `Result.save`; or weights by name, as for
            `--init-from`, which predict the classes that they were trained on.
        step: which checkpoint; by default the best by validation data, or the newest without
            validation data.
        model: a model of the same structure, for a run that was trained with a model object that
            jaxdp does not know.
        task: the task object or loss function, for a run that was trained with one.
        plugins: files or modules that the run was trained with. Plugins that only its folder names
            are not run.
        devices: how many to simulate on a CPU.
        deterministic: whether GPU kernels must give the same bits every time.

    Raises:
        ConfigError: if there is no run or no such checkpoint, or the model does not fit.
    """
    try:
        named = pretrained.find(str(run_dir))
        if named is not None:
            unused = {"step": step, "model": model, "task": task}
            for setting, value in unused.items():
                if value is not None:
                    raise ConfigError(setting, value, "is for a run, not for weights by name")
            load_plugins(plugins)
            own = pretrained.for_prediction(named)
            precision = own.settings.precision
            devices_lib.ensure(devices, deterministic=deterministic, precision=precision)
            platform.check_backend()
            return _load_named(str(run_dir), own)
    except ConfigError as error:
        field = "run_dir" if error.field == "init_from" else error.field
        raise ConfigError(field, error.value, error.remedy) from error
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
    is_task = isinstance(task, tasks.Task)
    if task is not None and (isinstance(task, type) or not (is_task or callable(task))):
        raise ConfigError("task", task, "must be a task object or a loss function")
    inputs = Inputs(model=model, task=task if is_task else None, loss=None if is_task else task)
    own_task = create_task(config, description, inputs)
    if task is not None and description.own_task and own_task.name != description.own_task:
        problem = f"the run was trained with {description.own_task}; give that"
        raise ConfigError("task", own_task.name, problem)
    saved_step, state = restore(directory, config, description, step, model)
    summary = directory.read("summary.json")
    result = LoadedResult(
        config,
        description,
        own_task,
        summary or {"status": "stopped", "metrics": {}, "steps": saved_step},
        directory.read("metrics.jsonl"),
        lambda: state,
        run_dir=directory.path,
    )
    result._inputs = inputs
    return result


def _load_named(name: str, own: pretrained.Own) -> LoadedResult:
    """Returns a model with weights by name, for the classes that they were trained on."""
    settings, description, metrics = own
    # Evaluation takes batches of this size.
    config = settings.replace(dataset=name, init_from=name).fill(global_batch_size=64)
    weights = read_initial(name, config, description, NOTHING)
    if missing := (*weights.fresh, *weights.skipped):
        raise ConfigError("init_from", name, f"does not fit {config.model}: {some(missing)}")
    model = create_model(
        config, description, rngs=nnx.Rngs(create_key(0)), dtype=jnp.dtype(config.precision)
    )
    weights.load_into(model)
    state = jax.tree.map(np.asarray, create_train_state(model, optax.identity()))
    summary = {"status": "done", "metrics": metrics, "steps": 0}
    task = create_task(config, description)
    return LoadedResult(config, description, task, summary, [], lambda: state)
