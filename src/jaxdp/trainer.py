"""The Trainer: everything that a training run consists of, from names or objects, and the way to
train it.
"""

# Over 300 lines: the Trainer, and what turns its keywords into settings and objects.

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

import contextlib
import dataclasses
import inspect
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import optax
from flax import nnx

from jaxdp import callbacks as callbacks_lib
from jaxdp import models, tasks
from jaxdp.callbacks.device_monitor import DeviceMonitor
from jaxdp.callbacks.early_stopping import EarlyStopping
from jaxdp.callbacks.json_lines import JsonLines
from jaxdp.callbacks.plots import Plots
from jaxdp.callbacks.profiler import Profiler
from jaxdp.callbacks.progress import Progress
from jaxdp.callbacks.run_record import RunRecord
from jaxdp.callbacks.tensorboard import TensorBoard
from jaxdp.components import Objects
from jaxdp.config import OBJECT, BatchNormMode, TrainConfig, facts_of, fields, settings_with
from jaxdp.config.keywords import TrainKeywords
from jaxdp.data.dataset import Dataset
from jaxdp.exit_codes import EXIT_STOPPED
from jaxdp.models.layers import BatchNorm
from jaxdp.registry import ConfigError, load_plugins, shown
from jaxdp.reporting.progress import say, say_complete
from jaxdp.rundir.start import open_run
from jaxdp.runtime import devices as devices_lib
from jaxdp.runtime import platform, processes
from jaxdp.runtime.processes import Group
from jaxdp.runtime.signals import STOPPED_AT_START, StoppedAtStart, StopSignals
from jaxdp.training import defaults, model_size
from jaxdp.training import setup as setup_lib
from jaxdp.training.loop import RunOutcome
from jaxdp.training.run import Run

if TYPE_CHECKING:
    from jaxdp.result import Result


