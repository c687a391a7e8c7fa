"""The default batch of small sets, class weights and early stopping by one
flag.
"""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from example_files import split_classes, write
from runs import rows, run_train, summary
from sklearn.utils.class_weight import compute_class_weight

import jaxdp
from jaxdp import data, tasks
from jaxdp.build import class_weights as weights
from jaxdp.build.setup import create_setup
from jaxdp.config import ClassWeights, TrainConfig, run_hash
from jaxdp.data.split import Split
from jaxdp.errors import ConfigError
from jaxdp.tasks.classification import Classification

RNG = np.random.default_rng(0)
COUNTS = (60, 25, 11)  # of each class
SMALL: dict[str, Any] = {"model_kwargs": {"width": 2, "hidden": 8}, "progress": False}


def uneven(counts: tuple[int, ...] = COUNTS, **more: Any) -> data.Dataset:
    labels = RNG.permutation(np.repeat(np.arange(len(counts)), counts))
    images = RNG.integers(0, 256, (len(labels), 8, 8, 1), np.uint8)
    return data.from_arrays(images, labels, test=(images[:9], labels[:9]), **more)


def masked() -> data.Dataset:
    masks = RNG.choice(4, (24, 8, 8), p=[0.5, 0.3, 0.1, 0.1]).astype(np.uint8)
    masks[masks == 3] = 255
    masks[0] = 255  # an image without a pixel that counts
    images = RNG.integers(0, 256, (24, 8, 8, 1), np.uint8)
    return data.from_arrays(images, masks, test=(images[:4], masks[:4]))


def setup_of(dataset: data.Dataset, devices: int = 1, model: str = "cnn", **settings: Any) -> Any:
    kwargs = {"width": 2, "hidden": 8} if model == "cnn" else {"base_channels": 2, "levels": 1}
    return jaxdp.Trainer(
        model, dataset, model_kwargs=kwargs, devices=devices, **({"progress": False} | settings)
    ).setup


@pytest.mark.parametrize(
    ("examples", "devices", "settings", "expected"),
    [
        (24, 1, {}, 4),
        (24, 2, {}, 4),
        (24, 4, {}, 4),
        (24, 2, {"accumulate_steps": 2}, 4),
        (3, 1, {}, 1),
        (32, 8, {}, 8),
        (511, 1, {}, 64),
        (512, 4, {}, 128),
        (24, 1, {"global_batch_size": 24}, 24),
    ],
)
def test_the_default_batch_is_at_most_a_quarter_of_the_training_set(
    examples: int, devices: int, settings: dict, expected: int
) -> None:
    images = np.zeros((examples, 8, 8, 1), np.uint8)
    dataset = data.from_arrays(images, np.arange(examples) % 2, test=(images[:2], np.array([0, 1])))
    assert setup_of(dataset, devices, **settings).config.global_batch_size == expected
    with pytest.raises(
        ConfigError,
        match=rf"^global_batch_size=600: larger than the training set; use at most {examples}$",
    ):
        setup_of(dataset, global_batch_size=600)


def test_devices_that_do_not_divide_the_default_batch_are_an_error() -> None:
    images = np.zeros((24, 8, 8, 1), np.uint8)
    dataset = data.from_arrays(images, np.arange(24) % 2, test=(images[:2], np.array([0, 1])))
    with pytest.raises(
        ConfigError, match=r"^global_batch_size=4: 8 devices do not divide it; use 8$"
    ):
        setup_of(dataset, 8)


def test_a_default_of_the_dataset_holds_where_it_fits() -> None:
    large, small = (
        dataclasses.replace(uneven((size, size)), defaults={"global_batch_size": 40})
        for size in (30, 15)
    )
    assert setup_of(large).config.global_batch_size == 40
    assert setup_of(small).config.global_batch_size == 4
    for model, batch_size in (("cnn", 128), ("unet", 16)):  # digits and cells
        assert create_setup(TrainConfig.of(model=model)).config.global_batch_size == batch_size


