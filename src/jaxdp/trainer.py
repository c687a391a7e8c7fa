"""Defines the Trainer, which takes the parts of a run by name or as objects, and trains."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

import functools
import inspect
import os
import pathlib
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from flax import nnx

from jaxdp import callbacks as callbacks_lib
from jaxdp import tasks
from jaxdp.build import resolve, step_memory
from jaxdp.build.inputs import refuse, take_inputs
from jaxdp.build.setup import Setup, create_setup
from jaxdp.cli.exit_codes import EXIT_STOPPED
from jaxdp.config import TrainConfig, settings_with
from jaxdp.config.keywords import TrainKeywords
from jaxdp.config.values import memory_limit
from jaxdp.data.dataset import Dataset
from jaxdp.errors import ConfigError, flag
from jaxdp.plugins.loading import load_plugins
from jaxdp.reporting.progress import say_complete
from jaxdp.runtime import devices as devices_lib
from jaxdp.runtime import malloc, platform, processes
from jaxdp.runtime.signals import STOPPED_AT_START, StoppedAtStart, StopSignals
from jaxdp.step.state import model_arrays
from jaxdp.text.console import say_again
from jaxdp.text.messages import shown
from jaxdp.training import summary
from jaxdp.training.outcome import RunOutcome
from jaxdp.training.run import run_setup

if TYPE_CHECKING:
    from jaxdp.result import Result


class Trainer:
    """Trains a model data-parallel, with the same steps on any number of devices.

    Every flag of `python -m jaxdp.train` is a keyword with the same name, default and meaning. A
    trainer writes nothing unless `run_dir` names a folder. It keeps its compiled program. After a
    change of the code, or of a value that the code reads, create another trainer.

    Args:
        model: name of a model, or any `nnx.Module` that maps normalized images, float32 (N, H, W,
            C), to outputs. Training starts from its weights, and the object itself does not change.
        data: name of a dataset as for `--dataset`, or a `Dataset` of `jaxdp.data`; by default the
            model's own small one.
        task: name of a task, a task object such as `jaxdp.tasks.Classification(10)`, or a loss
            function of outputs and targets that returns one loss per example; by default the task
            that model and data have in common.
        optimizer: name of an optimizer, or an Optax transformation, which has its own learning
            rate.
        learning_rate: peak learning rate, or an Optax schedule.
        strategy: name of a strategy, which determines how devices share the work.
        devices: how many devices to use, by default all. On a CPU, this number of devices is
            simulated.
        callbacks: objects, or text as for `--callbacks`.
        progress: whether to show progress on standard error.
        **settings: all other settings, such as `epochs=20`, `global_batch_size=256` or
            `batch_norm="global"`.

    Attributes:
        config: the settings, including the defaults that depend on model, dataset and devices.

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
        self._callbacks = [callbacks] if isinstance(callbacks, str) else [*callbacks]
        words = tuple(each for each in self._callbacks if isinstance(each, str))
        given = {"model": model, "task": task, "callbacks": words, **settings}
        if data is not None:
            if "dataset" in settings:
                raise ConfigError("dataset", shown(settings["dataset"]), "data is given, too")
            given["dataset"] = data
        given["init_from"] = _starting_from(settings.get("init_from"))
        config, inputs = take_inputs(given)
        devices_lib.ensure(
            config.devices,
            deterministic=config.deterministic,
            precision=config.precision,
            strategy=config.strategy,
        )
        self._group = processes.start(config)
        load_plugins(config.plugins, reload=True)
        self.setup = create_setup(config, inputs)
        self.config = self.setup.config
        platform.check_precision(config.precision)
        for callback in self._callbacks:
            callbacks_lib.create(callback)  # finds what is none
        self._progress, self._has_fitted = progress, False
        # As given: the defaults depend on the batch size, and on the run that is resumed.
        self._given = {
            name: getattr(config, name) for name in ("batch_norm", "optimizer", "learning_rate")
        }

    def __repr__(self) -> str:
        return f"Trainer({summary.description(self.setup)})"

    def __reduce__(self) -> Any:
        raise TypeError("a Trainer is not pickled; create it where it trains")

    def check(
        self,
        devices: Sequence[int] = (1, 2, 4, 8),
        strategies: Sequence[str] = ("pmap",),
        *,
        tolerance: float = 1e-5,
    ) -> dict[tuple[str, int], dict[str, float]]:
        """Compares three steps on several numbers of devices with those on one device, as
        `python -m jaxdp.check` does, in float64 unless the run has half precision.

        Args:
            devices: numbers of devices; those that are not there are left out.
            strategies: how they share the work.
            tolerance: updates that rounding the gradients changes by more are left out.

        Returns:
            The largest difference of each kind of value by strategy and number of devices, e.g.
            `{("pmap", 8): {"gradients": 2e-15, ...}}`.
        """
        from jaxdp.training.comparison import compare  # which other runs do not need

        available = len(platform.select_devices(None))  # pyright: ignore[reportUnknownArgumentType]
        there = [count for count in devices if count <= available]
        config = self.setup.config.replace(steps=3, epochs=None)
        return compare(config, there, strategies, self.setup.inputs, tolerance=tolerance)[0]

    def plan(self, device_memory: str | None = None) -> dict[str, Any]:
        """Returns the memory of a step, and the largest batch that fits, as `python -m jaxdp.plan
        --json` prints them. Computes nothing.

        Args:
            device_memory: of a device, e.g. `11GiB`; by default what the devices have.

        Raises:
            ConfigError: if it is no size.
        """
        from jaxdp.build.step_memory import plan_setup

        return plan_setup(self.setup, None, memory_limit(device_memory))

    def fit(self, **settings: Unpack[TrainKeywords]) -> "Result":
        """Trains from the initial weights to the end; with `run_dir`, resumes the run in it.

        `fit(resume=result, epochs=40)` continues a result, up to 40 epochs in all, and
        `fit(resume=folder)` the run in a folder.

        A complete run returns its result, with a warning if settings or code have changed.

        An interrupt (Ctrl-C) stops after the current step, and `fit` returns the result so far. A
        second interrupt raises KeyboardInterrupt. SIGTERM ends the process: with `run_dir`, in the
        main thread, and if the script has no handler of its own, the run is saved after the current
        step before `fit` raises SystemExit(75).

        Each call is a separate run. Settings that do not change the compiled step, such as
        `learning_rate`, `epochs` or `seed`, require no compilation.

        Args:
            **settings: settings of this run, which override the settings of this trainer.

        Raises:
            ConfigError: for settings that cannot work, or a run directory that holds another run.
            CallbackError: if a callback raised an exception, which is its cause.
            SystemExit: after SIGTERM.
        """
        from jaxdp.result import Result

        given, before = _continuing(settings)
        setup = self._reconfigured(given) if given else self.setup
        run_dir = setup.config.run_dir
        if self._progress and self._has_fitted and not before and run_dir is None:
            say_again("trains anew from the initial weights; fit(resume=result) continues a result")
        self._has_fitted = True
        if before is not None:
            _check_continues(settings.get("resume"), setup)
        if before is not None and run_dir is not None:
            remedy = "the result to resume has no folder; save it, and resume its folder"
            raise ConfigError("run_dir", run_dir, remedy)
        saves = run_dir is not None and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        signals = StopSignals((signal.SIGINT, signal.SIGTERM) if saves else (signal.SIGINT,))
        try:
            with signals.handled(), step_memory.explained(setup):
                outcome = run_setup(
                    setup,
                    self._group,
                    self._callbacks,
                    signals,
                    writes=run_dir is not None,
                    progress=self._progress,
                    start_time=time.perf_counter(),
                    before=before,
                )
        except StoppedAtStart:
            say_again(STOPPED_AT_START)
            raise SystemExit(EXIT_STOPPED) from None
        if outcome.was_complete and self._group.index == 0:
            remedy = "train anew with another run_dir, or extend it with larger epochs or steps"
            say_complete(outcome, setup.config, remedy, always=self._progress)
        malloc.return_freed()
        result = Result.of_training(setup, outcome)
        if signals.requested(signal.SIGTERM):  # the script would continue until a kill follows
            say_again(f"ended by SIGTERM after step {outcome.step}, which {run_dir} holds")
            raise SystemExit(EXIT_STOPPED)
        return result

    def _reconfigured(self, settings: Mapping[str, Any]) -> Setup:
        for name in settings_with(TrainConfig, each_fit=False):
            if name in settings:
                remedy = "is set when a Trainer is made; create another one"
                raise ConfigError(name, shown(settings[name]), remedy)
        if self.setup.inputs.dataset is not None:
            refuse(settings, "data")
        before = self.config.as_given()
        config = self.setup.config.as_given().replace(**{**self._given, **settings})
        config = resolve.with_saved(config)
        if config.optimizer in (None, self.config.optimizer):
            rate = config.learning_rate
            rate = before.learning_rate if rate is None else rate
            config = config.replace(optimizer=self.config.optimizer, learning_rate=rate)
        same = self.setup.reconfigured(config)
        return same if same is not None else create_setup(config, self.setup.inputs)


