"""The result of a run: its metrics, its history and its model, in memory or from a run
directory.
"""

# Over 300 lines: all that can be asked of a result is one class.

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxdp import models, tasks
from jaxdp.checkpoint.checkpoints import Checkpoints
from jaxdp.components import NOTHING, Objects, create_task, open_data
from jaxdp.config import OBJECT, DataConfig, TrainConfig
from jaxdp.data.dataset import Dataset, Description
from jaxdp.data.opening import check_dataset, with_classes
from jaxdp.data.sources import open_dataset
from jaxdp.inference import instances
from jaxdp.inference.predictor import Predictor
from jaxdp.inference.saved_model import read_description, restore
from jaxdp.inference.scores import Scores, score
from jaxdp.parsing import printable
from jaxdp.registry import ConfigError
from jaxdp.rundir.layout import RunDirectory
from jaxdp.rundir.start import create_run
from jaxdp.rundir.write import replace_file, rows_text
from jaxdp.runtime import devices
from jaxdp.step import metrics as metrics_lib
from jaxdp.step.state import TrainState
from jaxdp.step.step import evaluation_model
from jaxdp.training import setup as setup_lib
from jaxdp.training.run import Trained
from jaxdp.training.setup import Setup
from jaxdp.training.summary import title

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class History(list[dict[str, Any]]):
    """The rows of a run, as in metrics.jsonl: training metrics every few steps, and evaluations."""

    def to_pandas(self) -> Any:
        """Returns a `pandas.DataFrame` with a row for each; needs pandas."""
        try:
            import pandas  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ConfigError(
                "", "", "History.to_pandas needs pandas: pip install pandas"
            ) from error
        return cast(Any, pandas).DataFrame(self)


