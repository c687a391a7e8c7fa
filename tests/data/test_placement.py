"""A dataset on the devices and one that streams from the host give the same batches, bit by bit."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from example_files import Broken, skipped
from numpy.testing import assert_array_equal

from jaxdp.build import setup
from jaxdp.build.setup import Setup, create_setup
from jaxdp.config import TrainConfig
from jaxdp.data import placement
from jaxdp.data.sources import Dataset, Split
from jaxdp.step.step import example_keys

CONFIGS = {
    "digits": TrainConfig.of(
        model_kwargs={"depth": 8, "alpha": 6},
        augment=("shift:1", "mixup:0.4"),
        global_batch_size=16,
        steps=4,
    ),
    "cells": TrainConfig.of(
        model="unet",
        model_kwargs={"base_channels": 2, "levels": 1},
        augment=("crop:32", "flip"),
        global_batch_size=8,
        steps=4,
    ),
}


def batches(run: Setup) -> list[dict[str, np.ndarray]]:
    """What the models see, over devices."""
    complete = jax.jit(placement.gather_examples)
    key = jax.random.key_data(jax.random.key(0))
    preprocess = jax.jit(
        lambda batch: run.step_config.preprocess(
            batch, lambda indices: example_keys(key, jnp.int32(0), indices)
        )
    )
    host_data = jax.tree.map(np.asarray, dict(run.examples.train))
    seen = []
    for batch in run.batches.placed(0):
        batch = complete({name: np.asarray(array) for name, array in batch.items()}, host_data)
        stored = {f"stored_{name}": np.asarray(array) for name, array in batch.items()}
        seen.append(stored | {name: np.asarray(array) for name, array in preprocess(batch).items()})
    return seen


@pytest.mark.parametrize("name", CONFIGS)
def test_both_placements_give_the_same_batches(name: str) -> None:
    host, device = (
        create_setup(CONFIGS[name].replace(data_placement=kind, strategy="sharded", devices=4))
        for kind in ("host", "device")
    )
    assert not host.examples.train
    assert all(array.is_fully_replicated for array in jax.tree.leaves(device.examples.train))
    assert device.examples.train["images"].rows.dtype == jnp.uint8
    pairs = list(zip(batches(host), batches(device), strict=True))
    assert len(pairs) == 4
    for streamed, gathered in pairs:
        assert streamed.keys() == gathered.keys()
        for field, values in streamed.items():
            assert_array_equal(gathered[field], values, err_msg=field)


def test_evaluation_agrees_too_and_counts_each_example_once() -> None:
    found: list[Any] = []
    for kind in ("host", "device"):
        run = create_setup(
            CONFIGS["digits"].replace(data_placement=kind, devices=4, global_batch_size=100)
        )
        found.append(run.evaluator.evaluate(run.strategy.init(run.create_state)))
    assert found[0]["examples"] == 360
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "dtype", "stored"),
    [
        ((8, 8, 1), "uint8", (1, 128)),  # one row of 128 columns, half of it empty
        ((28, 28), "uint8", (1, 896)),
        ((32, 32, 3), "uint8", (1, 3072)),  # nothing over
        # Rows of at most 16 KiB: 98 tiles each, where 10 rows would leave some over.
        ((224, 224, 3), "uint8", (12, 12544)),
        ((5, 7, 3), "uint16", (1, 128)),
        ((64, 64, 3), "float32", (3, 4096)),
        ((127, 131, 1), "float32", (5, 3328)),
    ],
)
def test_examples_come_back_from_rows(
    shape: tuple[int, ...], dtype: str, stored: tuple[int, int]
) -> None:
    numbers = np.random.default_rng(0).integers(0, 200, (11, *shape)).astype(dtype)
    rows = placement.Rows.pack(numbers)
    assert rows.rows.shape == (11 * stored[0], stored[1])
    assert stored[1] % 128 == 0
    assert stored[1] * numbers.itemsize <= 16 * 1024
    abstract = placement.abstract({"images": numbers[:1]}, 11)
    assert abstract["images"].rows.shape == rows.rows.shape
    indices = np.array([10, 0, 3, 3], np.int32)
    assert_array_equal(
        jax.jit(lambda rows, indices: rows.take(indices))(rows, indices), numbers[indices]
    )


def test_bad_examples_have_no_weight_in_either_placement() -> None:
    arrays = Broken(np.full((600, 1, 1, 1), 7, np.uint8), np.zeros(600, np.int32))
    dataset = Dataset(arrays, arrays, num_classes=1, image_shape=(1, 1, 1), mean=(0.0,), std=(1.0,))
    source = Split(arrays, dataset, where="numbers", skip=True)
    told: list[tuple[int, int]] = []
    data = placement.read_all(source, lambda done, total: told.append((done, total)))
    assert told == [(256, 600), (512, 600), (600, 600)]
    assert list(np.flatnonzero(data["weights"] == 0)) == [2]
    batch = {"indices": jnp.array([1, 2, 3, 0]), "weights": jnp.array([1.0, 1.0, 1.0, 0.0])}
    gathered = placement.gather_examples(batch, jax.tree.map(jnp.asarray, data))
    assert_array_equal(gathered["weights"], [1, 0, 1, 0])
    assert_array_equal(gathered["images"][:, 0, 0, 0], [7, 0, 7, 7])
    assert skipped(source) == {2: "file 2: is truncated"}


def test_what_does_not_fit_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    assert create_setup(CONFIGS["digits"]).config.data_placement == "device"
    needed = 1797 * (64 + 4 + 4)
    for share, expected in ((3.9, "host"), (4.1, "device")):
        monkeypatch.setattr(
            setup.platform, "device_memory_bytes", lambda devices, share=share: needed * share
        )
        assert create_setup(CONFIGS["digits"]).config.data_placement == expected
