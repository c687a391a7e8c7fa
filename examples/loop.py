"""Trains in a loop of your own, with the parts from which `jaxdp.Trainer` is made.

python examples/loop.py --devices 2 --epochs 3 --folder checkpoints
python examples/loop.py --devices 4 --epochs 6 --folder checkpoints

The second command continues after the third epoch, on other devices. You may change any part. Each
part is a separate function or object, and does not depend on the loop.
"""

import argparse
import contextlib
import functools
import pathlib
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

import jaxdp
from jaxdp.checkpoint import Checkpoints
from jaxdp.config import BatchNormMode
from jaxdp.data import augment, pipeline
from jaxdp.runtime import devices
from jaxdp.sharding import Strategy, create_strategy
from jaxdp.step import Constants, StepConfig, TrainState, create_train_state, metrics

BATCH, SEED = 64, 0  # examples of an update over all devices; decides weights, order and noise


def create_step_config(data: jaxdp.data.Dataset, rate: float) -> StepConfig:
    """Returns the definition of a step, which is independent of devices: task, optimizer, input,
    batch norm.
    """
    return StepConfig(
        task=jaxdp.tasks.Classification(data.num_classes, data.class_names),
        optimizer=lambda schedule: optax.sgd(rate, momentum=0.9, nesterov=True),
        preprocess=augment.Preprocess(data.mean, data.std),
        batch_norm=BatchNormMode.parse("group:32"),
    )


def create_state(data: jaxdp.data.Dataset, step_config: StepConfig) -> TrainState:
    """Returns the state before the first step: parameters, batch statistics, momentum, step 0."""
    channels = data.image_shape[-1]
    model = jaxdp.models.CNN(
        num_classes=data.num_classes, in_channels=channels, width=8, hidden=32, rngs=nnx.Rngs(SEED)
    )
    return create_train_state(model, step_config.optimizer(optax.constant_schedule(0.0)))


def evaluate(
    strategy: Strategy, state: TrainState, constants: Constants, split: Any
) -> dict[str, float]:
    """Returns the metrics over all examples. Each example counts once, because the padding of the
    last batch has weight 0.
    """
    order = pipeline.EvaluationOrder(len(split), BATCH)
    read = functools.partial(pipeline.load, split)
    sums: dict[str, Any] = {}
    for batch in pipeline.batches(read, order, strategy.shard_batch):
        sums = metrics.add(sums, strategy.gather(strategy.eval_step(state, batch, constants)))
    return metrics.compute(strategy.step_config.task, sums)


def train(folder: pathlib.Path, count: int, epochs: int, rate: float) -> TrainState:
    """Trains to the end of the last epoch, from the newest checkpoint in a folder, if any.

    Args:
        count: number of devices. The result depends on it only by rounding.
        rate: learning rate.

    Returns:
        The state, as NumPy arrays.
    """
    devices.ensure(count)  # on a CPU, simulates this number
    data = jaxdp.data.load("digits")
    step_config = create_step_config(data, rate)
    strategy = create_strategy("pmap", step_config, jax.devices()[:count])
    create = functools.partial(create_state, data, step_config)
    checkpoints = Checkpoints(folder, keep=2, best_metric=None)
    if (step := checkpoints.latest()) is None:
        step, state = 0, create()
    else:
        state = checkpoints.restore(step, jax.eval_shape(create))[0]
    state = strategy.restore(state)  # a copy on each device
    examples: Any = data.train
    per_epoch = len(examples) // BATCH
    order = pipeline.TrainingOrder(len(examples), BATCH, SEED, epochs * per_epoch)
    constants = strategy.replicate(Constants.create(np.zeros(1), SEED))
    read = functools.partial(pipeline.load, examples)
    sums: dict[str, Any] = {}
    with contextlib.closing(checkpoints):
        # Threads read ahead, and each device gets its share of a batch.
        for batch in pipeline.batches(read, order, strategy.shard_batch, start=step):
            # Averages the gradients over the devices, and consumes the old state.
            state, step_sums = strategy.train_step(state, batch, constants)
            sums, step = metrics.add(sums, strategy.gather(step_sums)), step + 1
            if step % per_epoch == 0:
                found = evaluate(strategy, state, constants, data.test)
                loss = metrics.compute(step_config.task, sums)["loss"]
                print(
                    f"epoch {step // per_epoch}  training loss {loss:.4f}"
                    f"  test accuracy {found['accuracy']:.2%} of {found['examples']}"
                )
                checkpoints.save(step, strategy.host_copy(state), {}, found)  # in the background
                sums = {}
    return strategy.gather(state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("checkpoints"))
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    train(given.folder, given.devices, given.epochs, given.learning_rate)


if __name__ == "__main__":
    main()
