"""Makes a run of imported weights, which training continues, and evaluation and prediction use."""

import contextlib
import dataclasses

from flax import nnx

from jaxdp.checkpoint.checkpoints import Checkpoints
from jaxdp.components import create_model
from jaxdp.config import TrainConfig, WorkersConfig
from jaxdp.inference.weights import load_exported, read_weights
from jaxdp.models.reference_weights import load_reference_weights
from jaxdp.registry import ConfigError
from jaxdp.rundir.start import open_run
from jaxdp.step.state import create_train_state
from jaxdp.training.setup import create_setup


def import_weights(file: str, config: TrainConfig) -> str:
    """Creates a run that holds imported weights as its step 0, and returns what was done, for
    people.

    Args:
        file: a PyTorch state dict, or weights that `jaxdp.convert export` wrote.
        config: of the run, with its folder.

    Raises:
        ConfigError: if the file cannot be read, the weights are not those of the network, or the
            folder holds a run already.
    """
    weights, own = read_weights(file)
    # Training is free to use another strategy: the one here is only for loading.
    single = config.replace(resume="never", strategy="single", **WorkersConfig().flat())
    setup = create_setup(single)
    model = create_model(setup.config, setup.dataset, rngs=nnx.Rngs(config.seed), dtype=setup.dtype)
    try:
        (load_exported if own else load_reference_weights)(model, weights)
    except ConfigError as error:
        raise ConfigError("weights", file, error.remedy) from error
    description = dataclasses.asdict(setup.dataset.describe())
    run = open_run(setup.config, description, create=True)
    state = setup.strategy.gather(
        setup.strategy.restore(create_train_state(model, setup.recipe.optimizer(setup.schedule)))
    )
    with run.exclusive():
        with contextlib.closing(
            Checkpoints(run.checkpoints, keep=1, best_metric=None)
        ) as checkpoints:
            checkpoints.save(0, state, {}, None)
            checkpoints.wait()
        run.write("dataset.json", description)
        run.write_config(setup.config.replace(strategy=config.strategy))
    return (
        f"{run.path} holds {len(weights)} arrays as step 0; next: python -m jaxdp.evaluate"
        f" {run.path}"
    )