class Result:
    """A trained model and how it came to be.

    Attributes:
        config: the settings of the run.
        description: what the model knows of its dataset: classes, image shape, normalization.
        summary: what summary.json holds.
        history: rows of metrics.jsonl.
        run_dir: folder of the run; None if nothing was written.
    """

    def __init__(
        self,
        config: TrainConfig,
        description: Description,
        task: tasks.Task,
        summary: dict[str, Any],
        history: History,
        load_state: Callable[[], TrainState],
        *,
        setup: Setup | None = None,
        run_dir: pathlib.Path | None = None,
    ) -> None:
        self.config = config
        self.description = description
        self.summary = summary
        self.history = history
        self.run_dir = run_dir
        self._task = task
        self._load_state = load_state
        self._setup = setup
        self._state: TrainState | None = None
        self._predictor: Predictor | None = None

    @classmethod
    def of_training(cls, setup: Setup, trained: Trained) -> "Result":
        """Returns the result of a run that has just ended."""
        state, directory = trained.state, trained.directory

        def load() -> TrainState:
            if state is not None:
                return setup.strategy.gather(state)
            if directory is None:
                raise ConfigError(
                    "", "", f"the run {trained.status}: {trained.reason}; it has no model"
                )
            return restore(
                directory, setup.config, setup.dataset.describe(), None, setup.objects.model
            )[1]

        history = History(
            directory.read("metrics.jsonl") if directory is not None else trained.rows
        )
        run_dir = directory.path if directory is not None else None
        task = setup.recipe.task
        return cls(
            setup.config,
            setup.dataset.describe(),
            task,
            trained.summary,
            history,
            load,
            setup=setup,
            run_dir=run_dir,
        )

    @classmethod
    def untrained(cls, setup: Setup) -> "Result":
        """Returns the model with its initial weights."""
        summary: dict[str, Any] = {"status": "untrained", "metrics": {}, "steps": 0}
        description, create = (
            setup.dataset.describe(),
            lambda: jax.tree.map(np.asarray, setup.create_state()),
        )
        return cls(
            setup.config, description, setup.recipe.task, summary, History(), create, setup=setup
        )

    @property
    def step(self) -> int:
        """After which step the state is."""
        return int(self.state.step)

    @property
    def status(self) -> str:
        """`done`, `stopped` or `diverged`."""
        return self.summary["status"]

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """The metrics of the last epoch and of the final evaluation by split, e.g.
        `metrics["test"]["accuracy"]`.
        """
        return self.summary["metrics"]

    @property
    def state(self) -> TrainState:
        """Parameters, batch statistics and so on as NumPy arrays.

        Of several processes, all must ask for it.
        """
        if self._state is None:
            self._state = self._load_state()
        return self._state

    @property
    def model(self) -> Any:
        """The trained model, an `nnx.Module` in evaluation mode.

        With an EMA of the weights, the averaged ones.

        It takes images as training does: float32 (N, H, W, C), normalized by `description.mean` and
        `description.std`.
        """
        return evaluation_model(jax.tree.map(jnp.asarray, self.state))  # pyright: ignore

    def predict(self, images: Any, *, probabilities: bool = False) -> Any:
        """Returns what the model says about images of any size.

        Args:
            images: (N, H, W, C), or (N, H, W) with one channel, or a list of images that differ in
                size, of the dtype of the dataset, mostly uint8.
            probabilities: for segmentation, return those of each pixel (H, W, classes) instead of
                class numbers.

        Returns:
            For classification probabilities, float32 (N, classes). For segmentation masks of class
            numbers, uint8 (N, H, W), or where objects are told apart of their numbers, uint16 (N,
            H, W), from 1 on in each image; for regression images, float32 (N, H, W, C), about from
            0 to 1; for a list of images a list of these.

        Raises:
            ConfigError: for arrays that are no such images.
        """
        several = isinstance(images, Sequence)
        given: Any = (
            list(cast(Any, images)) if several else _as_batch(images, self.description.dtype)
        )
        items = [_as_image(image) for image in given]
        answers = [answer for _, answer in self._predict(items)]
        if self.description.answer == "segmentation" and not probabilities:
            if self.description.instances:
                answers = [instances.label_instances(answer) for answer in answers]
            else:
                answers = [answer.argmax(-1).astype(np.uint8) for answer in answers]
        as_list = several and self.description.answer != "classification"
        return answers if as_list or not answers else np.stack(answers)

    @property
    def _predict(self) -> Predictor:
        if self._predictor is None:
            self._predictor = Predictor(self.state, self.config, self.description, self._task)
        return self._predictor

    def evaluate(
        self, data: Dataset | str | None = None, *, split: str | None = None
    ) -> dict[str, float]:
        """Returns the metrics over every example of a split.

        Args:
            data: another dataset, whose classes the model knows; None for that of the run. It is
                normalized as the training data were, and a name's images are resized to the size of
                a classifier's.
            split: `train`, `validation`, `test` or `all`; by default what is evaluated during
                training, and of a dataset that has nothing but training examples, those.

        Raises:
            ConfigError: for a split that is not there, or data that the model is not for.
        """
        setup, splits = self._evaluated(data, split)
        state = setup.strategy.restore(self.state)
        sums = [setup.evaluate(state, split=each) for each in splits]
        if self.description.instances:
            sums += [
                part
                for each in splits
                for part in instances.count(self._predict, setup.source(each))
            ]
        return metrics_lib.compute(self._task, metrics_lib.add(*sums))

    def evaluate_each(
        self, data: Dataset | str | None = None, *, split: str | None = None
    ) -> Scores:
        """Returns the metrics of every example of a split by itself.

        Args:
            data, split: as for `evaluate`.

        Raises:
            ConfigError: as `evaluate` does.
        """
        setup, splits = self._evaluated(data, split)
        predictor = self._predict if self.description.instances else None
        return score(setup, setup.strategy.restore(self.state), splits, self._task, predictor)

    def _evaluated(self, data: Dataset | str | None, split: str | None) -> tuple[Setup, list[str]]:
        setup = self._evaluation_setup(data)
        known = list(setup.dataset.splits())
        split = split or setup.dataset.evaluation_split or "train"
        if split not in (*known, "all"):
            there = ", ".join([*known, "all"])
            raise ConfigError(
                "split",
                split,
                f"there is no split {split!r} in {setup.config.dataset}; there are: {there}",
            )
        return setup, known if split == "all" else [split]

    def _evaluation_setup(self, data: Dataset | str | None) -> Setup:
        if data is None and self._setup is not None:
            return self._setup
        dataset = self._as_trained_on(data)
        config = (self._setup or self).config.replace(dataset=dataset.name)
        if data is not None and self._setup is not None:
            return dataclasses.replace(self._setup, config=config, dataset=dataset)
        if config.optimizer == OBJECT:  # evaluation needs none
            config = config.replace(optimizer="sgd", optimizer_kwargs={})
        devices.ensure(config.devices)
        setup = setup_lib.create_setup(
            config, dataclasses.replace(NOTHING, dataset=dataset), training=False
        )
        if data is None:
            self._setup = setup
        return setup

    def _as_trained_on(self, data: Dataset | str | None) -> Dataset:
        """Returns the run's dataset, or another one in its form: with its class numbers, normalized
        as in training.

        Raises:
            ConfigError: for data that the model is not for.
        """
        ours, config = self.description, self.config
        if data is None:
            dataset = open_data(self.config)[1]
        else:
            if isinstance(data, str):
                data = open_dataset(self._settings_of(data), (ours.task,), tasks.kind_of)
            if ours.answer == "classification":
                data = with_classes(data, ours.class_names)
            dataset = check_dataset(
                data, config.replace(dataset=data.name), lambda task: ours.answer
            )
        # Where each pixel has an answer, images may be of any size.
        known = 0 if ours.answer == "classification" else -1
        compared = {
            "num_classes": (ours.num_classes, dataset.num_classes),
            "image_shape": (ours.image_shape[known:], dataset.image_shape[known:]),
            "dtype": (ours.dtype, dataset.dtype),
            "instances": (ours.instances, dataset.instances),
        }
        for name, (mine, its) in compared.items():
            if mine != its:
                raise ConfigError(
                    "dataset", dataset.name, f"its {name} is {its}, and the model's {mine}"
                )
        return dataclasses.replace(
            dataset, mean=ours.mean, std=ours.std, pixel_range=ours.pixel_range
        )

    def _settings_of(self, name: str) -> DataConfig:
        """Returns the settings to open other data: of what was said of the run's own only size and
        colour hold for them.
        """
        height, width, channels = self.description.image_shape
        others = {"train_split": None, "validation": None, "test_split": None, "class_names": None}
        config = self.config.replace(dataset=name, instances=self.description.instances, **others)
        if self.description.answer == "classification" and config.image_size is None:
            config = config.replace(image_size=f"{height}x{width}")
        known = (
            name.startswith("folder:")
            and self.description.dtype == "uint8"
            and channels in (1, 3, 4)
        )
        return config.replace(channels=channels) if known else config

    def plot(self) -> "Figure":
        """Returns a figure of the loss and the task's metric over the steps, which a notebook
        shows.
        """
        from jaxdp.reporting import plots  # with Matplotlib, for which a run need not wait

        name = self._task.best_metric[0]
        above = (
            title(self._setup)
            if self._setup is not None
            else f"{self.config.model} on {self.config.dataset}"
        )
        return plots.curves_figure(self.history, title=above, metric_name=name)

    def save(self, path: str | pathlib.Path) -> pathlib.Path:
        """Writes a run directory, which `jaxdp.load` and the commands read.

        Raises:
            ConfigError: if the folder holds something already, or cannot be written.
        """
        directory = create_run(pathlib.Path(path))
        step, evaluated = self.step, self.metrics.get(self._evaluated_split())
        with contextlib.closing(
            Checkpoints(directory.checkpoints, keep=1, best_metric=None)
        ) as checkpoints:
            directory.checkpoints.mkdir(exist_ok=True)
            checkpoints.save(step, self.state, {}, evaluated)
        directory.write("dataset.json", dataclasses.asdict(self.description))
        replace_file(directory.file("metrics.jsonl"), rows_text(self.history))
        directory.write("summary.json", self.summary)
        directory.record("saved", step)
        directory.write_config(self.config)  # last: with it the folder holds a run
        return directory.path

    def _evaluated_split(self) -> str:
        return "validation" if "validation" in self.metrics else "test"

    def __repr__(self) -> str:
        found = {
            split: {name: round(value, 4) for name, value in each.items() if "/" not in name}
            for split, each in self.metrics.items()
        }
        what = printable(f"{self.config.model} on {self.config.dataset}")
        return f"Result({what}, {self.status} at step {self.summary['steps']}, {found})"