class Trainer:
    """Trains a model data-parallel: the same steps, whatever the number of devices.

    Every flag of `python -m jaxdp.train` is a keyword with the same name, default and meaning.
    Nothing is written unless `run_dir` names a folder. A trainer keeps the program that it has:
    after a change of code, or of a value that the code reads, create another one.

    Args:
        model: name of a model, or any `nnx.Module` that maps normalized images, float32 (N, H, W,
            C), to outputs. Its weights are where training starts; the object itself does not
            change.
        data: name of a dataset as for `--dataset`, or a `Dataset` of `jaxdp.data`; by default the
            model's own small one.
        task: name of a task, a task object such as `jaxdp.tasks.Classification(10)`, or a loss
            function of outputs and targets that returns one loss per example; by default what model
            and data have in common.
        optimizer: name of an optimizer, or an Optax transformation, which brings its own learning
            rate.
        learning_rate: peak learning rate, or an Optax schedule.
        strategy: `pmap`, `shard_map`, `sharded`, `central` or `single`; on workers `exact` or
            `async`.
        devices: how many devices to use, by default all; on a CPU so many are simulated.
        callbacks: objects, or text as for `--callbacks`.
        progress: whether to show progress on standard error.
        **settings: all other settings, such as `epochs=20`, `global_batch_size=256` or
            `batch_norm="global"`.

    Raises:
        ConfigError: for the first setting that cannot work, in one line. It is a ValueError.
    """

    def __init__(
        self,
        model: str | nnx.Module = "pyramidnet",
        data: str | Dataset | None = None,
        task: str | tasks.Task | Callable[..., Any] | None = None,
        *,
        callbacks: Sequence[Any] = (),
        progress: bool = True,
        **settings: Unpack[TrainKeywords],
    ) -> None:
        callbacks = [callbacks] if isinstance(callbacks, str) else callbacks
        words = tuple(each for each in callbacks if isinstance(each, str))
        given = {"model": model, "dataset": data, "task": task, "callbacks": words, **settings}
        for name in ("dataset", "task"):
            if given[name] is None:
                del given[name]
        config, objects = resolve(given)
        devices_lib.ensure(
            config.devices,
            deterministic=config.deterministic,
            precision=config.precision,
        )
        group = processes.start(config)
        load_plugins(config.plugins, reload=True)
        self._prepare(
            setup_lib.create_setup(config, objects),
            group,
            callbacks,
            config.batch_norm,
            progress=progress,
        )

    @classmethod
    def of_setup(cls, setup: setup_lib.Setup, group: Group) -> "Trainer":
        """Creates the trainer of a command, whose devices, processes and setup are there
        already.
        """
        trainer = cls.__new__(cls)
        trainer._prepare(
            setup, group, setup.config.callbacks, setup.config.batch_norm, progress=True
        )
        return trainer

    def _prepare(
        self,
        setup: setup_lib.Setup,
        group: Group,
        callbacks: Sequence[Any],
        batch_norm: BatchNormMode | None,
        *,
        progress: bool,
    ) -> None:
        platform.check_precision(setup.config.precision)
        self.setup = setup
        self._group = group
        self._progress = progress
        self._callbacks = list(callbacks)
        for callback in self._callbacks:
            callbacks_lib.create(callback)  # finds what is none
        self._result: Result | None = None
        self._batch_norm = batch_norm  # as it was asked for: a default depends on the batch size

    @property
    def config(self) -> TrainConfig:
        """The settings, with what model, dataset and devices decide filled in."""
        return self.setup.config

    def fit(self, **settings: Unpack[TrainKeywords]) -> "Result":
        """Trains from the initial weights to the end.

        With `run_dir`, resumes the run that is there.

        A run that is complete already returns its result. A warning says so if settings or code
        have changed.

        An interrupt (Ctrl-C) stops after the current step and returns what there is; a second one
        raises KeyboardInterrupt. SIGTERM ends the process: with `run_dir`, in the main thread, and
        if the script has no handler of its own, the run is saved after the current step before
        `fit` raises SystemExit(75).

        Several calls are several runs. Settings that leave the compiled step as it is, such as
        `learning_rate`, `epochs` or `seed`, cost no compilation.

        Args:
            **settings: in place of those of this trainer, for this run.

        Raises:
            ConfigError: for settings that cannot work, or a run directory that holds another run.
            CallbackError: if a callback raised an exception, which is its cause.
            SystemExit: after SIGTERM.
        """
        from jaxdp.result import Result

        setup = self._reconfigured(settings) if settings else self.setup
        writes = setup.config.run_dir is not None
        saves = writes and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        numbers = (signal.SIGINT, signal.SIGTERM) if saves else (signal.SIGINT,)
        signals = StopSignals(numbers, exit_code=EXIT_STOPPED, message=STOPPED_AT_START)
        try:
            with signals.handled():
                trained = self.run(setup, signals, writes=writes)
        except StoppedAtStart:
            say(STOPPED_AT_START)
            raise SystemExit(EXIT_STOPPED) from None
        if trained.was_complete and self._group.index == 0:
            remedy = "train anew with another run_dir, or extend it with larger epochs or steps"
            say_complete(trained, setup.config, remedy, always=self._progress)
        self._result = Result.of_training(setup, trained)
        if signals.requested(signal.SIGTERM):  # the script would go on until the kill that follows
            say(f"ended by SIGTERM after step {trained.step}, which {setup.config.run_dir} holds")
            raise SystemExit(EXIT_STOPPED)
        return self._result

    def run(
        self,
        setup: setup_lib.Setup,
        signals: StopSignals,
        *,
        writes: bool,
        callbacks: Sequence[Any] = (),
        started: float | None = None,
    ) -> RunOutcome:
        """Does what `fit` does, for callers that handle signals themselves.

        Args:
            writes: whether to write a run directory, by default one that is named by the settings.
            callbacks: in addition to this trainer's.
            started: when the run began for its user, by `time.perf_counter`; by default now.
        """
        started = time.perf_counter() if started is None else started
        devices_lib.check_alive(setup.strategy.devices)
        directory, primary = None, self._group.index == 0
        with contextlib.ExitStack() as cleanup:
            cleanup.enter_context(devices_lib.in_use())
            model_size.check(setup)
            if writes:
                description = dataclasses.asdict(setup.dataset.describe())
                directory = open_run(setup.config, description, create=primary)
                if primary:
                    cleanup.enter_context(directory.exclusive())
            # First: what the strategy adds to a row is there when the others see it.
            chosen = [setup.strategy, *self._all_callbacks(setup.config, writes=writes), *callbacks]
            cleanup.enter_context(setup.strategy.started(setup))
            return Run(
                setup, self._group, chosen, directory, signals=signals, started=started
            ).execute()

    def evaluate(
        self, data: Dataset | str | None = None, *, split: str | None = None
    ) -> dict[str, float]:
        """Returns the metrics of the model of the last `fit`, or of the initial weights, over every
        example of a split.

        Args:
            data: another dataset of the same kind; None for this trainer's.
            split: `train`, `validation` or `test`; by default what is evaluated during training.
        """
        return self._current().evaluate(data, split=split)

    def predict(self, images: Any) -> Any:
        """Returns what `Result.predict` does, with the model of the last `fit` or of the initial
        weights.
        """
        return self._current().predict(images)

    def _current(self) -> "Result":
        from jaxdp.result import Result

        if self._result is None:
            self._result = Result.untrained(self.setup)
        return self._result

    def _reconfigured(self, settings: Mapping[str, Any]) -> setup_lib.Setup:
        for name in settings_with(TrainConfig, each_fit=False):
            if name in settings:
                raise ConfigError(
                    name, shown(settings[name]), "is a matter of the Trainer; create another one"
                )
        if self.setup.objects.dataset is not None:
            _refuse(settings, "data", "are decided where the dataset is made")
        config = defaults.with_saved_defaults(
            self.setup.config.replace(**{"batch_norm": self._batch_norm, **settings})
        )
        same = self.setup.reconfigured(config)
        setup = same if same is not None else setup_lib.create_setup(config, self.setup.objects)
        return setup

    def _all_callbacks(self, config: TrainConfig, *, writes: bool) -> list[Any]:
        chosen: list[Any] = [DeviceMonitor()]
        if config.profile is not None:
            chosen.append(Profiler(config.profile.first, config.profile.last))
        chosen += [Progress()] if self._progress else []
        chosen += [JsonLines(), Plots(), TensorBoard()] if writes else []
        own = [callbacks_lib.create(each) for each in self._callbacks]
        if config.early_stop is not None:
            if any(isinstance(each, EarlyStopping) for each in own):
                raise ConfigError(
                    "early_stop",
                    config.early_stop,
                    "callbacks has EarlyStopping, too; give one of them",
                )
            metric, larger = self.setup.recipe.task.best_metric
            chosen.append(EarlyStopping(metric, config.early_stop, larger_is_better=larger))
        chosen += own
        return [*chosen, RunRecord()] if writes else chosen


