"""Every strategy trains as its oracle does: `global` and `group:N` as plain jit on one device,
`replica` as vmap on one device.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxdp import models, tasks
from jaxdp.config import BatchNormMode, TrainConfig
from jaxdp.data import pipeline
from jaxdp.data.augment import Preprocess, create_augmentations
from jaxdp.data.sources import open_dataset
from jaxdp.errors import ConfigError
from jaxdp.sharding.communication import Communication
from jaxdp.sharding.strategy import Strategy, create_strategy
from jaxdp.step import batch_norm as batch_norm_lib
from jaxdp.step import step
from jaxdp.step.state import Constants, TrainState, create_train_state

BATCH_SIZE, STEPS = 16, 3
DATASET = open_dataset("digits")
CONSTANTS = Constants.create([0.1], seed=3)
# ShakeDrop, dropout, augmentation and a moving average: whatever draws numbers or keeps state must
# not know the devices.
KWARGS = {"depth": 8, "alpha": 6, "shake_drop": 0.5, "dropout": 0.2}
CASES = [("single", 1)] + [
    (name, count) for name in ("pmap", "shard_map", "sharded") for count in (1, 2, 4, 8)
]
CASES += [("central", 1), ("central", 4)]
# The strategy takes groups only, and its slices are those of its default.
EXACT = [(count, group) for count in (1, 3, 8) for group in ("group:2", "group:8")]
# Groups within a device's share of 16 examples, equal to it, and over several devices; those of 8
# over 2 of 4 devices.
MODES = ("global", "group:2", "group:8", "replica")
# Of these every session tries each strategy with two modes on its largest number of devices, and
# pmap and a single device with all of them.
IN_EVERY_SESSION = {
    ("single", 1): MODES,
    ("pmap", 8): MODES,
    ("shard_map", 8): ("replica", "group:8"),
    ("sharded", 8): ("global", "group:8"),
    ("central", 4): ("group:2", "group:8"),
}


def also_slow(*cases: tuple[Any, ...]) -> list[Any]:
    return [pytest.param(*case, marks=pytest.mark.slow) for case in cases]


def create_optimizer(schedule: optax.Schedule) -> optax.GradientTransformation:
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.add_decayed_weights(1e-4),
        optax.sgd(schedule, 0.9, nesterov=True),
    )


def step_config(batch_norm: str) -> step.StepConfig:
    shift = create_augmentations(["shift:1"], dense=False)
    preprocess = Preprocess(DATASET.mean, DATASET.std, shift)
    task = tasks.create("classification", num_classes=10, label_smoothing=0.1)
    return step.StepConfig(
        task,
        create_optimizer,
        preprocess,
        batch_norm=BatchNormMode.parse(batch_norm),
        ema_decay=0.9,
    )


def create_state() -> TrainState:
    model = models.create("pyramidnet", num_classes=10, in_channels=1, rngs=nnx.Rngs(0), **KWARGS)
    return create_train_state(model, create_optimizer(optax.constant_schedule(0.1)), with_ema=True)


def host_batches() -> list[pipeline.HostBatch]:
    order = pipeline.TrainingOrder(len(DATASET.train), BATCH_SIZE, seed=3, total_steps=STEPS)
    return [pipeline.load(DATASET.train, order[number]) for number in range(STEPS)]


def train(strategy: Strategy, batches: list[pipeline.HostBatch]) -> tuple[TrainState, list[Any]]:
    state, metrics = strategy.init(create_state), []
    for batch in batches:
        state, sums = strategy.train_step(state, strategy.shard_batch(batch), CONSTANTS)
        metrics.append(strategy.gather(sums))
    return strategy.gather(state), metrics


@functools.cache
def oracle_step(batch_norm: str) -> Any:
    """One device, no strategy: jit, or for replica batch norm vmap over the replicas."""
    if batch_norm == "replica":
        mapped = functools.partial(
            step.train_step,
            step_config=step_config(batch_norm),
            replicas=Communication(axis="replicas"),
        )
        return jax.jit(
            jax.vmap(mapped, in_axes=(None, 0, None), out_axes=None, axis_name="replicas")
        )
    return jax.jit(
        functools.partial(
            step.train_step, step_config=step_config(batch_norm), replicas=Communication()
        )
    )


@functools.cache
def oracle(batch_norm: str, replicas: int) -> Any:
    state, metrics, function = create_state(), [], oracle_step(batch_norm)
    for batch in host_batches():
        if batch_norm == "replica":
            batch = {
                name: array.reshape(replicas, -1, *array.shape[1:]) for name, array in batch.items()
            }
        state, sums = function(state, batch, CONSTANTS)
        metrics.append(sums)
    return jax.tree.map(np.asarray, (state, metrics))


def largest_difference(left: Any, right: Any) -> float:
    differences = jax.tree.map(
        lambda a, b: np.max(np.abs(np.float64(a) - np.float64(b))), left, right
    )
    return max(jax.tree.leaves(differences))


def assert_same(found: tuple[Any, list[Any]], expected: tuple[Any, list[Any]]) -> None:
    """Asserts the same step, params, batch_stats, opt_state, averages and mean metrics."""
    assert largest_difference(found[0], expected[0]) <= 1e-5
    assert largest_difference(found[1], expected[1]) <= 1e-5 * BATCH_SIZE


@pytest.mark.parametrize(
    ("name", "count", "batch_norm"),
    [
        pytest.param(
            *case,
            batch_norm,
            marks=() if batch_norm in IN_EVERY_SESSION.get(case, ()) else pytest.mark.slow,
        )
        for case in CASES
        for batch_norm in MODES
    ],
)
def test_strategy_matches_its_oracle(name: str, count: int, batch_norm: str) -> None:
    strategy = create_strategy(name, step_config(batch_norm), jax.devices()[:count])
    strategy.check_batch(BATCH_SIZE)
    found = train(strategy, host_batches())
    assert_same(found, oracle(batch_norm, count if batch_norm == "replica" else 1))
    assert all(sums["examples"] == BATCH_SIZE for sums in found[1])


@pytest.mark.parametrize(("count", "batch_norm"), EXACT)
def test_exact_matches_its_oracle(count: int, batch_norm: str) -> None:
    strategy = create_strategy("exact", step_config(batch_norm), jax.devices()[:count])
    config = TrainConfig.of(global_batch_size=BATCH_SIZE, batch_norm=batch_norm)
    strategy.prepare(create_state, config)
    assert strategy.shards == BATCH_SIZE // int(batch_norm.partition(":")[2])
    assert_same(train(strategy, host_batches()), oracle(batch_norm, 1))


def test_replica_batch_norm_is_another_training() -> None:
    """Else the oracles of this file would not tell the modes apart."""
    assert largest_difference(oracle("replica", 8)[0].params, oracle("global", 1)[0].params) > 1e-3
    assert (
        largest_difference(oracle("group:2", 1)[0].params, oracle("replica", 8)[0].params) <= 1e-5
    )


@pytest.mark.parametrize("name", ["pmap", "shard_map"])
def test_without_the_mean_replicas_drift_apart(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: leave out what pmeans gradients, and parity is lost."""
    monkeypatch.setattr(Communication, "mean", lambda self, tree: tree)
    strategy = create_strategy(name, step_config("group:2"), jax.devices()[:8])
    if name == "shard_map":  # it notices by itself that replicas would differ
        with pytest.raises(ValueError, match=r"varying|replicated|out_specs"):
            train(strategy, host_batches())
        return
    state, _ = train(strategy, host_batches())
    assert largest_difference(state.params, oracle("group:2", 1)[0].params) > 1e-3


