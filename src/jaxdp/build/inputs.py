"""Objects that a program gives for what settings name: a model, a dataset, a task, an optimizer."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import optax
from flax import nnx

from jaxdp import models, tasks
from jaxdp.config import OBJECT, TrainConfig, fields
from jaxdp.data.dataset import Dataset
from jaxdp.errors import ConfigError
from jaxdp.models.layers import BatchNorm
from jaxdp.rundir.object_digests import digest
from jaxdp.text.console import say
from jaxdp.text.messages import shown


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The parts of a run that were given as objects; None for parts that its settings name.

    Attributes:
        model: maps normalized images, float32 (N, H, W, C), to outputs.
        task: its losses, sums and metrics.
        loss: a loss function `(outputs, targets) -> (N,)` instead of a task.
        optimizer: has its own learning rate.
        schedule: learning rate as a function of the step.
        weights: to start from: what they are called, arrays by name, and the classes.
        digests: of the values that losses and optimizers held when they were given, by setting.
    """

    model: nnx.Module | None = None
    dataset: Dataset | None = None
    task: tasks.Task | None = None
    loss: Callable[..., Any] | None = None
    optimizer: optax.GradientTransformation | None = None
    schedule: optax.Schedule | None = None
    weights: tuple[str, Mapping[str, Any], tuple[str, ...]] | None = None
    digests: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])

    @property
    def has_own_task(self) -> bool:
        """Whether a program gave losses that no name stands for."""
        if self.task is not None:
            return tasks.keywords_of(self.task) is None
        return self.loss is not None


NOTHING = Inputs()  # everything by name
_PER_DEVICE = {nnx.BatchNorm, nnx.Dropout}


def take_inputs(given: Mapping[str, Any]) -> tuple[TrainConfig, Inputs]:
    """Returns the settings that names and plain values make, and the objects among them.

    Raises:
        ConfigError: for a value of another type than the setting's, and for settings that
            contradict an object.
    """
    values, inputs = dict(given), dict[str, Any]()
    _take_model(values, inputs)
    data, task = values.get("dataset"), values.get("task")
    if isinstance(data, Dataset):
        refuse(values, "data")
        inputs["dataset"], values["dataset"] = data, data.name
    else:
        wanted = (
            "a dataset, or a Dataset of jaxdp.data.load, from_folder, from_dataset, from_arrays"
        )
        _check_name("data", data, f"{wanted}(images, labels)")
    is_task = isinstance(task, tasks.Task)
    if isinstance(task, str | type | None) or not (is_task or callable(task)):
        _check_name("task", task, "a task, a task, or a loss function of outputs and targets")
    else:
        refuse(values, "task")
        inputs["task" if is_task else "loss"] = task
        values["task"] = task.name if is_task else None
        if is_task:  # a registered one can be made again by its name
            values["task_kwargs"] = tasks.keywords_of(task) or {}
    _take_optimizer(values, inputs)
    if isinstance(values.get("init_from"), tuple):
        inputs["weights"], values["init_from"] = values["init_from"], OBJECT
    taken = Inputs(**inputs)
    objects: dict[str, Any] = {"optimizer": taken.optimizer, "learning_rate": taken.schedule}
    if taken.has_own_task:
        objects["task"] = taken.task or taken.loss
    digests = {name: digest(value) for name, value in objects.items() if value is not None}
    return TrainConfig.of(**values), dataclasses.replace(taken, digests=digests)


def _take_model(values: dict[str, Any], inputs: dict[str, Any]) -> None:
    model = values["model"]
    if not isinstance(model, nnx.Module):
        _check_name("model", model, "a model, or an nnx.Module")
        return
    refuse(values, "model")
    inputs["model"] = model
    named = models.constructor_of(model)
    values["model"], values["model_kwargs"] = named or (type(model).__name__, {})
    modules = [module for _, module in nnx.iter_modules(model)]
    kinds = {type(module) for module in modules} & _PER_DEVICE
    if kinds:
        names = " and ".join(sorted(f"nnx.{kind.__name__}" for kind in kinds))
        say(
            f"note: {names} in a model: each sees the examples of one device only, so that results"
            " depend on the number of devices; the layers of jaxdp.models.layers do not"
        )
    of_flax = [each for each in modules if type(each).__module__.startswith("flax.")]
    if any(getattr(module, "axis_name", None) for module in of_flax):
        remedy = (
            "a layer of it names an axis of devices (axis_name), which only some strategies have;"
            " leave it out, or use jaxdp.models.layers.BatchNorm"
        )
        raise ConfigError("model", type(model).__name__, remedy)
    mode, remat = values.get("batch_norm"), values.get("remat", "none")
    if str(mode or "replica") != "replica" and any(isinstance(m, nnx.BatchNorm) for m in modules):
        remedy = (
            "nnx.BatchNorm normalizes over what one device sees; use jaxdp.models.layers.BatchNorm"
            " in the model, or replica"
        )
        raise ConfigError("batch_norm", mode, remedy)
    if remat != "none" and not any(isinstance(module, BatchNorm) for module in modules):
        remedy = "works with models that run their blocks by jaxdp.models.layers.run_blocks"
        raise ConfigError("remat", remat, remedy)


def _take_optimizer(values: dict[str, Any], inputs: dict[str, Any]) -> None:
    optimizer, rate = values.get("optimizer"), values.get("learning_rate")
    if isinstance(optimizer, optax.MultiSteps):
        optimizer = optimizer.gradient_transformation()
    if isinstance(optimizer, optax.GradientTransformation):
        refuse(values, "optimizer")
        inputs["optimizer"] = optimizer
        # The name under which the run is kept; weight decay and the like are the object's business.
        values |= {"optimizer": OBJECT, "weight_decay": 0.0}
    elif callable(optimizer):
        name = getattr(optimizer, "__name__", type(optimizer).__name__)
        remedy = (
            "is a function; call it, e.g. optax.adamw(1e-3), or give a schedule as learning_rate"
        )
        raise ConfigError("optimizer", name, remedy)
    else:
        _check_name("optimizer", optimizer, "an optimizer, or an Optax transformation")
    if callable(rate):
        refuse(values, "learning_rate")
        inputs["schedule"] = values.pop("learning_rate")


def _check_name(what: str, value: object, wanted: str) -> None:
    """Raises ConfigError for what is neither a name nor an object that stands for one."""
    if isinstance(value, type):
        name = value.__name__
        raise ConfigError(what, name, f"is a class; give an object, {name}(...)")
    if type(value).__module__ != "builtins" and hasattr(value, "init_with_output"):
        wanted += ": initialize nnx.bridge.ToNNX(model, rngs=...) with nnx.bridge.lazy_init"
    if value is not None and not isinstance(value, str):
        raise ConfigError(what, type(value).__name__, f"must be the name of {wanted}")


def refuse(values: Mapping[str, Any], what: str) -> None:
    """Raises ConfigError for a setting that an object decides.

    Args:
        what: the object: `model`, `data`, `task`, `optimizer` or `learning_rate`.
    """
    for name, facts in fields(TrainConfig).items():
        if name in values and what in facts.set_by.split():
            remedy = (
                f"{what} is an object, and settings such as this one are decided where it is made"
            )
            raise ConfigError(name, shown(values[name]), remedy)
