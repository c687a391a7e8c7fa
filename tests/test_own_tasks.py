"""Runs with a loss, a task, an optimizer or a dataset of one's own: nothing of them is forgotten or
exchanged without a word.
"""

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jaxtyping import Array

import jaxdp
from jaxdp import evaluate, tasks
from jaxdp.callbacks import EarlyStopping
from jaxdp.data import from_arrays, from_dataset
from jaxdp.rundir.object_digests import digest

LABELS = np.arange(64) % 4
RANDOM = np.random.default_rng(0).integers(0, 60, (64, 6, 6), dtype=np.uint8)
IMAGES = (RANDOM + 50 * LABELS[:, None, None]).astype(np.uint8)
RUN: dict[str, Any] = {
    "devices": 1,
    "global_batch_size": 16,
    "log_every": 1,
    "progress": False,
    "run_dir": "run",
}


class Net(nnx.Module):
    def __init__(self) -> None:
        self.layer = nnx.Linear(36, 4, rngs=nnx.Rngs(0))

    def __call__(self, images: Array) -> Array:
        return self.layer(images.reshape(len(images), -1))


class Sigmoid(tasks.Classification):
    """Squared errors of independent probabilities."""

    def losses(self, outputs: Array, batch: Any) -> Array:
        return (
            (jax.nn.sigmoid(outputs) - jax.nn.one_hot(batch["labels"], outputs.shape[-1])) ** 2
        ).sum(-1)

    def probabilities(self, outputs: Array) -> Array:
        return jax.nn.sigmoid(outputs)


def squared(outputs: Array, labels: Array) -> Array:
    return ((outputs - jax.nn.one_hot(labels, 4)) ** 2).sum(-1)


def squared_of_ten(outputs: Array, labels: Array) -> Array:
    return ((outputs - jax.nn.one_hot(labels, 10)) ** 2).sum(-1)


def data() -> jaxdp.data.Dataset:
    return from_arrays(IMAGES, LABELS, validation=0.25)