def _starting_from(given: Any) -> Any:
    """Returns `init_from` for settings: a path, or the weights of a result in memory."""
    if hasattr(given, "run_dir"):
        if given.run_dir is None:
            return repr(given), model_arrays(given.state), given.description.names
        given = given.run_dir
    return str(given) if isinstance(given, pathlib.Path) else given


def _check_continues(before: Any, setup: Setup) -> None:
    """Raises ConfigError for a result of another task, or of epochs of another length, by which its
    steps were counted.
    """
    then, now = before.config.global_batch_size, setup.config.global_batch_size
    if then != now:
        remedy = f"the result has steps of {then} examples; use that, or start from its weights"
        raise ConfigError("global_batch_size", now, f"{remedy} with {flag('init_from')}")
    epochs = (before.description.examples["train"], setup.dataset.train_examples)
    then, now = (examples // setup.batches.global_batch_size for examples in epochs)
    if then != now:
        remedy = f"the result has epochs of {then} steps, and these data {now}; start from its"
        remedy += f" weights with {flag('init_from')}"
        raise ConfigError("dataset", setup.config.dataset, remedy)
    then, now = before.description.own_task, setup.description.own_task
    if then != now:
        remedy = f"the result was trained with {then or 'a task by name'}; give that"
        raise ConfigError("task", now or setup.config.task, remedy)


def _continuing(settings: Mapping[str, Any]) -> tuple[dict[str, Any], RunOutcome | None]:
    """Returns the settings of `fit`, with the resumed folder as `run_dir`, and the outcome of a
    resumed result in memory.
    """
    given: Any = dict(settings)
    resume = given.get("resume")
    if hasattr(resume, "run_dir"):
        if resume.run_dir is None:
            del given["resume"]
            before = RunOutcome(
                resume.status,
                resume.step,
                resume.state,
                rows=resume.history,
                position=resume.position,
            )
            return given, before
        resume = resume.run_dir
    is_folder = resume not in ("auto", "never", "must") and os.path.isdir(resume or "")
    if is_folder or isinstance(resume, pathlib.Path):
        given |= {"run_dir": str(resume), "resume": "must"}
    return given, None


def _signature() -> inspect.Signature:
    """Returns the signature of `Trainer` with all settings, for completion in notebooks."""
    own = dict(inspect.signature(Trainer).parameters)
    del own["settings"]
    keyword = functools.partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    defaults = TrainConfig().plain()
    settings = [keyword(name, default=defaults[name]) for name in TrainKeywords.__annotations__]
    return inspect.Signature([*own.values(), *settings])


Trainer.__signature__ = _signature()  # pyright: ignore[reportAttributeAccessIssue]
