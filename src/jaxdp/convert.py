"""`python -m jaxdp.convert`: weights in and out.

`import` reads a PyTorch state dict (or an export of ours) into a new run, which `train` continues, `evaluate` and `predict` use.
`export` writes a run's weights as safetensors, or its whole evaluation, from pixels to outputs, as StableHLO.
"""

import contextlib
import dataclasses
import json
import pathlib
import sys
import zipfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import tyro

from jaxdp import command_line, run_directory
from jaxdp.config import DataConfig, ModelConfig, OptionalInt, PluginsConfig, TaskConfig, TrainConfig, validate
from jaxdp.registry import ConfigError, nearest
from jaxdp.run_directory import RunDirectory
from jaxdp.runtime import platform

if TYPE_CHECKING:
    from jaxdp.data.sources import Description
    from jaxdp.step.state import TrainState

DESCRIPTIONS = {
    "import": "Read PyTorch weights, or weights that export wrote, into a new run.",
    "export": "Write the weights of a run as safetensors, or its evaluation as StableHLO.",
}
PLATFORMS = ("cpu", "cuda", "tpu")  # on which an exported program can run


@dataclasses.dataclass(frozen=True)
class WeightsConfig:
    weights: Annotated[str, tyro.conf.Positional]
    """file of weights: .safetensors, .npz, or where PyTorch is installed .pt or .pth (loaded with weights_only=True)"""
    run_dir: str
    """folder of the new run"""


@dataclasses.dataclass(frozen=True)
class ImportConfig(TaskConfig, DataConfig, ModelConfig, PluginsConfig, WeightsConfig):
    """What `python -m jaxdp.convert import` takes: a network and the dataset that tells its classes and normalization."""

    def __post_init__(self) -> None:
        validate(self)


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    run_dir: Annotated[str, tyro.conf.Positional]
    """folder of the run"""
    output: str
    """file to write: NAME.safetensors (weights) or NAME.stablehlo (program: uint8 images in, outputs out, any batch size)"""
    step: OptionalInt = None
    """step of the checkpoint (default: the best one)"""


def main(argv: Sequence[str] | None = None) -> int:
    return command_line.main(_main, argv, "jaxdp.convert")


def _main(argv: Sequence[str]) -> int:
    name, *rest = argv or ["--help"]
    if name in ("--help", "-h"):
        lines = [f"  {command:<8}{text}" for command, text in DESCRIPTIONS.items()]
        print("usage: python -m jaxdp.convert {import,export} ...\n\n" + "\n".join(lines))
        return 0
    if name not in DESCRIPTIONS:
        raise ConfigError("", name, f"{name}: must be import or export; {nearest(name, list(DESCRIPTIONS))}")
    cls: Any = ImportConfig if name == "import" else ExportConfig
    prog = f"python -m jaxdp.convert {name}"
    command = command_line.parse(cls, rest, prog=prog, description=DESCRIPTIONS[name], defaults_file=False)
    platform.configure(None)
    (import_weights if name == "import" else export)(command)
    return 0


def load_reference_weights(model: Any, state: Mapping[str, np.ndarray]) -> None:
    """Loads a PyTorch state dict of the reference PyramidNet or the common U-Net; see `jaxdp.models.reference_weights`."""
    from jaxdp.models import reference_weights

    reference_weights.load_reference_weights(model, state)


def import_weights(command: ImportConfig) -> None:
    """Creates a run that holds imported weights as its step 0.

    Raises:
        ConfigError: if the file cannot be read, the weights are not those of the network, or the folder holds a run already.
    """
    weights, own = read_weights(command.weights)
    shared: dict[str, Any] = {name: getattr(command, name) for name in TrainConfig.__dataclass_fields__ if hasattr(command, name)}
    settings: dict[str, Any] = shared | {"resume": "never", "strategy": "single"}
    config = TrainConfig(**settings)

    from flax import nnx

    from jaxdp.checkpoint.checkpoints import Checkpoints
    from jaxdp.components import create_model
    from jaxdp.step.state import create_train_state
    from jaxdp.training.setup import create_setup

    setup = create_setup(config)
    model = create_model(setup.config, setup.dataset, rngs=nnx.Rngs(config.seed), dtype=setup.dtype)
    (_load_own if own else load_reference_weights)(model, weights)
    description = dataclasses.asdict(setup.dataset.describe())
    run = run_directory.claim(setup.config, description, create=True)
    state = setup.strategy.gather(setup.strategy.restore(create_train_state(model, setup.recipe.optimizer(setup.schedule))))
    best_metric = setup.recipe.task.best_metric
    with run.exclusive():
        with contextlib.closing(Checkpoints(run.checkpoints, keep=1, best_metric=best_metric)) as checkpoints:
            checkpoints.save(0, state, {}, None)
            checkpoints.wait()
        run.write_dataset(description)
        # Training is free to use another strategy: the one here was only for loading.
        run.write_config(dataclasses.replace(setup.config, strategy=TrainConfig().strategy))
    print(f"{run.path} holds {len(weights)} arrays as step 0; next: python -m jaxdp.evaluate {run.path}")


