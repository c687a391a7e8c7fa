"""The batches of a run: reads the splits of its dataset and places them on the devices."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from jaxdp.build.intervals import Intervals
from jaxdp.config import TrainConfig
from jaxdp.data import pipeline, placement
from jaxdp.data.request import SPLIT_FLAGS
from jaxdp.data.sources import BadExample, Dataset, Split
from jaxdp.errors import ConfigError
from jaxdp.runtime import platform
from jaxdp.runtime.processes import compile_then_barrier
from jaxdp.sharding.strategy import Strategy
from jaxdp.step import metrics
from jaxdp.step.state import Constants, TrainState
from jaxdp.step.step import StepConfig
from jaxdp.text.console import say

Advance = Callable[[str, int, int], None]
# Batches of an evaluation that the devices have been given before the host waits for the first.
_EVALUATED_AHEAD = 2
# Threads that read if no setting gives their number; each has a batch that waits on the devices.
_FEWEST_WORKERS, _MOST_WORKERS = 2, 8


def ignore_progress(split: str, done: int, total: int) -> None:
    """Ignores reading progress."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batches:
    """The batches of a run, for training and evaluation.

    Attributes:
        config: the settings, with what depends on model, dataset and devices filled in.
        advance: reading progress callback(split, done, total), called while a split is put on the
            devices.
    """

    config: TrainConfig
    dataset: Dataset
    step_config: StepConfig
    strategy: Strategy
    intervals: Intervals
    advance: Advance = ignore_progress

    @property
    def global_batch_size(self) -> int:
        """Examples of a step over all devices."""
        assert isinstance(self.config.global_batch_size, int)
        return self.config.global_batch_size

    @property
    def streams(self) -> bool:
        """Whether batches hold examples; otherwise indices of the examples on the devices."""
        return self.config.data_placement == "host"

    @property
    def evaluation_split(self) -> str | None:
        """`validation` if the dataset has one, otherwise `test`; None if nothing is held out."""
        return self.dataset.evaluation_split

    def chosen_splits(self, split: str | None) -> list[str]:
        """Returns the splits to evaluate where a user asks for `split`, which may be `all`.

        Raises:
            ConfigError: for a split that is not there.
        """
        known, name = [*self.dataset.splits()], self.config.dataset
        there = ", ".join([*known, "all"])
        if split is None:
            split = self.evaluation_split or "train"
            if split != "test" and len(known) > 1:
                say(f"note: {name} is evaluated on {split}; it has: {there}")
        if split not in (*known, "all"):
            remedy = f"there is no split {split!r} in {name}; there are: {there}"
            raise ConfigError("split", split, remedy)
        return known if split == "all" else [split]

    def source(self, split: str) -> Split:
        """Returns a split by its name."""
        source = getattr(self.dataset, split)
        assert isinstance(source, Split)
        return source

    @functools.cached_property
    def train_data(self) -> Mapping[str, Any]:
        """The training set on the devices; empty if it streams, or if others read it."""
        return self._resident("train") if self.strategy.takes_batches else {}

    @functools.cached_property
    def evaluation_data(self) -> Mapping[str, Any]:
        """The split that is evaluated, on the devices; empty if it streams, or there is none."""
        return self._resident(self.evaluation_split)

    def _resident(self, split: str | None) -> Mapping[str, Any]:
        if self.streams or split is None:
            return {}
        advance = functools.partial(self.advance, split)
        arrays = placement.read_all(self.source(split), advance, self._workers)
        return self.strategy.replicate(placement.pack(arrays))

    @property
    def train_order(self) -> pipeline.TrainingOrder:
        """Which examples are in which step."""
        return pipeline.TrainingOrder(
            self.dataset.train_examples,
            self.global_batch_size,
            self.config.seed,
            self.intervals.total_steps,
        )

    def train_batches(self, start: int) -> Iterator[Any]:
        """Returns the placed batches from step `start` on, with `--steps-per-execution` the batches
        of each execution together; or the numbers of the steps, if the strategy takes numbers.
        """
        self.strategy.check_started()
        if not self.strategy.takes_batches:
            return iter(range(start, self.intervals.total_steps))
        order: Any = self.train_order
        if self.intervals.steps_per_execution > 1:
            order, start = pipeline.CallOrder(order, self.intervals.executions(start)), 0
        layout = self.strategy.batch_permutation(self.global_batch_size)
        paired = bool(self.step_config.preprocess.mixings)
        return self._batches("train", order, start=start, paired=paired, layout=layout)

    def evaluate(
        self,
        state: TrainState,
        batch_done: Callable[[], None] = lambda: None,
        *,
        split: str | None = None,
    ) -> metrics.Sums:
        """Returns metric sums over every example of a split once, whatever divides what.

        Args:
            batch_done: is called after each batch.
            split: None for `evaluation_split`; its examples may stay on the devices.
        """
        split = split or self.evaluation_split
        assert split is not None
        devices, examples = self.strategy.num_devices, len(self.source(split))
        batch_size = -(-min(self.global_batch_size, examples) // devices) * devices
        sums: metrics.Sums = {}
        order = pipeline.EvaluationOrder(examples, batch_size)
        for part in self._evaluate(state, split, order):
            sums = metrics.add(sums, part)
            batch_done()
        if not sums["examples"]:
            raise self.source(split).nothing_left()
        if sums.get("unscored", 0.0) == sums["examples"]:
            masks = f"its {examples} masks hold no pixel that counts, but ignored ones alone"
            remedy = "correct them, or evaluate on other data"
            raise ConfigError(SPLIT_FLAGS[split], split, f"{masks}; {remedy}")
        return sums

    def _evaluate(self, state: TrainState, split: str, order: Any) -> Iterator[metrics.Sums]:
        data = self.evaluation_data if split == self.evaluation_split else self._resident(split)
        constants = Constants(
            data, moments=self.strategy.replicate(self.step_config.preprocess.moments)
        )
        under_way: collections.deque[Any] = collections.deque()
        for batch in self._batches(split, order):
            sums = compile_then_barrier(self.strategy.eval_step, state, batch, constants)
            under_way.append(sums)
            if len(under_way) > _EVALUATED_AHEAD:
                yield self.strategy.gather(under_way.popleft())
        yield from map(self.strategy.gather, under_way)

    def skipped(self) -> dict[str, list[BadExample]]:
        """Returns the bad examples that this process left out so far, by split and in its order."""
        found = {split: self.source(split).errors for split in self.dataset.splits()}
        return {
            split: [errors[index] for index in sorted(errors)]
            for split, errors in found.items()
            if errors
        }

    def _batches(self, split: str, order: Any, **options: Any) -> Iterator[Any]:
        # Not before: `plan` compiles and runs nothing.
        platform.check_precision(self.config.precision)
        read = pipeline.index_batch
        if self.streams:
            read = functools.partial(pipeline.load, self.source(split))
        return pipeline.batches(
            read,
            order,
            self.strategy.shard_batch,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            threads=self._workers,
            **options,
        )

    @property
    def _workers(self) -> int:
        """Threads that read and decode."""
        return self.config.data_workers or min(
            max(platform.cores(), _FEWEST_WORKERS), _MOST_WORKERS
        )