@pytest.mark.parametrize("name", ["pmap", "sharded"])
def test_groups_over_devices_need_their_statistics(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: leave out what makes the statistics of a group of those of its parts."""
    monkeypatch.setattr(batch_norm_lib, "of_groups", lambda replicas, count, mean, var: (mean, var))
    state, _ = train(
        create_strategy(name, step_config("group:8"), jax.devices()[:8]), host_batches()
    )
    assert largest_difference(state.params, oracle("group:8", 1)[0].params) > 1e-3


@pytest.mark.parametrize(
    ("name", "group", "count"),
    [("pmap", 4, 4), ("sharded", 8, 4), *also_slow(("shard_map", 8, 8), ("central", 8, 4))],
)
def test_groups_may_end_within_a_device(name: str, group: int, count: int) -> None:
    """24 examples on 4 or 8 devices, which hold 6 or 3."""
    batch = pipeline.load(DATASET.train, np.arange(24))
    changed = step_config(f"group:{group}")
    strategy = create_strategy(name, changed, jax.devices()[:count])
    strategy.check_batch(len(batch["labels"]))
    state, _ = train(strategy, [batch])
    expected, _ = oracle_step(f"group:{group}")(create_state(), batch, CONSTANTS)
    assert largest_difference(state, jax.tree.map(np.asarray, expected)) <= 1e-5


def test_without_the_cast_shard_map_sums_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the other kind: differentiating replicated parameters sums their gradients
    before the mean.
    """
    monkeypatch.setattr(Communication, "local", lambda self, tree: tree)
    # Without clipping, which would hide a factor.
    plain = dataclasses.replace(step_config("group:2"), optimizer=optax.sgd)

    def create() -> TrainState:
        model = models.create(
            "pyramidnet", num_classes=10, in_channels=1, rngs=nnx.Rngs(0), **KWARGS
        )
        return create_train_state(model, optax.sgd(optax.constant_schedule(0.1)), with_ema=True)

    states = []
    for name, count in (("single", 1), ("shard_map", 8)):
        strategy = create_strategy(name, plain, jax.devices()[:count])
        state, _ = strategy.train_step(
            strategy.init(create), strategy.shard_batch(host_batches()[0]), CONSTANTS
        )
        states.append(strategy.gather(state))
    assert largest_difference(states[0].params, states[1].params) > 1e-3


@pytest.mark.parametrize(("name", "count"), [("pmap", 4), ("shard_map", 4), ("sharded", 4)])
def test_missing_examples_do_not_skew_the_mean(name: str, count: int) -> None:
    """Weights of 0, all on one replica: the update is that of the examples that are there."""
    batch = host_batches()[0]
    batch["weights"] = np.where(np.arange(BATCH_SIZE) < 6, 0, 1).astype(np.float32)
    expected, _ = oracle_step("group:2")(create_state(), batch, CONSTANTS)
    state, metrics = train(
        create_strategy(name, step_config("group:2"), jax.devices()[:count]), [batch]
    )
    assert metrics[0]["examples"] == 10
    assert largest_difference(state.params, expected.params) <= 1e-5


def test_state_is_replicated_and_consumed() -> None:
    strategy = create_strategy("pmap", step_config("replica"), jax.devices()[:4])
    host = create_state()
    before = strategy.restore(host)
    after, _ = strategy.train_step(before, strategy.shard_batch(host_batches()[0]), CONSTANTS)
    jax.tree.map(lambda old, new: np.testing.assert_equal(old.shape, new.shape), host, after)
    assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(after))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before.params))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(host))