def read_weights(path: str | pathlib.Path) -> tuple[dict[str, np.ndarray], bool]:
    """Returns arrays by name, and whether `export` wrote them.

    Raises:
        ConfigError: for a file that cannot be read, or holds more than arrays.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise ConfigError("weights", path, "there is no such file")
    try:
        if path.suffix == ".safetensors":
            import safetensors

            with safetensors.safe_open(path, framework="numpy") as file:  # pyright: ignore[reportPrivateImportUsage]
                own = (file.metadata() or {}).get("format") == "jaxdp"
                return {name: file.get_tensor(name) for name in list(file.keys())}, own
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return dict(arrays), False
        if path.suffix in (".pt", ".pth"):
            return _read_torch(path), False
    except ConfigError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, RuntimeError) as error:
        raise ConfigError("weights", path, f"cannot be read: {_first_line(error)}") from error
    except Exception as error:  # safetensors and pickle have errors of their own kinds
        if type(error).__name__ not in ("SafetensorError", "UnpicklingError"):
            raise
        raise ConfigError("weights", path, f"cannot be read: {_first_line(error)}") from error
    raise ConfigError("weights", path, "must end in .safetensors, .npz, .pt or .pth")


def _read_torch(path: pathlib.Path) -> dict[str, np.ndarray]:
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ConfigError("weights", path, "needs PyTorch: pip install torch, or save it as .safetensors") from None
    content = torch.load(path, map_location="cpu", weights_only=True)
    for key in ("state_dict", "model"):  # as training scripts often wrap it
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(hasattr(value, "detach") for value in content.values()):
        raise ConfigError("weights", path, "holds no state dict: save model.state_dict()")
    return {name: value.detach().float().numpy() for name, value in content.items()}


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _load_own(model: Any, weights: Mapping[str, np.ndarray]) -> None:
    """Loads what `export` wrote; nothing is changed unless all of it fits."""
    import jax
    from flax import nnx

    arrays = nnx.state(model, (nnx.Param, nnx.BatchStat))
    paths, structure = jax.tree_util.tree_flatten_with_path(nnx.to_pure_dict(arrays))
    expected = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in paths}
    wrong = sorted(set(weights) ^ set(expected))
    wrong += [name for name, leaf in expected.items() if name in weights and weights[name].shape != leaf.shape]
    if wrong:
        raise ConfigError("", None, f"the weights are not those of this network: {len(wrong)} arrays differ, e.g. {wrong[0]}")
    nnx.replace_by_pure_dict(arrays, jax.tree.unflatten(structure, [jax.device_put(weights[name]) for name in expected]))
    nnx.update(model, arrays)


def export(command: ExportConfig) -> None:
    """Writes weights (averaged ones where the run has them) or a program; the file is complete or not there at all.

    Raises:
        ConfigError: if there is no such checkpoint, or the output cannot be written.
    """
    output = pathlib.Path(command.output)
    if output.suffix not in (".safetensors", ".stablehlo"):
        raise ConfigError("output", output, "must end in .safetensors or .stablehlo")
    from jaxdp.inference import predictor

    run = RunDirectory(pathlib.Path(command.run_dir))
    config, description = run.load_config(), predictor.read_description(run)
    step, state = predictor.restore(run, config, description, command.step)
    content = (_safetensors if output.suffix == ".safetensors" else _stablehlo)(state, config, description)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        run_directory.replace_file(output, content)
    except OSError as error:
        raise ConfigError("output", output, f"cannot be written ({error.strerror})") from error
    print(f"{output}: step {step} of {command.run_dir}, {len(content):,} bytes")


def _safetensors(state: "TrainState", config: TrainConfig, description: "Description") -> bytes:
    import jax
    import safetensors.numpy

    params, batch_stats = (state.params, state.batch_stats) if state.ema is None else state.ema
    leaves = [leaf for tree in (params, batch_stats) for leaf in jax.tree_util.tree_leaves_with_path(tree)]
    arrays = {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in leaves}
    about = {"model": config.model, "model_kwargs": config.model_kwargs, "normalize": config.normalize}
    about |= dataclasses.asdict(description)
    return safetensors.numpy.save(arrays, metadata={"format": "jaxdp", "about": json.dumps(about)})


def _stablehlo(state: "TrainState", config: TrainConfig, description: "Description") -> bytes:
    """Returns a program that `jax.export.deserialize` reads: its `call` maps uint8 (batch, H, W, C) to the model's outputs."""
    import jax
    import jax.export
    import jax.numpy as jnp

    from jaxdp.data.augment import Preprocess
    from jaxdp.inference.apply import create_apply

    apply = create_apply(Preprocess(description.mean, description.std, per_image=config.normalize == "image"))
    images = jax.ShapeDtypeStruct((*jax.export.symbolic_shape("batch"), *description.image_shape), jnp.uint8)
    placed = jax.tree.map(jnp.asarray, state)
    program = jax.jit(lambda images: apply(placed, images))
    return bytes(jax.export.export(program, platforms=PLATFORMS)(images).serialize())


if __name__ == "__main__":
    sys.exit(main())
