"""The order is a pure function of (seed, step), every example is evaluated once, and processes
share without changing anything.
"""

import functools
import threading
from typing import Any

import numpy as np
import pytest
from example_files import Broken, bad_example, skipped
from numpy.testing import assert_array_equal

from jaxdp.build.setup import create_setup
from jaxdp.config import TrainConfig
from jaxdp.data import pipeline
from jaxdp.data.sources import ArraySource, Dataset, Split
from jaxdp.runtime import platform


def checked(source: Any, count: int, skip: bool = False) -> Split:
    dataset = Dataset(
        source, source, num_classes=count, image_shape=(1, 1, 1), mean=(0.0,), std=(1.0,)
    )
    return Split(source, dataset, where="numbers", skip=skip)


def source(count: int) -> Split:
    """Example n shows and is labelled n."""
    arrays = ArraySource(
        np.arange(count, dtype=np.uint8).reshape(-1, 1, 1, 1), np.arange(count, dtype=np.int32)
    )
    return checked(arrays, count)


def batches(source: Split, order: Any, **kwargs: Any) -> list[dict[str, np.ndarray]]:
    load = functools.partial(pipeline.load, source)
    return list(pipeline.batches(load, order, lambda batch: batch, **kwargs))


def test_an_epoch_visits_each_example_at_most_once_and_the_next_in_another_order() -> None:
    order = pipeline.TrainingOrder(num_examples=23, global_batch_size=5, seed=1, total_steps=8)
    epochs = [np.concatenate([order[epoch * 4 + step] for step in range(4)]) for epoch in range(2)]
    for numbers in epochs:
        assert len(set(numbers)) == 20
    assert set(epochs[0]) != set(epochs[1]) or not np.array_equal(*epochs)
    again = pipeline.TrainingOrder(num_examples=23, global_batch_size=5, seed=1, total_steps=100)
    assert_array_equal(order[6], again[6])  # seeking needs nothing before it
    assert not np.array_equal(order[0], pipeline.TrainingOrder(23, 5, 2, 8)[0])


@pytest.mark.parametrize("threads", [1, 6])
def test_as_many_threads_read_as_asked_for(threads: int) -> None:
    together = threading.Barrier(threads)  # nobody passes before all have come

    class Slow:
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> dict[str, Any]:
            names.add(threading.current_thread().name)
            if index < threads:
                together.wait(timeout=60)
            return {"images": np.full((1, 1, 1), index, np.uint8), "labels": index}

    names: set[str] = set()
    found = batches(checked(Slow(), 12), pipeline.EvaluationOrder(12, 1), threads=threads)
    assert [int(batch["labels"][0]) for batch in found] == list(range(12))
    assert len(names) == threads


def test_the_number_of_threads_is_that_of_the_cores_or_the_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        pipeline, "batches", lambda *arguments, threads, **kwargs: iter(asked.append(threads) or ())
    )
    for cores, workers in ((1, None), (6, None), (64, None), (64, 3)):
        monkeypatch.setattr(platform, "cores", lambda cores=cores: cores)
        config = TrainConfig.of(model="cnn", data_placement="host", data_workers=workers)
        create_setup(config).batches.placed(0)
    assert asked == [2, 6, 8, 3]


def test_batches_from_a_step_on_are_those_of_the_whole_run() -> None:
    order = pipeline.TrainingOrder(23, 5, 1, 11)
    whole = batches(source(23), order)
    rest = batches(source(23), order, start=7)
    assert len(whole) == 11
    for expected, batch in zip(whole[7:], rest, strict=True):
        for name in expected:
            assert_array_equal(batch[name], expected[name])
    assert list(whole[3]["labels"]) == list(whole[3]["indices"]) == list(order[3])


@pytest.mark.parametrize(("examples", "batch_size"), [(10, 4), (8, 4), (3, 16), (1, 1)])
def test_evaluation_counts_every_example_once(examples: int, batch_size: int) -> None:
    order = pipeline.EvaluationOrder(examples, batch_size)
    found = batches(source(examples), order)
    assert all(len(batch["labels"]) == batch_size for batch in found)
    counted = np.concatenate([batch["labels"][batch["weights"] == 1] for batch in found])
    assert_array_equal(counted, np.arange(examples))
    assert sum(batch["weights"].sum() for batch in found) == examples


def broken(count: int, skip: bool) -> Split:
    whole = source(count).source
    assert isinstance(whole, ArraySource)
    return checked(Broken(whole.images, whole.targets, bad=range(3, count, 5)), count, skip)


def test_a_broken_example_stops_the_run_with_its_own_error() -> None:
    with bad_example(r'file .*truncated.*on_bad_example="skip"'):
        batches(broken(23, skip=False), pipeline.TrainingOrder(23, 5, 1, 11))


def test_or_it_is_left_out_and_counted() -> None:
    examples = broken(20, skip=True)
    found = batches(examples, pipeline.EvaluationOrder(20, 8))
    counted = np.concatenate([batch["labels"][batch["weights"] == 1] for batch in found])
    assert list(counted) == [number for number in range(20) if number % 5 != 3]
    assert skipped(examples) == {
        number: f"file {number}: is truncated" for number in (3, 8, 13, 18)
    }


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_processes_share_a_batch_and_pairs_depend_on_the_whole_of_it(processes: int) -> None:
    order = pipeline.TrainingOrder(23, 8, 1, 4)
    shares = [
        batches(source(23), order, process_index=index, process_count=processes, paired=True)
        for index in range(processes)
    ]
    for step, parts in enumerate(zip(*shares, strict=True)):
        batch = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        for prefix, numbers in (("", order[step]), ("partner_", np.roll(order[step], 1))):
            assert_array_equal(batch[f"{prefix}indices"], numbers)
            assert_array_equal(batch[f"{prefix}labels"], numbers)
            assert_array_equal(batch[f"{prefix}images"][:, 0, 0, 0], numbers)
