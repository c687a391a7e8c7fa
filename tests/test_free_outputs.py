"""Models with several inputs and outputs, and tasks with targets of their own."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jaxtyping import Array

import jaxdp
from jaxdp import tasks

COUNT = 64
RNG = np.random.default_rng(0)
LABELS = np.arange(COUNT, dtype=np.int32) % 4
AGES = RNG.uniform(20, 60, COUNT).astype(np.float32)
TABLE = np.stack([AGES / 10, RNG.normal(size=COUNT)], -1).astype(np.float32)
IMAGES = (RNG.integers(0, 60, (COUNT, 6, 6, 1)) + 50 * LABELS[:, None, None, None]).astype(np.uint8)


class Examples:
    """Images with a row of a table, a class and an age."""

    def __init__(self, begin: int, end: int) -> None:
        self.numbers = range(begin, end)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = self.numbers[index]
        fields = {"images": IMAGES, "table": TABLE, "classes": LABELS, "ages": AGES}
        return {name: values[number] for name, values in fields.items()}


def data() -> jaxdp.data.Dataset:
    return jaxdp.data.Dataset(
        Examples(0, 48),
        validation=Examples(48, COUNT),
        num_classes=4,
        image_shape=(6, 6, 1),
        mean=(100.0,),
        std=(60.0,),
        targets={
            "table": ((2,), np.float32),
            "classes": ((), np.int32),
            "ages": ((), np.float32),
        },
        name="people",
    )


class TwoHeads(nnx.Module):
    """Reads an image and a row of a table, and returns a class, an age and an embedding."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.body = nnx.Linear(38, 16, rngs=rngs)
        self.classes = nnx.Linear(16, 4, rngs=rngs)
        self.age = nnx.Linear(16, 1, rngs=rngs)

    def __call__(self, images: Array, table: Array, *, train: bool) -> dict[str, Array]:
        both = jnp.concatenate([images.reshape(len(images), -1), table], -1)
        features = nnx.relu(self.body(both))
        return {
            "classes": self.classes(features),
            "age": self.age(features)[:, 0],
            "embedding": features,
        }


@dataclasses.dataclass(frozen=True)
class ClassAndAge(tasks.Task):
    """Cross-entropy of the class, and the squared error of the age in decades."""

    name = "class_and_age"
    best_metric = ("age_error", False)
    target = "classes"
    free_outputs = True

    def losses(self, outputs: Any, batch: Any) -> Array:
        entropy = optax.softmax_cross_entropy_with_integer_labels(
            outputs["classes"], batch["classes"]
        )
        return entropy + (outputs["age"] - batch["ages"] / 10) ** 2

    def sums(self, outputs: Any, batch: Any, *, training: bool) -> dict[str, Array]:
        weights = batch["weights"]
        errors = jnp.abs(10 * outputs["age"] - batch["ages"])
        correct = jnp.argmax(outputs["classes"], -1) == batch["classes"]
        return {
            "loss": jnp.sum(weights * self.losses(outputs, batch)),
            "age_error": jnp.sum(weights * errors),
            "correct": jnp.sum(weights * correct),
            "examples": jnp.sum(weights),
        }

    def metrics(self, sums: Any) -> dict[str, float]:
        names = {"loss": "loss", "accuracy": "correct", "age_error": "age_error"}
        return {
            name: float(tasks.ratio(sums[part], sums["examples"])) for name, part in names.items()
        }

    def probabilities(self, outputs: Any) -> Array:
        return outputs["embedding"]


def fit(task: Any = None, model: Any = None, **settings: Any) -> jaxdp.Result:
    defaults: dict[str, Any] = {
        "epochs": 10,
        "global_batch_size": 16,
        "log_every": 1,
        "optimizer": "adam",
        "learning_rate": 0.02,
        "progress": False,
    }
    given = defaults | settings
    return jaxdp.Trainer(model or TwoHeads(), data(), task or ClassAndAge(4), **given).fit()


@pytest.mark.usefixtures("no_pictures")
def test_several_inputs_outputs_and_targets_train_on_any_devices() -> None:
    one = fit(devices=1, epochs=60, schedule="constant", run_dir="run")
    assert one.metrics["validation"]["age_error"] < 8
    assert one.metrics["validation"]["accuracy"] > 0.9
    for strategy in ("pmap", "sharded"):
        eight = fit(devices=8, strategy=strategy, epochs=4, schedule="constant")
        np.testing.assert_allclose(
            [row["loss"] for row in eight.history if row["split"] == "train"],
            [row["loss"] for row in one.history if row["split"] == "train"][:12],
            rtol=2e-4,
        )
    loaded = jaxdp.load("run", model=TwoHeads(), task=ClassAndAge(4))
    assert loaded.evaluate(data())["age_error"] == pytest.approx(
        one.metrics["validation"]["age_error"], rel=1e-4
    )
    with pytest.raises(jaxdp.ConfigError, match="model=TwoHeads: takes table, which is no field"):
        loaded.predict(IMAGES[:2])
    with pytest.raises(jaxdp.ConfigError, match="class_and_age has no pictures"):
        loaded.show_wrong(data())


class Embeds(nnx.Module):
    """Returns an embedding beside its logits."""

    def __init__(self) -> None:
        self.layer = nnx.Linear(36, 5, rngs=nnx.Rngs(0))

    def __call__(self, images: Array) -> tuple[Array, Array]:
        features = self.layer(images.reshape(len(images), -1))
        return features, features[:, :4]


@dataclasses.dataclass(frozen=True)
class Contrast(ClassAndAge):
    """A contrastive loss of embeddings, over the whole batch."""

    name = "contrast"
    best_metric = ("loss", False)
    over_batch = True

    def losses(self, outputs: Any, batch: Any) -> Array:
        vectors, _ = outputs
        is_same = batch["classes"][:, None] == batch["classes"][None]
        return optax.sigmoid_binary_cross_entropy(vectors @ vectors.T, is_same).mean(1)

    def sums(self, outputs: Any, batch: Any, *, training: bool) -> dict[str, Array]:
        weights = batch["weights"]
        loss = jnp.sum(weights * self.losses(outputs, batch))
        return {"loss": loss, "examples": jnp.sum(weights)}

    def metrics(self, sums: Any) -> dict[str, float]:
        return {"loss": float(tasks.ratio(sums["loss"], sums["examples"]))}

    def probabilities(self, outputs: Any) -> Array:
        return outputs[0]


def test_embeddings_are_predicted_as_they_are_and_compared_over_the_batch() -> None:
    one, eight = (fit(Contrast(4), Embeds(), devices=count, epochs=2) for count in (1, 8))
    np.testing.assert_allclose(
        [row["loss"] for row in eight.history], [row["loss"] for row in one.history], rtol=2e-4
    )
    found = one.predict(IMAGES[:7])
    model = one.model
    expected = model((IMAGES[:7] - 100.0) / 60.0)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_a_task_that_does_not_say_so_needs_its_outputs() -> None:
    class Strict(Contrast):
        free_outputs = False

    with pytest.raises(jaxdp.ConfigError, match=r"returns \(1, 5\) and \(1, 4\) for an image"):
        fit(Strict(4), Embeds(), devices=1)


class Unknown(Embeds):
    def __call__(self, images: Array, other: Array) -> tuple[Array, Array]:  # pyright: ignore
        return super().__call__(images)


def test_a_parameter_that_nothing_is_known_for_is_one_line() -> None:
    with pytest.raises(
        jaxdp.ConfigError, match=r"^model=Unknown: takes other, which is no field of"
    ):
        fit(Contrast(4), Unknown(), devices=1)
    assert jax.devices()