def resolve(given: Mapping[str, Any]) -> tuple[TrainConfig, Objects]:
    """Returns the settings that names and plain values make, and the objects among them.

    Raises:
        ConfigError: for a value of another type than the setting's, and for settings that
            contradict an object.
    """
    values, objects = dict(given), dict[str, Any]()
    _take_model(values, objects)
    _take_data_and_task(values, objects)
    _take_optimizer(values, objects)
    return TrainConfig.of(**values), Objects(**objects)


def _take_model(values: dict[str, Any], objects: dict[str, Any]) -> None:
    model: Any = values["model"]
    if isinstance(model, str):
        return
    if isinstance(model, type) and issubclass(model, nnx.Module):
        raise ConfigError(
            "model",
            model.__name__,
            f"is a class; give an object: {model.__name__}(..., rngs=nnx.Rngs(0))",
        )
    model = values["model"]  # a type checker has lost what it is
    if not isinstance(model, nnx.Module):
        raise ConfigError(
            "model", type(model).__name__, "must be the name of a model, or an nnx.Module"
        )
    _refuse(values, "model", "are decided where the model object is made")
    objects["model"] = model
    recipe = models.recipe_of(model)
    values["model"], values["model_kwargs"] = (
        recipe if recipe is not None else (type(model).__name__, {})
    )
    if str(values.get("batch_norm") or "replica") != "replica" and any(
        isinstance(m, nnx.BatchNorm) for _, m in nnx.iter_modules(model)
    ):
        remedy = (
            "nnx.BatchNorm normalizes over what one device sees; use jaxdp.models.layers.BatchNorm"
            " in the model, or replica"
        )
        raise ConfigError("batch_norm", values["batch_norm"], remedy)
    if values.get("remat", "none") != "none" and not any(
        isinstance(m, BatchNorm) for _, m in nnx.iter_modules(model)
    ):
        raise ConfigError(
            "remat",
            values["remat"],
            "works with models that run their blocks by jaxdp.models.layers.run_blocks",
        )