def load(
    run_dir: str | pathlib.Path,
    *,
    step: int | None = None,
    model: nnx.Module | None = None,
    plugins: Sequence[str] = (),
) -> Result:
    """Returns the result of a run from its folder; the dataset need not be there to predict.

    Args:
        run_dir: what `run_dir` of a run or `Result.save` named.
        step: which checkpoint; by default the best by validation data, or the newest where there
            are none.
        model: for a run that was trained with a model object that jaxdp does not know: one of the
            same structure.
        plugins: files or modules that the run was trained with; those that only its folder names
            are not run.

    Raises:
        ConfigError: if there is no run or no such checkpoint, or the model does not fit.
    """
    directory = RunDirectory(pathlib.Path(run_dir))
    config = directory.load_trusted_config(plugins)
    description = read_description(directory)
    devices.ensure(None, precision=config.precision)
    if model is None and config.model not in models.names():
        remedy = (
            "was trained with a model object; give one of the same structure:"
            f" load({str(run_dir)!r}, model=...)"
        )
        raise ConfigError("model", config.model, remedy)
    task = create_task(config, description, Objects())
    found = restore(directory, config, description, step, model)
    summary: dict[str, Any] = directory.read("summary.json") or {
        "status": "stopped",
        "metrics": {},
        "steps": found[0],
    }
    return Result(
        config,
        description,
        task,
        summary,
        History(directory.read("metrics.jsonl")),
        lambda: found[1],
        run_dir=directory.path,
    )


def _as_batch(images: Any, dtype: str) -> np.ndarray:
    array = np.asarray(images)
    if array.ndim not in (3, 4) or array.dtype != dtype:
        raise ConfigError(
            "",
            array.shape,
            f"images are {array.dtype} {array.shape}; give {dtype} (N, H, W, C) or (N, H, W), or a"
            " list",
        )
    return array


def _as_image(image: Any) -> np.ndarray:
    array = np.asarray(image)
    return array[..., None] if array.ndim == 2 else array