@pytest.mark.parametrize(
    ("batch_norm", "parts", "count", "size", "message"),
    [
        ("group:2", 1, 8, 100, "8 devices do not divide it; use 96 or 104"),
        ("group:2", 1, 8, 3, r"use 8$"),
        ("group:10", 1, 8, 24, "does not divide the 24 examples of the batch; use e.g. group:12"),
        (
            "group:16",
            3,
            8,
            72,
            "does not divide the 24 examples of a microbatch; use e.g. group:12",
        ),
        (
            "replica",
            3,
            4,
            16,
            "accumulate_steps=3: does not divide the 4 examples of each device; use e.g. 2",
        ),
    ],
)
def test_batches_that_do_not_divide_are_refused(
    batch_norm: str, parts: int, count: int, size: int, message: str
) -> None:
    changed = dataclasses.replace(step_config(batch_norm), accumulate_steps=parts)
    strategy = create_strategy("pmap", changed, jax.devices()[:count])
    with pytest.raises(ConfigError, match=message):
        strategy.check_batch(size)


def test_single_takes_one_device() -> None:
    with pytest.raises(ConfigError, match=r'devices=2.*strategy="pmap"'):
        create_strategy("single", step_config("replica"), jax.devices()[:2])


PARTS = {"accumulate_steps": 2}  # computed one after the other, with statistics as if at once