def test_an_older_run_keeps_its_batch(no_pictures: None) -> None:
    first = jaxdp.Trainer("cnn", uneven(), global_batch_size=64, run_dir="run", steps=1, **SMALL)
    first.fit()
    again = jaxdp.Trainer("cnn", uneven(), run_dir="run", steps=2, **SMALL)
    assert (again.config.global_batch_size, setup_of(uneven()).config.global_batch_size) == (64, 16)


def evenly(examples: int, **more: Any) -> data.Dataset:
    images = np.zeros((examples, 8, 8, 1), np.uint8)
    return data.from_arrays(images, np.arange(examples) % 2, **more)


@pytest.mark.parametrize(
    ("examples", "settings", "optimizer", "peak"),
    [
        (10, {}, "adamw", 0.0003),
        (511, {}, "adamw", 0.0003),
        (512, {}, "nesterov", 0.1),
        (24, {"global_batch_size": 12, "weight_decay": 0.01}, "adamw", 0.0003),
        (24, {"optimizer": "nesterov"}, "nesterov", 0.1),
        (24, {"optimizer": "adam"}, "adam", 0.001),
        (24, {"optimizer": optax.sgd(0.2)}, "(object)", 0.001),  # which it does not read
        (24, {"learning_rate": 0.05}, "nesterov", 0.05),
        (24, {"learning_rate": optax.constant_schedule(0.3)}, "nesterov", 0.3),
        (24, {"lr_scaling": "linear"}, "nesterov", 0.1 * 4 / 128),
        (24, {"optimizer_kwargs": {"momentum": 0.5}}, "nesterov", 0.1),
    ],
)
def test_the_default_optimizer_of_a_small_set_is_adamw(
    examples: int,
    settings: dict,
    optimizer: str,
    peak: float,
) -> None:
    setup = setup_of(evenly(examples), **settings)
    assert setup.config.optimizer == optimizer
    assert setup.learning_rates.max() == pytest.approx(peak, rel=1e-2)


@pytest.mark.parametrize(
    ("instances", "expected"), [(False, ("adamw", 0.001)), (True, ("adamw", 0.01))]
)
def test_masks_and_instances_have_rates_of_their_own(
    instances: bool, expected: tuple[str, float | None]
) -> None:
    images, masks = np.zeros((24, 16, 16, 1), np.uint8), np.zeros((24, 16, 16), np.uint8)
    masks[:, 4:8, 4:8], masks[:, 10:14, 4:8] = 1, int(instances) + 1
    dataset = data.from_arrays(images, masks, instances=instances)
    kwargs = {"base_channels": 4, "levels": 2}
    config = jaxdp.Trainer("unet", dataset, model_kwargs=kwargs, devices=1).config
    assert (config.optimizer, config.learning_rate) == expected


def test_a_learning_rate_of_zero_is_one_that_was_given() -> None:
    """Another default of a small set must not replace it."""
    images, labels = np.zeros((24, 8, 8, 1), np.uint8), np.arange(24) % 2
    dataset = data.from_arrays(images, labels)
    config = setup_of(dataset, learning_rate=0.0).config
    assert (config.optimizer, config.learning_rate) == ("nesterov", 0.0)


@pytest.mark.parametrize(("examples", "optimizer"), [(36, "adamw"), (600, "nesterov")])
def test_folders_have_the_default_of_their_size(examples: int, optimizer: str) -> None:
    folder = write(split_classes(examples))
    settings = {"dataset": f"folder:{folder}", "model": "cnn", "devices": 1}
    assert create_setup(TrainConfig.of(**settings)).config.optimizer == optimizer