def train(task: Any, model: Any = None, **settings: Any) -> jaxdp.Result:
    return jaxdp.Trainer(model or Net(), data(), task, **RUN | settings).fit()


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("task", [Sigmoid(4), squared])
def test_a_run_asks_for_the_task_it_was_trained_with(
    task: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    steady: dict[str, Any] = {"schedule": "constant", "warmup_fraction": 0.0}
    trained = train(task, epochs=1, **steady)
    name = "classification" if task is not squared else "squared"
    if task is squared:  # which does not change predictions
        without = jaxdp.load("run", model=Net())
        np.testing.assert_array_equal(without.predict(IMAGES[:9]), trained.predict(IMAGES[:9]))
        line = "warning: the run was trained with the loss function squared, which its folder does"
        assert line in capsys.readouterr().err
    else:
        with pytest.raises(jaxdp.ConfigError, match=r"^task=classification: is a task object of"):
            jaxdp.load("run", model=Net())
    loaded = jaxdp.load("run", model=Net(), task=task)
    np.testing.assert_array_equal(loaded.predict(IMAGES[:9]), trained.predict(IMAGES[:9]))
    assert loaded.evaluate(IMAGES, LABELS) == pytest.approx(trained.evaluate(IMAGES, LABELS))
    with pytest.raises(jaxdp.ConfigError, match="was trained with"):
        jaxdp.Trainer(Net(), data(), epochs=2, **RUN).fit()
    further = loaded.trainer(data=data(), progress=False).fit(epochs=2)
    once = train(task, epochs=2, run_dir=None, **steady)
    assert [row["loss"] for row in further.history] == [row["loss"] for row in once.history]
    saved = once.save("saved")
    assert json.loads((saved / "dataset.json").read_text())["own_task"] == name


@pytest.mark.usefixtures("no_pictures")
def test_a_command_names_the_task_that_it_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    jaxdp.Trainer("cnn", "digits", squared_of_ten, steps=1, **RUN).fit()
    assert evaluate.main(["run"]) == 0
    assert "the loss function squared_of_ten, which" in capsys.readouterr().err
    jaxdp.Trainer("cnn", "digits", Sigmoid(10), steps=1, **RUN | {"run_dir": "other"}).fit()
    assert evaluate.main(["other"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("jaxdp.evaluate: error: --task classification: is a task object of")


@pytest.mark.usefixtures("no_pictures")
def test_other_values_in_a_loss_or_an_optimizer_are_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def scaled(factor: float) -> Any:
        def loss(outputs: Array, labels: Array) -> Array:
            return factor * squared(outputs, labels)

        return loss

    train(scaled(1.0), epochs=1, optimizer=optax.adam(1e-3))
    capsys.readouterr()
    train(scaled(1.0), epochs=2, optimizer=optax.adam(1e-3))
    assert "changed" not in capsys.readouterr().err
    train(scaled(10.0), epochs=3, optimizer=optax.adam(1e-1))
    said = capsys.readouterr().err
    assert "warning: run: optimizer, task have changed since the run began" in said
    with pytest.raises(jaxdp.ConfigError, match="task=squared: the run in run was trained with"):
        train(squared, epochs=4, optimizer=optax.adam(1e-1))


def test_digests_are_of_values() -> None:
    def make(rate: float) -> Any:
        return optax.chain(optax.clip(1.0), optax.adamw(optax.cosine_decay_schedule(rate, 10)))

    assert digest(make(0.1)) == digest(make(0.1)) != digest(make(0.2))
    assert digest(Sigmoid(4)) == digest(Sigmoid(4)) != digest(Sigmoid(4, label_smoothing=0.1))
    teacher = Net()
    before = digest(teacher)
    teacher.layer.kernel.set_value(teacher.layer.kernel.get_value() + 1)
    assert digest(teacher) != before
    endless: list[Any] = []
    endless.append(endless)
    assert digest(endless)


def own_metric(outputs: Array, labels: Array) -> tuple[Array, dict[str, Array]]:
    losses = optax.softmax_cross_entropy_with_integer_labels(outputs, labels)
    return losses, {"cross_entropy": losses}


def test_the_direction_of_a_metric_is_asked_for() -> None:
    with pytest.raises(jaxdp.ConfigError, match=r"cross_entropy: say whether larger is better"):
        train(own_metric, callbacks=[EarlyStopping("cross_entropy")], run_dir=None)
    stopping = EarlyStopping("cross_entropy", patience=1, larger_is_better=False)
    result = train(own_metric, epochs=3, callbacks=[stopping], run_dir=None)
    assert result.summary.get("ended_early") is None


@pytest.mark.usefixtures("no_pictures")
def test_early_stopping_returns_the_best_state_with_and_without_a_folder() -> None:
    """The rate is so large that the loss rises after its best value."""
    settings: dict[str, Any] = {"epochs": 20, "early_stop": 3, "optimizer": "sgd"}
    settings |= {"learning_rate": 0.8, "schedule": "constant", "warmup_fraction": 0.0}
    in_folder = train(None, **settings)
    in_memory = train(None, **settings, run_dir=None)
    assert in_memory.step == in_folder.step < in_memory.summary["steps"]
    assert in_memory.metrics == in_folder.metrics
    np.testing.assert_array_equal(in_memory.predict(IMAGES), in_folder.predict(IMAGES))
    assert in_memory.summary["best"] == in_folder.summary["best"]


class Drawn:
    """A dataset that flips images at random, as datasets for PyTorch do."""

    def __init__(self) -> None:
        self.reads = 0
        self.classes = ["one", "two", "three", "four"]

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        self.reads += 1
        flip = np.random.default_rng(self.reads).random() < 0.5
        return IMAGES[index][:, ::-1] if flip else IMAGES[index], int(LABELS[index])


def test_items_that_may_change_are_asked_for_in_each_epoch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    items = Drawn()
    settings: dict[str, Any] = {"devices": 1, "global_batch_size": 16, "epochs": 3}
    trainer = jaxdp.Trainer(Net(), from_dataset(items), progress=False, **settings)
    before = items.reads
    trainer.fit()
    assert items.reads - before == 3 * len(IMAGES)
    note = (
        'note: the examples of dataset are asked for in each epoch; data_placement="device" reads'
    )
    assert note in capsys.readouterr().err
    assert trainer.setup.dataset.class_names == ("one", "two", "three", "four")
    trainer = jaxdp.Trainer(
        Net(), from_dataset(items), data_placement="device", progress=False, **settings
    )
    before = items.reads
    trainer.fit()
    assert items.reads - before == len(IMAGES)
    fixed = from_dataset(list(zip(IMAGES, LABELS, strict=True)))
    assert jaxdp.Trainer(Net(), fixed, progress=False, **settings).config.data_placement == "device"


class Brightened(Drawn):
    """A dataset that draws the brightness of an item."""

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        image, label = super().__getitem__(index)
        return image // 2 + np.uint8(self.reads % 90), label


def test_other_statistics_of_a_continued_run_are_reported(
    no_pictures: None, capsys: pytest.CaptureFixture[str]
) -> None:
    items = Brightened()
    first = from_dataset(items)
    again = from_dataset(items)
    kept = dataclasses.replace(again, mean=first.mean, std=first.std)
    assert first.mean != again.mean
    for steps, dataset, said in (2, first, False), (3, kept, False), (4, again, True):
        jaxdp.Trainer(Net(), dataset, **RUN, steps=steps).fit()
        line = "is not normalized as when the run in run began: mean was"
        assert (line in capsys.readouterr().err) is said


class Features:
    def __init__(self, names: list[str]) -> None:
        self.names = names


def test_names_of_classes_come_from_the_features() -> None:
    items = Drawn()
    del items.classes
    items.features = {"image": None, "label": Features(["a", "b", "c", "d"])}  # pyright: ignore
    assert from_dataset(items).class_names == ("a", "b", "c", "d")


def test_a_result_continues_with_batches_of_its_size_only() -> None:
    settings = RUN | {"run_dir": None}
    result = jaxdp.Trainer(Net(), data(), epochs=1, **settings).fit()
    other = jaxdp.Trainer(Net(), data(), **settings | {"global_batch_size": 8})
    with pytest.raises(
        jaxdp.ConfigError, match=r"^global_batch_size=8: the result has steps of 16"
    ):
        other.fit(resume=result, epochs=2)
    more = from_arrays(np.concatenate([IMAGES] * 2), np.concatenate([LABELS] * 2), validation=0.25)
    with pytest.raises(jaxdp.ConfigError, match=r"epochs of 3 steps, and these data 6; start from"):
        jaxdp.Trainer(Net(), more, **settings).fit(resume=result, epochs=2)


class Told(nnx.Module):
    """Adds a number that shows how it was called."""

    def __init__(self) -> None:
        self.net = Net()

    def __call__(self, images: Array, *, train: bool, deterministic: bool = True) -> Array:
        assert train is not deterministic
        return self.net(images) + jnp.asarray([100.0 if train else 0.0, 0, 0, 0])


def test_a_model_is_told_whether_it_trains() -> None:
    result = train(None, Told(), steps=1, learning_rate=0.0, run_dir=None)
    first, held = result.history
    assert (first["split"], held["split"]) == ("train", "validation")
    assert first["loss"] > 50 > held["loss"]


def test_flax_spellings_of_models_train() -> None:
    rngs = nnx.Rngs(0)
    layers = nnx.Sequential(
        nnx.Conv(1, 4, (3, 3), rngs=rngs), lambda x: x.mean((1, 2)), nnx.Linear(4, 4, rngs=rngs)
    )
    assert train(None, layers, steps=1, run_dir=None).status == "done"


class Synchronized(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nnx.BatchNorm(4, axis_name="batch", rngs=nnx.Rngs(0))


def test_a_layer_that_names_an_axis_is_refused() -> None:
    with pytest.raises(
        jaxdp.ConfigError, match=r"^model=Synchronized: a layer of it names an axis"
    ):
        train(None, Synchronized())


def test_a_dataset_without_a_mean_is_measured() -> None:
    source = jaxdp.data.sources.ArraySource(IMAGES[..., None], LABELS.astype(np.int32))
    bare = jaxdp.data.Dataset(source, num_classes=4, image_shape=(6, 6, 1))
    measured = jaxdp.Trainer(Net(), bare, **RUN | {"run_dir": None}).setup.dataset
    known = from_arrays(IMAGES, LABELS)
    assert (measured.mean, measured.std) == (known.mean, known.std)


def test_an_example_without_the_field_of_its_task_is_one_line() -> None:
    source = jaxdp.data.sources.ArraySource(IMAGES[..., None], LABELS.astype(np.int32), "label")
    bare = jaxdp.data.Dataset(
        source, num_classes=4, image_shape=(6, 6, 1), mean=(9.0,), std=(9.0,), name="mine"
    )
    with pytest.raises(jaxdp.ConfigError, match=r"it has images, label, but no labels"):
        jaxdp.Trainer(Net(), bare, **RUN | {"run_dir": None}).fit()


@pytest.mark.usefixtures("no_pictures")
def test_an_object_of_a_built_in_task_is_known_by_name() -> None:
    weights = tuple(np.array([1.0, 2.0, 1.0, 1.0]))  # which YAML does not know
    weighted = tasks.Classification(4, label_smoothing=0.1, class_weights=weights)
    steady: dict[str, Any] = {"schedule": "constant", "warmup_fraction": 0.0}
    trained = train(weighted, epochs=1, **steady)
    assert trained.config.task_kwargs == {
        "label_smoothing": 0.1,
        "class_weights": [1.0, 2.0, 1.0, 1.0],
    }
    loaded = jaxdp.load("run", model=Net())
    np.testing.assert_array_equal(loaded.predict(IMAGES[:9]), trained.predict(IMAGES[:9]))
    further = loaded.trainer(data=data(), progress=False).fit(epochs=2)
    once = train(weighted, epochs=2, run_dir=None, **steady)
    assert [row["loss"] for row in further.history] == [row["loss"] for row in once.history]


class Distillation(tasks.Classification):
    """The teacher reads the images; its rounding depends on the number of them."""

    def __init__(self) -> None:
        super().__init__(4)
        object.__setattr__(self, "teacher", Net())

    def losses(self, outputs: Array, batch: Any) -> Array:
        teacher: Any = self.teacher  # pyright: ignore[reportAttributeAccessIssue]
        return ((outputs - teacher(batch["images"])) ** 2).sum(-1)


def by_frequency(outputs: Array, labels: Array) -> Array:
    losses = optax.softmax_cross_entropy_with_integer_labels(outputs, labels)
    return losses / (jnp.bincount(labels, length=4) / len(labels))[labels]


def by_length(outputs: Array, labels: Array) -> Array:
    return optax.softmax_cross_entropy_with_integer_labels(outputs, labels) / len(labels)


class Paired(tasks.Classification):
    def divisors(self, outputs: Array, batch: Any) -> Array:
        return jnp.ones(len(outputs)) * batch["labels"].mean()


@pytest.mark.parametrize("task", [by_frequency, by_length, Paired(4)])
def test_a_loss_that_reads_other_targets_or_the_length_of_the_batch_is_refused(task: Any) -> None:
    with pytest.raises(jaxdp.ConfigError, match="changes with the other examples that a device"):
        train(task, run_dir=None)


def test_a_teacher_is_no_comparison_of_examples() -> None:
    assert train(Distillation(), steps=1, run_dir=None).status == "done"


class Noisy(Sigmoid):
    """A loss over the batch that reads the images, with a key of its own."""

    over_batch = True

    def losses(self, outputs: Array, batch: Any) -> Array:
        noise = jax.random.normal(jax.random.key(0), outputs.shape)
        bright = batch["images"].mean((1, 2, 3))
        return super().losses(outputs + 0.01 * noise, batch) + (bright - bright.mean()) ** 2


@pytest.mark.usefixtures("no_pictures")
def test_a_loss_over_the_batch_reads_all_images() -> None:
    one, two = (train(Noisy(4), steps=2, devices=count, run_dir=None) for count in (1, 2))
    np.testing.assert_allclose(
        [row["loss"] for row in one.history], [row["loss"] for row in two.history], rtol=1e-5
    )


def make_loss(key: Any, factors: Any) -> Any:
    def loss(outputs: Array, labels: Array) -> Array:
        noise = jax.random.uniform(key, (4,))
        return squared(outputs * factors[0] + 0 * noise, labels) * factors[1]

    return loss


@pytest.mark.usefixtures("no_pictures")
def test_keys_in_a_loss_are_digested_and_numbers_do_not_run_together() -> None:
    assert train(make_loss(jax.random.key(3), (1, 1)), steps=1).status == "done"
    key = jax.random.key(0)
    digests = {digest(make_loss(key, each)) for each in ((1, 23), (12, 3), (1, 2, 3), (12, 12, 3))}
    assert len(digests) == 4
    assert digest(make_loss(key, (1, 2))) != digest(make_loss(jax.random.key(1), (1, 2)))
    assert digest({1, 2}) == digest({2, 1}) != digest({1, 3})
    texts = ("lambda x: abs(x)", "lambda x: pow(x, 2)")  # as in a notebook
    assert len({digest(eval(compile(text, "<cell>", "eval"))) for text in texts}) == 2


def test_a_result_of_early_stopping_is_not_continued_to_a_worse_one() -> None:
    settings: dict[str, Any] = {"early_stop": 3, "optimizer": "sgd", "schedule": "constant"}
    settings |= {"warmup_fraction": 0.0, "run_dir": None}
    first = train(None, epochs=8, learning_rate=0.02, **settings)
    trainer = jaxdp.Trainer(Net(), data(), **RUN | settings | {"learning_rate": 50.0})
    further = trainer.fit(resume=first, epochs=12)
    assert further.step == first.step
    assert further.metrics["validation"]["loss"] == first.metrics["validation"]["loss"]
    steps = [row["step"] for row in further.history if row["split"] == "validation"]
    assert steps == sorted(set(steps))
    other = jaxdp.Trainer(Net(), data(), squared, **RUN | {"run_dir": None})
    with pytest.raises(jaxdp.ConfigError, match="task=squared: the result was trained with a task"):
        other.fit(resume=first, epochs=12)


def test_validation_items_that_may_change_are_asked_for_as_well() -> None:
    items = list(zip(IMAGES, LABELS, strict=True))
    mixed = from_dataset(items, validation=Drawn())
    trainer = jaxdp.Trainer(Net(), mixed, **RUN | {"run_dir": None})
    assert trainer.config.data_placement == "host"


def test_names_that_cannot_be_meant_are_left_out() -> None:
    items = Drawn()
    items.classes = ["a", "b", "c", "d", "e"]  # the last one has no examples here
    assert from_dataset(items).num_classes == 5
    for names in (["a", "b"], ["a"] * 64):
        items.classes = names
        assert from_dataset(items).class_names == ()


@pytest.mark.usefixtures("no_pictures")
def test_another_task_than_that_of_the_run_is_refused() -> None:
    train(squared, steps=1)
    with pytest.raises(jaxdp.ConfigError, match="the run was trained with squared; give that"):
        jaxdp.load("run", model=Net(), task=own_metric)
    with pytest.raises(jaxdp.ConfigError, match="must be a task object or a loss function"):
        jaxdp.load("run", model=Net(), task=Sigmoid)  # pyright: ignore[reportArgumentType]


def test_a_misspelt_metric_is_named() -> None:
    with pytest.raises(jaxdp.ConfigError, match="did you mean accuracy"):
        train(None, callbacks=[EarlyStopping("acuracy")], run_dir=None)


def of_sixteen(outputs: Array, labels: Array) -> Array:
    if len(outputs) != 16:
        raise ValueError("only batches of 16")
    return squared(outputs, labels)


def test_a_loss_that_cannot_be_checked_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert train(of_sixteen, steps=1, devices=1, run_dir=None).status == "done"
    note = "note: whether of_sixteen compares examples was not checked: only batches of 16"
    assert note in capsys.readouterr().err
