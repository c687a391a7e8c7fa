"""The result of a run: its metrics, its history and its model."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import contextlib
import dataclasses
import heapq
import itertools
import operator
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from jaxdp import config as config_lib
from jaxdp import tasks
from jaxdp.build.evaluation import create_evaluator
from jaxdp.build.evaluator import Evaluator
from jaxdp.build.inputs import NOTHING
from jaxdp.build.saved_model import restore
from jaxdp.build.setup import Setup
from jaxdp.checkpoint.checkpoints import Checkpoints
from jaxdp.config import TrainConfig
from jaxdp.data.arrays import arrays_for
from jaxdp.data.dataset import Description
from jaxdp.errors import ConfigError, flag
from jaxdp.inference import exporting, instances
from jaxdp.inference import predictions as answers
from jaxdp.inference.predictor import TILE, Predictor
from jaxdp.rundir.start import create_run
from jaxdp.rundir.write import replace_file, rows_text
from jaxdp.step import metrics as metrics_lib
from jaxdp.step.state import TrainState
from jaxdp.step.step import evaluation_model
from jaxdp.text.messages import printable
from jaxdp.training import summary as summary_lib
from jaxdp.training.outcome import RunOutcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Result:
    """A trained model and how it came to be.

    Attributes:
        config: the settings of the run.
        description: what the model knows about its dataset: classes, image shape, normalization.
        summary: the content of summary.json.
        status: `done`, `stopped` or `diverged`.
        metrics: of the last epoch and the final evaluation, by split, e.g.
            `metrics["test"]["accuracy"]`.
        history: rows of metrics.jsonl.
        run_dir: folder of the run; None if nothing was written.
        position: what a run requires in addition to the state to continue.
    """

    def __init__(
        self,
        config: TrainConfig,
        description: Description,
        task: tasks.Task,
        summary: Mapping[str, Any],
        history: Sequence[dict[str, Any]],
        load_state: Callable[[], TrainState],
        *,
        setup: Setup | None = None,
        run_dir: pathlib.Path | None = None,
    ) -> None:
        self.config = config
        self.description = description
        self.summary = summary
        self.status: str = summary["status"]
        self.metrics: dict[str, dict[str, float]] = summary["metrics"]
        self.history = [*history]
        self.run_dir = run_dir
        self._task = task.calibrated(self.metrics.get("validation", {}))
        self._load_state = load_state
        self._setup = setup
        self._inputs = NOTHING if setup is None else setup.inputs
        self._predictors: dict[str | None, Predictor] = {}
        self._evaluator = None if setup is None else setup.evaluator
        self.position: Mapping[str, Any] = {}
        self._state: TrainState | None = None

    @classmethod
    def of_training(cls, setup: Setup, outcome: RunOutcome) -> "Result":
        """Returns the result of a run that has just ended."""
        directory, config = outcome.directory, setup.config
        description = setup.description

        def load_state() -> TrainState:
            if outcome.state is not None:
                return setup.strategy.gather(outcome.state)
            if directory is None:
                problem = f"the run {outcome.status}: {outcome.reason}; it has no model"
                raise ConfigError("", "", problem)
            return restore(directory, config, description, None, setup.inputs.model)[1]

        result = cls(
            config,
            description,
            setup.step_config.task,
            outcome.summary,
            outcome.rows if directory is None else directory.read("metrics.jsonl"),
            load_state,
            setup=setup,
            run_dir=None if directory is None else directory.path,
        )
        result.position = outcome.position
        return result

    @classmethod
    def untrained(cls, setup: Setup) -> "Result":
        """Returns the model with its initial weights."""
        return cls(
            setup.config,
            setup.description,
            setup.step_config.task,
            {"status": "untrained", "metrics": {}, "steps": 0},
            [],
            lambda: jax.tree.map(np.asarray, setup.create_state()),
            setup=setup,
        )

    @property
    def step(self) -> int:
        """The step after which the state was taken."""
        return int(self.state.step)

    @property
    def state(self) -> TrainState:
        """Parameters, batch statistics and so on as NumPy arrays.

        With several processes, all processes must read this property.
        """
        if self._state is None:
            self._state = self._load_state()
        return self._state

    @property
    def model(self) -> Any:
        """The trained model, an `nnx.Module` in evaluation mode.

        If the run has an EMA, the model has the averaged weights.

        It accepts images as in training: float32 (N, H, W, C), normalized by `description.mean` and
        `description.std`.
        """
        return evaluation_model(jax.tree.map(jnp.asarray, self.state))  # pyright: ignore

    def predict(
        self,
        images: Any,
        *,
        probabilities: bool = False,
        test_time_augmentation: str | None = None,
    ) -> Any:
        """Returns the model's predictions for images of any size.

        Args:
            images: an array (N, H, W, C), or (N, H, W) with one channel, of the dtype of the
                dataset, mostly uint8. Or one image: an array (H, W, C) or (H, W), Pillow's image, a
                file. Or a folder, or a list of images that may differ in size. Tensors of PyTorch
                must have the channels first.
            probabilities: for segmentation, return probabilities of each pixel (H, W, classes)
                instead of class numbers.
            test_time_augmentation: `flip` or `dihedral`, whose views of each image give the mean
                outputs; `none`; None for the setting of the run.

        Returns:
            Probabilities for classification, float32 (N, classes). Class numbers for segmentation,
            uint8 (N, H, W). Instance labels for instance segmentation, uint16 (N, H, W), from 1 in
            each image. Images for regression, float32 (N, H, W, C), about from 0 to 1. The result
            for one image has no dim N. The result for a folder or a list of images is a list, or an
            array for classification.

        Raises:
            ConfigError: for a path that does not exist, or images that cannot be used.
        """
        predictor = self._predictor_of(self._views(test_time_augmentation))
        return answers.predict(predictor, images, probabilities=probabilities)

    def _predictor_of(self, views: str | None) -> Predictor:
        if views not in self._predictors:
            self._predictors[views] = self.predictor(test_time_augmentation=views or "none")
        return self._predictors[views]

    def predictor(
        self,
        *,
        tile: int = TILE,
        devices: int | None = None,
        test_time_augmentation: str | None = None,
    ) -> Predictor:
        """Returns a function of images, which yields each image and its prediction.

        Args:
            tile: side of the tiles in which large images are predicted, in pixels.
            devices: how many to use; None for all.
            test_time_augmentation: as for `predict`.
        """
        views = self._views(test_time_augmentation)
        config = self.config.replace(test_time_augmentation=views)
        return Predictor(
            self.state, config, self.description, self._task, tile=tile, devices=devices
        )

    def _views(self, asked: str | None) -> str | None:
        """Returns the value of the setting that was asked for, by default the run's."""
        if asked is None:
            return self.config.test_time_augmentation
        return None if asked == "none" else asked

    def evaluate(
        self,
        data: Any = None,
        targets: Any = None,
        *,
        split: str | None = None,
        test_time_augmentation: str | None = None,
    ) -> dict[str, float]:
        """Returns the metrics over every example of a split.

        Args:
            data: another `Dataset` or its name, with classes that the model knows; None for the
                run's dataset. It is normalized like the training data. Images of a named dataset
                are resized to the input size of a classifier. With `targets`, images as for
                `jaxdp.data.from_arrays`.
            targets: labels, masks or images for an array of images.
            split: `train`, `validation`, `test` or `all`; by default the split that is evaluated
                during training, or `train` if there is no other.
            test_time_augmentation: as for `predict`.

        Raises:
            ConfigError: for a split that does not exist, or data that do not suit the model.
        """
        evaluator = self._evaluator_for(data, targets, test_time_augmentation)
        state, sums = evaluator.examples.strategy.restore(self.state), list[Any]()
        for each in evaluator.chosen(split):
            sums.append(evaluator.evaluate(state, split=each))
            if self._task.finds_instances:
                predictor = self._predictor_of(self._views(test_time_augmentation))
                counts = instances.count(predictor, evaluator.examples.source(each))
                sums += itertools.chain.from_iterable(counts)
        return metrics_lib.compute(self._task, metrics_lib.add(*sums))

    def _evaluator_for(
        self, data: Any, targets: Any, test_time_augmentation: str | None = None
    ) -> Evaluator:
        """Returns an evaluator of the model on data, by default the data of its run."""
        views = self._views(test_time_augmentation)
        if targets is not None:
            data = arrays_for(self.description, self.config.mask_values, (data, targets))
        if views != self.config.test_time_augmentation:  # which is another program
            if data is None and self._setup is not None:
                data = self._setup.dataset
            config = self.config.replace(test_time_augmentation=views)
            return create_evaluator(config, self.description, data, None, self._inputs)
        if data is not None:
            return create_evaluator(self.config, self.description, data, self._setup, self._inputs)
        if self._evaluator is None:
            self._evaluator = create_evaluator(
                self.config, self.description, None, None, self._inputs
            )
        return self._evaluator

    def show_wrong(
        self, data: Any = None, targets: Any = None, *, count: int = 12, split: str | None = None
    ) -> Image.Image:
        """Returns a picture of the examples with the worst predictions, the worst first.

        Args:
            data, targets, split: as for `evaluate`.
            count: how many.

        Raises:
            ConfigError: for a split that does not exist, and for a task that has no pictures.
        """
        from jaxdp.reporting import outcome, pictures  # with Matplotlib, as in `plot`

        evaluator, task = self._evaluator_for(data, targets), self._task
        found: Any = ()
        if not task.has_pictures or count < 1:
            problem = "count must be at least 1" if count < 1 else f"{task.name} has no pictures"
            raise ConfigError("", "", problem)
        predictor = self._predictor_of(self.config.test_time_augmentation)
        for each in evaluator.chosen(split):
            source = evaluator.examples.source(each)
            compared = outcome.compare(task, source, range(len(source)), predictor)
            found = heapq.nlargest(count, itertools.chain(found, compared), operator.itemgetter(0))
        rows = outcome.in_rows([row for _, row in found])
        title = f"{self.config.model} on {evaluator.dataset.name}: the worst answers"
        return Image.fromarray(pictures.plot_rows(rows, None, title))

    def plot(self) -> "Figure":
        """Returns a figure of the loss and the task's metric over the steps, for a notebook."""
        from jaxdp.reporting import plots  # imports Matplotlib, for which a run need not wait

        title = f"{self.config.model} on {self.config.dataset}"
        if self._setup is not None:
            title = summary_lib.title(self._setup)
        metric = self._task.best_metric[0]
        return plots.curves_figure(self.history, title=title, metric_name=metric)

    def save(self, path: str | pathlib.Path) -> pathlib.Path:
        """Writes a run directory, which `jaxdp.load` and the commands read.

        Raises:
            ConfigError: if the folder is not empty, or cannot be written, and if several processes
                train, which save with `run_dir` instead.
        """
        if jax.process_count() > 1:
            remedy = f"of several processes is saved while they train; give {flag('run_dir')}"
            raise ConfigError("", "", f"a result {remedy}")
        directory = create_run(pathlib.Path(path))
        metrics = self.metrics.get("validation", self.metrics.get("test"))
        directory.checkpoints.mkdir(exist_ok=True)
        settings = config_lib.kept(self.config)
        checkpoints = Checkpoints(
            directory.checkpoints, keep=1, best_metric=None, settings=settings
        )
        with contextlib.closing(checkpoints):
            checkpoints.save(self.step, self.state, dict(self.position), metrics)
        directory.write("dataset.json", dataclasses.asdict(self.description))
        replace_file(directory.file("metrics.jsonl"), rows_text(self.history))
        directory.write("summary.json", self.summary)
        directory.record("saved", self.step)
        directory.write_config(self.config)  # last, because this file makes the folder a run
        return directory.path

    def export(self, path: str | pathlib.Path) -> None:
        """Writes the weights as `NAME.safetensors`, or the evaluation as `NAME.stablehlo`, as
        `python -m jaxdp.convert export` does.

        Raises:
            ConfigError: for another ending, or a file that cannot be written.
        """
        output = pathlib.Path(path)
        exporting.check_output(output)
        exporting.write(self.state, self.config, self.description, output)

    def __repr__(self) -> str:
        metrics = {
            split: {name: round(value, 4) for name, value in values.items() if "/" not in name}
            for split, values in self.metrics.items()
        }
        what = printable(f"{self.config.model} on {self.config.dataset}")
        return f"Result({what}, {self.status} at step {self.summary['steps']}, {metrics})"

    def __reduce__(self) -> Any:
        raise TypeError("a Result is not pickled; use result.save(folder) and jaxdp.load(folder)")