def test_a_recipe_of_the_dataset_holds() -> None:
    """Its own learning rate, for the usual optimizer, is a recipe, too."""
    small = evenly(24)
    named = dataclasses.replace(small, defaults={"optimizer": "momentum"})
    rate = dataclasses.replace(small, defaults={"learning_rate": {"nesterov": 0.02, "adam": 0.01}})
    for dataset, expected in ((named, ("momentum", 0.1)), (rate, ("nesterov", 0.02))):
        config = setup_of(dataset).config
        assert (config.optimizer, config.learning_rate) == expected
    embedded: list[dict[str, Any]] = [
        {"dataset": "digits", "validation": "0.9"},
        {"dataset": "cells", "model": "unet"},
        {"dataset": "cells", "model": "unet", "instances": True},
    ]
    optimizers = ["nesterov", "nesterov", "adamw"]
    for settings, optimizer in zip(embedded, optimizers, strict=True):
        config = create_setup(TrainConfig.of(**{"model": "cnn", "devices": 1} | settings)).config
        assert config.optimizer == optimizer


def test_a_run_keeps_the_optimizer_that_was_its_default(no_pictures: None) -> None:
    shared: dict[str, Any] = {**SMALL, "devices": 1}
    jaxdp.Trainer("cnn", uneven(), optimizer="nesterov", run_dir="run", steps=1, **shared).fit()
    again = jaxdp.Trainer("cnn", uneven(), run_dir="run", steps=2, **shared)
    assert again.config.optimizer == "nesterov"
    assert max(again.setup.learning_rates) == pytest.approx(0.1, rel=1e-2)
    other = jaxdp.Trainer("cnn", uneven(), steps=3, **shared)
    assert (other.config.optimizer, other.config.learning_rate) == ("adamw", 3e-4)
    went_on = other.fit(run_dir="run").config
    assert (went_on.optimizer, went_on.learning_rate) == ("nesterov", 0.1)
    assert summary("run")["steps"] == 3
    jaxdp.Trainer("cnn", uneven(), run_dir="small", steps=1, **shared).fit()
    same = jaxdp.Trainer("cnn", uneven(), run_dir="small", steps=2, **shared)
    assert (same.config.optimizer, same.config.learning_rate) == ("adamw", 3e-4)
    slower = jaxdp.Trainer("cnn", uneven(), run_dir="small", learning_rate=1e-4, steps=2, **shared)
    assert slower.config.optimizer == "adamw"  # though a rate makes another default
    jaxdp.Trainer("cnn", uneven(), optimizer=optax.sgd(0.1), run_dir="own", steps=1, **shared).fit()
    with pytest.raises(ConfigError, match=r"^optimizer=adamw: the run in own has \(object\); use"):
        jaxdp.Trainer("cnn", uneven(), run_dir="own", steps=2, **shared).fit()


def test_a_learning_rate_of_fit_is_one_for_the_optimizer_of_the_trainer() -> None:
    trainer = jaxdp.Trainer("cnn", uneven(), steps=1, devices=1, **SMALL)
    for settings in ({}, {"global_batch_size": 8}):  # of the same step, and of another
        result = trainer.fit(learning_rate=0.01, **settings)
        assert (result.config.optimizer, result.config.learning_rate) == ("adamw", 0.01)


def few(kind: str) -> tuple[dict[str, Any], data.Dataset]:
    """Returns 12 images of each of three digits in 32 x 32 pixels, or 12 images with masks."""
    if kind == "stacks":
        cells = data.load("cells")
        train, validation = (
            tuple(
                np.stack([each[i][name][:64, :64] for i in range(12)])
                for name in ("images", "masks")
            )
            for each in (cells.train, cells.test)
        )
        settings = {"model": "unet", "model_kwargs": {"base_channels": 8, "levels": 3}}
        return settings, data.from_arrays(*train, validation=validation)
    splits = []
    for source in data.load("digits").splits().values():
        labels = np.asarray(source.labels())
        chosen = np.concatenate([np.flatnonzero(labels == label)[:12] for label in range(3)])
        images = np.stack([source[number]["images"] * 15 for number in chosen.tolist()])
        splits.append((images.repeat(4, 1).repeat(4, 2), labels[chosen]))
    return {"model": "cnn"}, data.from_arrays(*splits[0], validation=splits[1])