def _take_data_and_task(values: dict[str, Any], objects: dict[str, Any]) -> None:
    data: Any = values.get("dataset")
    if isinstance(data, Dataset):
        _refuse(values, "data", "are decided where the dataset is made")
        objects["dataset"], values["dataset"] = data, data.name
    elif data is not None and not isinstance(data, str):
        remedy = (
            "must be the name of a dataset, or a Dataset of jaxdp.data.load, from_folder or"
            " from_arrays(images, labels)"
        )
        raise ConfigError("data", type(data).__name__, remedy)
    task: Any = values.get("task")
    if task is None or isinstance(task, str):
        return
    if isinstance(task, type):
        raise ConfigError(
            "task", task.__name__, f"is a class; give an object, e.g. {task.__name__}(10)"
        )
    _refuse(values, "task", "are decided where the task object is made")
    if isinstance(task, tasks.Task):
        objects["task"], values["task"] = task, task.name
    elif callable(task):
        objects["loss"] = task
        del values["task"]
    else:
        raise ConfigError(
            "task",
            type(task).__name__,
            "must be the name of a task, a task, or a loss function of outputs and targets",
        )


def _take_optimizer(values: dict[str, Any], objects: dict[str, Any]) -> None:
    optimizer: Any = values.get("optimizer")
    if isinstance(optimizer, optax.GradientTransformation):
        _refuse(values, "optimizer", "are decided where the optimizer object is made")
        # The name under which the run is kept; its weight decay and the like are the object's
        # business.
        objects["optimizer"] = optimizer
        values["optimizer"] = OBJECT
        values["weight_decay"] = 0.0
    elif callable(optimizer):
        raise ConfigError(
            "optimizer",
            _name(optimizer),
            "is a function; call it, e.g. optax.adamw(1e-3), or give a schedule as learning_rate",
        )
    rate: Any = values.get("learning_rate")
    if callable(rate):
        _refuse(
            values,
            "learning_rate",
            "say how the learning rate changes, which the schedule does",
        )
        objects["schedule"] = rate
        del values["learning_rate"]


def _refuse(values: Mapping[str, Any], what: str, why: str) -> None:
    """Raises ConfigError for a setting that an object decides."""
    for name, field in fields(TrainConfig).items():
        if name in values and what in facts_of(field).set_by:
            raise ConfigError(
                name,
                shown(values[name]),
                f"{what} is an object, and settings such as this one {why}",
            )


def _name(value: Any) -> str:
    return getattr(value, "__name__", type(value).__name__)


def _signature() -> inspect.Signature:
    """Returns the signature of `Trainer` with all settings, which editors and notebooks complete
    from.
    """
    signature = inspect.signature(Trainer)
    own = [
        each
        for each in signature.parameters.values()
        if each.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    known = {parameter.name for parameter in own} | {"dataset"}
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
        for name, default in TrainConfig().plain().items()
        if name not in known
    ]
    return signature.replace(parameters=[*own, *more])


Trainer.__signature__ = _signature()  # pyright: ignore[reportAttributeAccessIssue]
