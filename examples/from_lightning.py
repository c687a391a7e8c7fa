"""Ports a Lightning module with two heads, a contrastive loss and a scheduler, line by line.

The Lightning module stands in the comments. tests/reference/test_from_lightning_torch.py trains it
in PyTorch for twenty steps, with the same losses, on one device here and on eight.

python examples/from_lightning.py
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

import jaxdp

TEMPERATURE = 0.5


class Digits:  # class Digits(torch.utils.data.Dataset):
    """Images of digits, with the number and the share of ink."""

    def __init__(self, begin, end):
        bunch: Any = load_digits()
        self.images = (bunch.images[begin:end, :, :, None] * 15).astype(np.uint8)
        self.numbers = bunch.target[begin:end].astype(np.int32)

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        image = self.images[index]
        ink = np.float32(image.mean() / 255)
        return {"images": image, "number": self.numbers[index], "ink": ink}


class Net(nnx.Module):  # class Net(nn.Module):
    def __init__(self, rngs):
        self.body = nnx.Linear(64, 32, rngs=rngs)  # self.body = nn.Linear(64, 32)
        self.number = nnx.Linear(32, 10, rngs=rngs)  # self.number = nn.Linear(32, 10)
        self.ink = nnx.Linear(32, 1, rngs=rngs)  # self.ink = nn.Linear(32, 1)

    def __call__(self, images):  # def forward(self, images):
        features = nnx.relu(self.body(images.reshape(len(images), -1)))
        return {
            "number": self.number(features),
            "ink": self.ink(features)[:, 0],
            "features": features,
        }


def contrastive(features, numbers):
    """Supervised contrastive loss of each example in its batch (Khosla et al. 2020, equation 2)."""
    vectors = features / (jnp.linalg.norm(features, axis=-1, keepdims=True) + 1e-6)
    others = 1 - jnp.eye(len(vectors))
    logits = vectors @ vectors.T / TEMPERATURE - 1e9 * jnp.eye(len(vectors))
    same = (numbers[:, None] == numbers[None]) * others
    logs = logits - jax.nn.logsumexp(logits, 1, keepdims=True)
    return -(same * logs).sum(1) / jnp.maximum(same.sum(1), 1)


class Module(jaxdp.tasks.Task):  # class Module(L.LightningModule):
    name, target = "number_and_ink", "number"
    free_outputs = True  # the outputs are a dict
    over_batch = True  # the contrastive loss compares the examples of the whole global batch
    best_metric = ("accuracy", True)  # ModelCheckpoint(monitor="accuracy", mode="max")

    def losses(self, outputs, batch):  # def training_step(self, batch, batch_idx):
        number = optax.softmax_cross_entropy_with_integer_labels(outputs["number"], batch["number"])
        ink = (outputs["ink"] - batch["ink"]) ** 2
        return number + ink + 0.1 * contrastive(outputs["features"], batch["number"])

    def sums(self, outputs, batch, *, training):  # def validation_step(self, batch, batch_idx):
        weights = batch["weights"]
        correct = outputs["number"].argmax(-1) == batch["number"]
        return {  # self.log("accuracy", ...)
            "loss": weights @ self.losses(outputs, batch),
            "correct": weights @ correct,
            "examples": weights.sum(),
        }

    def probabilities(self, outputs):  # def predict_step(self, batch, batch_idx):
        return jax.nn.softmax(outputs["number"])


def optimizer(steps):  # def configure_optimizers(self):
    # CosineAnnealingLR(SGD(self.parameters(), 0.03, momentum=0.9), steps)
    return optax.sgd(optax.cosine_decay_schedule(0.03, steps), momentum=0.9)


def data(examples=1437):  # class Data(L.LightningDataModule):
    return jaxdp.data.Dataset(
        Digits(0, examples),
        validation=Digits(1437, 1797),
        num_classes=10,
        image_shape=(8, 8, 1),
        mean=(73.0,),
        std=(90.0,),
        targets={"number": ((), np.int32), "ink": ((), np.float32)},
        name="digits with ink",
    )


def train(epochs=10, batch=120, examples=1437, **settings):
    trainer = jaxdp.Trainer(  # trainer = L.Trainer(max_epochs=epochs, strategy="ddp")
        Net(nnx.Rngs(0)),
        data(examples),
        Module(10),
        optimizer=optimizer(epochs * (examples // batch)),
        epochs=epochs,
        global_batch_size=batch,
        **settings,
    )
    return trainer.fit()  # trainer.fit(Module(), Data())


def main():
    result = train()
    accuracy = result.metrics["validation"]["accuracy"]
    found = result.predict(Digits(1437, 1797).images).argmax(-1)
    print(f"accuracy on validation data: {accuracy:.1%}; the first digits are {found[:10]}")
    return accuracy


if __name__ == "__main__":
    sys.exit(main() < 0.8)