def validation_rows(result: Any) -> list[dict[str, Any]]:
    return [row for row in result.history if row["split"] == "validation"]


def falls(losses: list[float]) -> bool:
    """Whether losses fall to less than half without an epoch that is far worse than the first."""
    return max(losses) < 1.2 * losses[0] and losses[-1] < 0.5 * losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["photos", "stacks"])
def test_few_examples_train_by_default(kind: str) -> None:
    settings, dataset = few(kind)
    trainer = jaxdp.Trainer(data=dataset, devices=1, progress=False, **settings)
    for seed in (0, 1):
        losses = [row["loss"] for row in validation_rows(trainer.fit(seed=seed))]
        assert len(losses) == 20
        assert falls(losses)
    if kind == "photos":  # mutant: the optimizer of larger sets; a U-Net this small bears it
        settings["optimizer"] = "nesterov"
        usual = jaxdp.Trainer(data=dataset, devices=1, progress=False, **settings)
        assert not falls([row["loss"] for row in validation_rows(usual.fit(seed=1))])


def test_new_settings_leave_the_names_of_runs_alone() -> None:
    assert run_hash(TrainConfig.of(early_stop=3)) == run_hash(TrainConfig())
    assert run_hash(TrainConfig.of(optimizer="nesterov")) == run_hash(TrainConfig())
    for name, value in {
        "class_weights": "balanced",
        "init_from": "x",
        "freeze": "y",
    }.items():
        assert run_hash(TrainConfig.of(**{name: value})) != run_hash(TrainConfig())


@pytest.mark.parametrize("dataset", [uneven(), masked()])
def test_balanced_weights_are_those_of_scikit_learn(dataset: data.Dataset) -> None:
    dataset = setup_of(dataset, model=_model(dataset)).dataset
    field = "labels" if dataset.task == "classification" else "masks"
    values = np.concatenate(
        [np.ravel(dataset.train[index][field]) for index in range(len(dataset.train))]
    )
    values = values[values != 255]
    expected = compute_class_weight("balanced", classes=np.unique(values), y=values)
    np.testing.assert_allclose(
        weights.balanced_weights(weights.count(dataset), "abc"), expected, rtol=1e-12
    )
    made = setup_of(dataset, model=_model(dataset), class_weights="balanced").step_config.task
    np.testing.assert_allclose(made.class_weights, expected, rtol=1e-12)


def _model(dataset: data.Dataset) -> str:
    return "cnn" if dataset.task == "classification" else "unet"


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_weighted_loss_is_pytorchs(smoothing: float) -> None:
    """sum(w_y * nll) / sum(w_y).

    With smoothing as in ATen's cross_entropy_loss_label_smoothing, written again here.
    """
    weights, logits, labels = (
        np.array([0.5, 2.0, 3.5]),
        RNG.normal(size=(7, 3)),
        RNG.integers(0, 3, 7),
    )
    log_probabilities = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    own = weights[labels]
    nll = -(own * log_probabilities[np.arange(7), labels]).sum() / own.sum()
    smooth = -(weights * log_probabilities).sum() / own.sum()
    task = Classification(3, label_smoothing=smoothing, class_weights=tuple(weights))
    outputs, batch = jnp.asarray(logits, jnp.float32), {"labels": jnp.asarray(labels)}
    found = task.losses(outputs, batch).sum() / task.divisors(outputs, batch).sum()
    np.testing.assert_allclose(found, (1 - smoothing) * nll + smoothing / 3 * smooth, rtol=1e-6)


EVERY_SESSION = {("cnn", "pmap"), ("unet", "shard_map")}


