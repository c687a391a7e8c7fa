"""The examples of a run: reads the splits of its dataset, and places them on the devices."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from jaxdp.config import TrainConfig
from jaxdp.data import pipeline, placement
from jaxdp.data.sources import BadExample, Dataset, Split
from jaxdp.runtime import platform
from jaxdp.sharding.strategy import Strategy

Advance = Callable[[str, int, int], None]
# Threads that read if no setting gives their number; each has a batch that waits on the devices.
_FEWEST_WORKERS, _MOST_WORKERS = 2, 8


def ignore_progress(split: str, done: int, total: int) -> None:
    """Ignores reading progress."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examples:
    """The dataset of a run, and the way of its examples to the devices.

    Attributes:
        streams: whether batches hold examples; otherwise indices of the examples on the devices.
        threads: that read and decode.
        precision: of the computation, which must work on the devices.
        advance: reading progress callback(split, done, total), called while a split is put on the
            devices.
    """

    dataset: Dataset
    strategy: Strategy
    streams: bool
    threads: int
    precision: str
    advance: Advance = ignore_progress

    @classmethod
    def of(
        cls, config: TrainConfig, dataset: Dataset, strategy: Strategy, advance: Advance
    ) -> "Examples":
        """Returns the examples of a dataset as the settings read and place them."""
        threads = config.data_workers or min(max(platform.cores(), _FEWEST_WORKERS), _MOST_WORKERS)
        return cls(
            dataset=dataset,
            strategy=strategy,
            streams=config.data_placement == "host",
            threads=threads,
            precision=config.precision,
            advance=advance,
        )

    def source(self, split: str) -> Split:
        """Returns a split by its name."""
        source = getattr(self.dataset, split)
        assert isinstance(source, Split)
        return source

    @functools.cached_property
    def train(self) -> Mapping[str, Any]:
        """The training set on the devices; empty if it streams, or if others read it."""
        return self.resident("train") if self.strategy.takes_batches else {}

    @functools.cached_property
    def evaluated(self) -> Mapping[str, Any]:
        """The split that is evaluated, on the devices; empty if it streams, or there is none."""
        return self.resident(self.dataset.evaluation_split)

    def resident(self, split: str | None) -> Mapping[str, Any]:
        """Reads a split and places it on the devices; nothing if it streams, or there is none."""
        if self.streams or split is None:
            return {}
        advance = functools.partial(self.advance, split)
        arrays = placement.read_all(self.source(split), advance, self.threads)
        return self.strategy.replicate(placement.pack(arrays))

    def batches(self, split: str, order: Any, **options: Any) -> Iterator[Any]:
        """Returns the placed batches of a split in an order, as `pipeline.batches` does."""
        # Not before: `plan` compiles and runs nothing.
        platform.check_precision(self.precision)
        read = pipeline.index_batch
        if self.streams:
            read = functools.partial(pipeline.load, self.source(split))
        return pipeline.batches(
            read,
            order,
            self.strategy.shard_batch,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            threads=self.threads,
            **options,
        )

    def skipped(self) -> dict[str, list[BadExample]]:
        """Returns the bad examples that this process left out so far, by split and in its order."""
        found = {split: self.source(split).errors for split in self.dataset.splits()}
        return {
            split: [errors[index] for index in sorted(errors)]
            for split, errors in found.items()
            if errors
        }
