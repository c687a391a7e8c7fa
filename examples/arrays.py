"""Trains on arrays of your own, stops early, draws, saves, loads and predicts. Writes no folder
until it saves.

python examples/arrays.py
"""

import sys
from typing import Any

import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

import jaxdp


def main(epochs=10):
    bunch: Any = load_digits()
    images, labels = bunch.images[..., None].astype(np.uint8), bunch.target
    images, labels, new = images[:1500], labels[:1500], images[1500:]
    data = jaxdp.data.from_arrays(images, labels, validation=0.2)
    model = jaxdp.models.CNN(width=16, hidden=64, num_classes=10, in_channels=1, rngs=nnx.Rngs(0))
    trainer = jaxdp.Trainer(
        model,
        data,
        jaxdp.tasks.Classification(10),
        optimizer=optax.adamw(optax.cosine_decay_schedule(3e-3, 100)),
        epochs=epochs,
        callbacks=[jaxdp.callbacks.EarlyStopping("loss", patience=3)],
    )
    result = trainer.fit()
    result.plot().savefig("curves.png")
    result.save("digits-run")
    accuracy = (jaxdp.load("digits-run").predict(new).argmax(-1) == bunch.target[1500:]).mean()
    print(f"accuracy on {len(new)} images that were kept apart: {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    sys.exit(main() < 0.8)