def trained(
    dataset: data.Dataset, devices: int, model: str, strategy: str = "pmap", **settings: Any
) -> tuple[Any, list[Any]]:
    """State after two steps, and the batches."""
    settings = {"batch_norm": "global", "learning_rate": 0.05, "schedule": "constant"} | settings
    settings |= {"global_batch_size": 16, "steps": 2, "strategy": strategy}
    setup = setup_of(dataset, devices, model, **settings)
    state, sums = setup.strategy.init(setup.create_state), []
    for batch in itertools.islice(setup.batches.placed(0), 2):
        state, found = setup.strategy.train_step(state, batch, setup.constants)
        sums.append(setup.strategy.gather(found))
    return setup.strategy.gather(state), sums


def distance(left: Any, right: Any) -> float:
    return max(
        jax.tree.leaves(
            jax.tree.map(lambda a, b: float(np.abs(np.float64(a) - b).max(initial=0)), left, right)
        )
    )


@pytest.mark.parametrize(
    ("model", "devices", "strategy", "accumulate"),
    [
        pytest.param(
            model, *case, marks=() if (model, case[1]) in EVERY_SESSION else pytest.mark.slow
        )
        for model in ("cnn", "unet")
        for case in ((4, "pmap", 1), (4, "shard_map", 2), (4, "sharded", 1), (2, "central", 1))
    ],
)
def test_the_divisor_is_that_of_the_global_batch(
    model: str, devices: int, strategy: str, accumulate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each device, and each microbatch, has classes of other weights.

    Divided there, the step is another one: the mutant.
    """
    dataset = uneven() if model == "cnn" else masked()
    settings: dict[str, Any] = {"class_weights": "0.1,5,20", "batch_norm": "group:4"}
    expected, sums = trained(dataset, 1, model, **settings)
    state, same_sums = trained(
        dataset, devices, model, strategy, accumulate_steps=accumulate, **settings
    )
    assert distance(expected.params, state.params) <= 1e-5
    assert distance(sums, same_sums) <= 1e-3
    if strategy == "sharded":  # one program, to which mean and global mean are the same
        return
    kind: Any = type(setup_of(dataset, 1, model).step_config.task)
    losses, divisors = kind.losses, kind.divisors
    monkeypatch.setattr(
        kind, "losses", lambda self, *args: losses(self, *args) / jnp.mean(divisors(self, *args))
    )
    monkeypatch.setattr(kind, "divisors", lambda self, outputs, batch: jnp.ones(len(outputs)))
    mutant, _ = trained(dataset, devices, model, strategy, accumulate_steps=accumulate, **settings)
    assert distance(expected.params, mutant.params) > 1e-4


def test_a_step_with_class_weights_is_the_gradient_of_pytorchs_loss() -> None:
    """The gradient of the whole batch's loss, written down as one formula, against what the step
    did with SGD.
    """
    dataset, weights = uneven(), np.array([0.1, 5, 20])
    sgd = {"optimizer": "sgd", "weight_decay": 0.0, "learning_rate": 0.5, "schedule": "constant"}
    more = {"global_batch_size": 16, "batch_norm": "global", "class_weights": "0.1,5,20"}
    setup = setup_of(dataset, 4, "cnn", steps=1, **sgd, **more)
    before = setup.create_state()
    numbers = setup.batches.order[0]
    batch = setup.dataset.train.read(numbers.tolist())
    images = setup.step_config.preprocess(
        jax.tree.map(jnp.asarray, batch | {"indices": numbers}), None
    )["images"]

    def loss(params: Any) -> jax.Array:
        from jaxdp.step.state import merge

        model = merge(before, params, before.batch_stats)
        model.train()
        losses = optax.softmax_cross_entropy_with_integer_labels(model(images), batch["labels"])
        own = jnp.asarray(weights)[batch["labels"]]
        return jnp.sum(own * losses) / jnp.sum(own)

    expected = jax.tree.map(
        lambda param, grad: param - 0.5 * grad, before.params, jax.grad(loss)(before.params)
    )
    state, _ = setup.strategy.train_step(
        setup.strategy.init(setup.create_state), next(setup.batches.placed(0)), setup.constants
    )
    assert distance(expected, setup.strategy.gather(state).params) <= 1e-5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"class_weights": "1,2"}, "class_weights=1,2: must be 3 numbers, one for each class"),
        (
            {"class_weights": [1, -2, 3]},
            "class_weights=1,-2,3: must be balanced, or a number of at least 0 for each class",
        ),
        ({"class_weights": "even"}, "class_weights=even: must be balanced, or a number"),
        (
            {"class_weights": "1,1,1", "task_kwargs": {"class_weights": [1, 1, 2]}},
            "is also among task_kwargs",
        ),
        ({"early_stop": 3}, "early_stop=3: stops by validation data, and this dataset has none"),
        ({"early_stop": 0}, "early_stop=0: must be greater than 0"),
        ({"validation": "none", "num_classes": 4}, "are decided where it is made"),
    ],
)
def test_what_cannot_be_learned_from_is_one_line(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        setup_of(uneven(), **settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_data_without_classes_have_no_balance() -> None:
    with pytest.raises(
        ConfigError, match="class_weights=balanced: is for classification and segmentation"
    ):
        create_setup(
            TrainConfig.of(model="unet", dataset="digits-denoise", class_weights="balanced")
        )
    with pytest.raises(
        ConfigError, match="class_weights=balanced: class 1 does not occur in the training set"
    ):
        setup_of(uneven((20, 0, 9)), class_weights="balanced")
    with pytest.raises(ConfigError, match="class_weights=1,1: task is an object"):
        jaxdp.Trainer("cnn", uneven(), tasks.Classification(3), class_weights="1,1", **SMALL)


@pytest.mark.parametrize("text", ["balanced", "1,2.5,1", "0,0.1,3"])
def test_class_weights_are_written_as_they_are_read(text: str) -> None:
    assert str(ClassWeights.parse(text)) == text
    assert TrainConfig.of(class_weights=text).plain()["class_weights"] == text


def test_one_flag_stops_early_by_the_tasks_own_metric(no_pictures: None) -> None:
    flags = (
        "--model cnn --model-kwargs width=2 hidden=8 --devices 1 --validation 0.1 --learning-rate 0"
        " --epochs 9 --early-stop 2"
    )
    assert run_train(f"{flags} --run-dir run") == 0
    done, evaluations = summary("run"), rows("run", split="validation")
    accuracies = [row["accuracy"] for row in evaluations]
    assert done["steps"] == evaluations[-1]["step"] < 90
    best = int(np.argmax(accuracies))  # the first of equals
    assert len(accuracies) == best + 1 + 2
    # By the loss it would have ended after the third.
    assert [row["loss"] for row in evaluations] == sorted(row["loss"] for row in evaluations)
    assert len(evaluations) > 3
    assert "validation accuracy has not improved" in done["ended_early"]["reason"]


@pytest.mark.slow
def test_sparse_cells_are_found_as_large_as_they_are() -> None:
    """Three balanced classes made mean areas 1.45 times too large, and the average precision 0.43."""
    trainer = jaxdp.Trainer("unet", "cells:sparse", instances=True, devices=1, progress=False)
    result = trainer.fit()
    source = data.load("cells:sparse", instances=True).test
    assert isinstance(source, Split)
    examples = [source.unchecked(number) for number in range(len(source))]
    found = result.predict([example["images"] for example in examples])
    actual, predicted = (
        np.mean([np.count_nonzero(mask == number) for mask in masks for number in _numbers(mask)])
        for masks in ([example["masks"] for example in examples], found)
    )
    assert predicted == pytest.approx(actual, rel=0.03)
    assert result.metrics["test"]["average_precision"] > 0.85


def _numbers(mask: np.ndarray) -> list[int]:
    return np.unique(mask[mask > 0]).tolist()
