"""Evaluates a state on the splits of a dataset."""

import collections
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from jaxdp.build.examples import Examples
from jaxdp.data import pipeline
from jaxdp.data.augment import Preprocess
from jaxdp.data.request import SPLIT_FLAGS
from jaxdp.data.sources import Dataset
from jaxdp.errors import ConfigError, flag
from jaxdp.runtime.processes import compile_then_barrier
from jaxdp.sharding import memory
from jaxdp.step import metrics
from jaxdp.step.state import Constants, TrainState
from jaxdp.step.views import VIEWS
from jaxdp.text.console import say

# Of a batch of images with an answer for each pixel, unless it has one image for each shard. A
# signal waits for a batch.
_MOST_PIXELS = 2**20
# Batches that the devices have been given before the host waits for the first.
_AHEAD = 2
_REMEDY = f"cut the images into tiles, or train with a smaller {flag('global_batch_size')} or model"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Computes the metric sums of a state over whole splits.

    Attributes:
        most: examples of a batch over all devices.
    """

    examples: Examples
    preprocess: Preprocess
    most: int

    @property
    def dataset(self) -> Dataset:
        """The dataset whose splits are evaluated."""
        return self.examples.dataset

    @property
    def split(self) -> str | None:
        """`validation` if the dataset has one, otherwise `test`; None if nothing is held out."""
        return self.dataset.evaluation_split

    def chosen(self, split: str | None) -> list[str]:
        """Returns the splits to evaluate where a user asks for `split`, which may be `all`.

        Raises:
            ConfigError: for a split that is not there.
        """
        known, name = [*self.dataset.splits()], self.dataset.name
        there = ", ".join([*known, "all"])
        if split is None:
            split = self.split or "train"
            if split != "test" and len(known) > 1:
                say(f"note: {name} is evaluated on {split}; it has: {there}")
        if split not in (*known, "all"):
            remedy = f"there is no split {split!r} in {name}; there are: {there}"
            raise ConfigError("split", split, remedy)
        return known if split == "all" else [split]

    def batch_size(self, split: str) -> int:
        """Returns the number of examples in a batch of a split over all devices.

        Raises:
            ConfigError: if the loss compares the examples of a batch, and the split has less than a
                batch.
        """
        strategy, count = self.examples.strategy, len(self.examples.source(split))
        shards = strategy.shards
        if not strategy.step_config.task.over_batch:
            height, width, _ = self.dataset.image_shape
            is_dense = self.dataset.kind != "classification"
            most = max(_MOST_PIXELS // (height * width), 1) if is_dense else count
            views = len(VIEWS[strategy.step_config.views])  # which make a batch larger
            most = max(min(self.most, most) // views, 1)
            return -(-min(count, most) // shards) * shards
        whole = self.most // shards * shards
        if not 0 < whole <= count:
            remedy = f"the loss is over a whole batch, and the {split} data have {count} examples"
            raise ConfigError("global_batch_size", self.most, f"{remedy}; use a smaller one")
        return whole

    def evaluate(
        self,
        state: TrainState,
        batch_done: Callable[[], None] = lambda: None,
        *,
        split: str | None = None,
    ) -> metrics.Sums:
        """Returns metric sums over every example of a split once, whatever divides what.

        Args:
            batch_done: is called after each batch, and may raise an exception.
            split: None for the usual one; its examples may stay on the devices.
        """
        split = split or self.split
        assert split is not None
        count = len(self.examples.source(split))
        sums: metrics.Sums = {}
        order = pipeline.EvaluationOrder(count, self.batch_size(split))
        shape = self.dataset.image_shape
        what = f"evaluating {order.global_batch_size} images of {shape[0]}x{shape[1]}"
        with memory.explained(what, lambda _: _REMEDY):
            for part in self._parts(state, split, order):
                sums = metrics.add(sums, part)
                batch_done()
        if not sums["examples"]:
            raise self.examples.source(split).nothing_left()
        if sums.get("unscored", 0.0) == sums["examples"]:
            masks = f"its {count} masks hold no pixel that counts, but ignored ones alone"
            remedy = "correct them, or evaluate on other data"
            raise ConfigError(SPLIT_FLAGS[split], split, f"{masks}; {remedy}")
        return sums

    def _parts(self, state: TrainState, split: str, order: Any) -> Iterator[metrics.Sums]:
        examples, strategy = self.examples, self.examples.strategy
        data = examples.evaluated if split == self.split else examples.resident(split)
        constants = Constants(data, moments=strategy.replicate(self.preprocess.moments))
        under_way: collections.deque[Any] = collections.deque()
        layout = strategy.batch_permutation(order.global_batch_size, training=False)
        for batch in examples.batches(split, order, layout=layout):
            sums = compile_then_barrier(strategy.eval_step, state, batch, constants)
            under_way.append(sums)
            yield strategy.gather(under_way.popleft()) if len(under_way) > _AHEAD else {}
        yield from map(strategy.gather, under_way)