@pytest.mark.parametrize(
    ("name", "count", "changes"),
    [
        ("pmap", 4, PARTS),
        ("sharded", 4, PARTS),
        ("pmap", 4, {"remat": "blocks"}),
        *also_slow(
            ("single", 1, PARTS),
            ("shard_map", 4, PARTS),
            ("central", 4, PARTS),
            *((name, 4, PARTS | {"scan": True}) for name in ("pmap", "shard_map", "sharded")),
            ("shard_map", 4, {"remat": "blocks"}),
            *((name, 4, {"remat": "blocks"}) for name in ("sharded", "central")),
        ),
    ],
)
def test_microbatches_and_recomputation_change_nothing(
    name: str, count: int, changes: dict[str, Any]
) -> None:
    changed = dataclasses.replace(step_config("group:2"), **changes)
    strategy = create_strategy(name, changed, jax.devices()[:count])
    strategy.check_batch(BATCH_SIZE)
    assert_same(train(strategy, host_batches()), oracle("group:2", 1))


@pytest.mark.parametrize("name", ["pmap", "shard_map", "sharded"])
def test_a_loop_over_microbatches_is_no_longer_than_the_step_of_one(name: str) -> None:
    """Compiling for accelerators takes long: the program has each convolution once."""

    def convolutions(count: int) -> int:
        looped = dataclasses.replace(step_config("replica"), accumulate_steps=count, scan=True)
        strategy = create_strategy(name, looped, jax.devices()[:4])
        batch = strategy.shard_batch(host_batches()[0])
        step: Any = strategy.train_step
        return (
            step.lower(strategy.init(create_state), batch, CONSTANTS)
            .as_text()
            .count("stablehlo.convolution")
        )

    assert convolutions(4) == convolutions(1) > 0


@pytest.mark.parametrize(
    ("name", "count", "batch_norm"),
    [
        ("sharded", 8, "global"),
        *also_slow(
            ("pmap", 4, "group:8"),
            ("shard_map", 4, "group:8"),
            ("sharded", 4, "group:8"),
            ("central", 4, "group:8"),
            ("pmap", 8, "group:4"),
            ("pmap", 4, "global"),
            ("shard_map", 8, "global"),
        ),
    ],
)
def test_microbatches_are_the_same_on_several_devices(
    name: str, count: int, batch_norm: str
) -> None:
    """Statistics over devices are those of consecutive examples of the global batch, in each of two
    microbatches.
    """
    changed = dataclasses.replace(step_config(batch_norm), accumulate_steps=2)
    expected = oracle_of_two(batch_norm)
    strategy = create_strategy(name, changed, jax.devices()[:count])
    strategy.check_batch(BATCH_SIZE)
    order = strategy.batch_permutation(BATCH_SIZE)
    assert order is not None
    ordered = [{key: values[order] for key, values in batch.items()} for batch in host_batches()]
    assert_same(train(strategy, ordered), expected)
    unordered, _ = train(strategy, host_batches())
    assert largest_difference(unordered.params, expected[0].params) > 1e-3


@functools.cache
def oracle_of_two(batch_norm: str) -> Any:
    changed = dataclasses.replace(step_config(batch_norm), accumulate_steps=2)
    return train(create_strategy("single", changed, jax.devices()[:1]), host_batches())


@pytest.mark.parametrize("flat", [False, True])
def test_arrays_that_travel_together_arrive_apart(flat: bool) -> None:
    rng = np.random.default_rng(0)
    shapes = {"kernel": (4, 3, 2), "bias": (4,), "narrow": (4, 5), "counts": (4, 2, 2)}
    # Small whole numbers, whose sums are exact in 16 bits.
    tree = {
        name: rng.integers(-9, 9, shape).astype(
            {"narrow": jnp.bfloat16, "counts": np.int32}.get(name, np.float32)
        )
        for name, shape in shapes.items()
    }
    replicas = Communication(axis="replicas", flat=flat)
    means, sums = jax.vmap(
        lambda tree: (replicas.mean(tree | {"counts": {}}), replicas.sum(tree)),
        axis_name="replicas",
    )(tree)
    for name, values in tree.items():
        total = np.asarray(values, np.float32).sum(0)
        assert sums[name].dtype == values.dtype
        np.testing.assert_array_equal(np.float32(sums[name][1]), total)
        if name != "counts":
            assert means[name].dtype == values.dtype
            np.testing.assert_allclose(np.float32(means[name][1]), total / 4, rtol=1e-2)
