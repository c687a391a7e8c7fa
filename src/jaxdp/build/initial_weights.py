"""Starts from the weights of another run or of a file, and finds the parameters that stay as they
are.
"""

import dataclasses
import pathlib
import re
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from jaxdp.build import pretrained
from jaxdp.build.inputs import Inputs
from jaxdp.build.model_check import abstract_model, array_shapes
from jaxdp.build.saved_model import read_checkpoint, read_description
from jaxdp.checkpoint.restore import SavedCheckpoints
from jaxdp.config import TrainConfig
from jaxdp.errors import ConfigError, flag
from jaxdp.inference.weights import read_weights
from jaxdp.models.reference_weights import bare_state, in_our_order, reference_names
from jaxdp.models.weights import fit_weights
from jaxdp.rundir.layout import RunDirectory
from jaxdp.step.state import TrainState, array_name
from jaxdp.text.flags import Sentence
from jaxdp.text.messages import some

# What ResNets and VGGs for ImageNet have, and those for CIFAR, or others, do not.
_OF_TORCHVISION = ("layer4.0.conv1.weight", "features.0.weight")
_NORMALIZATION = (
    f"note: torchvision's weights were trained with {flag('normalize', 'imagenet')}; this run"
    " normalizes otherwise"
)
_HEAD = "note: the head is also loaded, as if the classes were the same: no names tell them apart"
# Where a U-Net has the arrays of a ResNet, and its own.
_ENCODER, _DECODER, _STEM = "encoder/", "decoder/", "encoder/stem_conv/kernel"
_OF_RESNET = {"stem_conv/kernel", "layer1.0.conv1.weight"}
_BLOCK = re.compile(r"(layer\d+)\.\d+\.")  # of torchvision's ResNets
Shapes = Mapping[str, jax.ShapeDtypeStruct]


@dataclasses.dataclass(frozen=True)
class InitialWeights:
    """Weights to start from.

    Attributes:
        source: the run and step, or the file.
        arrays: parameters and batch statistics by name, in the model's dtypes.
        parameters: how many numbers of them are parameters.
        skipped: names in the source of what the model does not have.
        fresh: names in the model of what keeps its own initialization.
        note: what else there is to say; nothing if empty.
    """

    source: str
    arrays: Mapping[str, np.ndarray]
    parameters: int
    skipped: tuple[str, ...]
    fresh: tuple[str, ...]
    note: str = ""

    def load_into(self, model: nnx.Module) -> None:
        """Fills the arrays of a model."""
        arrays = nnx.state(model, (nnx.Param, nnx.BatchStat))

        def filled(path: Any, leaf: Any) -> Any:
            loaded = self.arrays.get(array_name(path))
            return leaf if loaded is None else jax.device_put(loaded)

        tree = jax.tree_util.tree_map_with_path(filled, nnx.to_pure_dict(arrays))
        nnx.replace_by_pure_dict(arrays, tree)
        nnx.update(model, arrays)

    def text(self) -> str:
        """Returns the lines that say what became of the weights."""
        lines = [
            f"loaded {self.parameters:,} parameters ({len(self.arrays)} arrays) from {self.source}",
            f"skipped (there, not in the model): {some(self.skipped) or 'nothing'}",
            f"fresh (in the model, not from there): {some(self.fresh) or 'nothing'}",
            self.note,
        ]
        return Sentence("\n".join(filter(None, lines)))

    def facts(self) -> dict[str, Any]:
        """Returns what history.jsonl keeps of it."""
        return {
            "init_from": self.source,
            "loaded_parameters": self.parameters,
            "skipped_arrays": len(self.skipped),
            "fresh": list(self.fresh),
        }


def read_initial(path: str, config: TrainConfig, dataset: Any, inputs: Inputs) -> InitialWeights:
    """Reads weights that fit a model, all but a head for another number of classes.

    Args:
        path: folder of a run, a file of weights (one that `jaxdp.convert export` wrote, or a
            PyTorch state dict), or a name for `pretrained.find`. Without meaning if `inputs` has
            weights.
        config: names the model.
        dataset: has `num_classes` and `image_shape`.

    Raises:
        ConfigError: if the weights cannot be read, or do not fit.
    """
    params, batch_stats = array_shapes(config, dataset, inputs)
    expected = {**params, **batch_stats}
    source, names = path, ()
    note = ""
    try:
        if inputs.weights is not None:
            source, found, names = inputs.weights
        elif (named := pretrained.find(path)) is not None:
            source, names = named.source, named.class_names
            found, note = _of_file(str(named.weights), expected, config, dataset, inputs)
        elif pathlib.Path(path).is_dir():
            source, found, names = _of_run(RunDirectory(pathlib.Path(path)), config.plugins)
        else:
            found, note = _of_file(path, expected, config, dataset, inputs)
        if config.model == "unet" and _STEM not in expected and _OF_RESNET & found.keys():
            depth = flag("model_kwargs", {"encoder": "resnet18"})
            raise ConfigError("", path, f"has weights of a ResNet; give {depth}, with its depth")
        found = _as_encoder(found, expected)
        heads = _heads(config, dataset, inputs, expected)
        if _STEM in found and not any(name.startswith(_DECODER) for name in found):
            heads = {name for name in expected if not name.startswith(_ENCODER)}
        alike = {
            name
            for name, array in found.items()
            if name in expected and array.shape == expected[name].shape
        }
        same = _are_same(names, dataset.class_names)
        # With as many classes that are others, nothing of a head fits, either.
        fresh = heads if same is False else heads - alike
        if same is None and heads & alike and dataset.task != "regression":
            note = "\n".join(filter(None, (note, _HEAD)))
        if not alike - fresh:
            examples = f"{next(iter(found), 'none')} there, {next(iter(expected), 'none')} here"
            problem = f"none of its {len(found)} arrays fits {config.model} by name and shape"
            raise ConfigError("", path, f"{problem} (e.g. {examples})")
        wanted = {name: like for name, like in expected.items() if name not in fresh}
        given = {name: found[name] for name in wanted if name in found}
        loaded, problems = fit_weights(given, wanted)
        if problems:
            problems += _channels(given, wanted, dataset.image_shape[-1], config.dataset)
            raise ConfigError("", path, f"does not fit {config.model}, head aside; {problems}")
    except ConfigError as error:
        raise ConfigError("init_from", path, error.remedy) from error
    return InitialWeights(
        source,
        loaded,
        parameters=sum(array.size for name, array in loaded.items() if name in params),
        skipped=tuple(name for name in found if name not in expected),
        fresh=tuple(name for name in expected if name in fresh),
        note=note,
    )


def continued(state: Any, shapes: TrainState, total_steps: int) -> TrainState:
    """Returns the state of another run in memory for a run that continues it.

    Args:
        state: on the host.
        shapes: of a state of the run.
        total_steps: of the run, with the steps of the other run.

    Raises:
        ConfigError: for a state of other arrays, and where no step is left.
    """
    trees = map(jax.tree_util.tree_leaves_with_path, (state, shapes))
    given, wanted = ([(path, np.shape(leaf)) for path, leaf in leaves] for leaves in trees)
    step = int(state.step)
    remedy = f"has done {step} steps of {total_steps}; give more epochs or steps"
    if given != wanted:
        remedy = "has another model or optimizer; init_from starts from its weights alone"
    if given != wanted or step >= total_steps:
        raise ConfigError("resume", f"step {step}", remedy)
    return jax.tree.unflatten(jax.tree.structure(shapes), jax.tree.leaves(state))


def frozen_names(pattern: str, names: Collection[str]) -> frozenset[str]:
    """Returns the names of parameters that begin with a match of a regular expression.

    Args:
        names: of all parameters, e.g. `head/kernel`.

    Raises:
        ConfigError: for a pattern that is no regular expression, or that matches no parameter or
            all.
    """
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ConfigError("freeze", pattern, f"is no regular expression: {error}") from error
    frozen = frozenset(name for name in names if expression.match(name))
    remedy = ""
    if not frozen:
        parts = dict.fromkeys(name.partition("/")[0] for name in names)
        remedy = f"no parameter's name begins with a match; names begin with {', '.join(parts)}"
    elif len(frozen) == len(names):
        remedy = (
            'matches every parameter, and leaves none to train; "(?!head)" matches all but the head'
        )
    if remedy:
        raise ConfigError("freeze", pattern, remedy)
    return frozen


def _channels(
    given: Mapping[str, np.ndarray], wanted: Shapes, channels: int, dataset: str | None
) -> str:
    """Returns a remedy where weights are for images with other channels; "" if they are not."""
    for name, array in given.items():
        theirs, ours = array.shape, wanted[name].shape
        same = theirs[:2] + theirs[3:] == ours[:2] + ours[3:] and theirs != ours
        if same and len(ours) == 4 and ours[2] == channels:  # (height, width, in, out)
            held = f"; it is for images with {theirs[2]} channels, and these have {channels}"
            if (dataset or "").startswith("folder:") and theirs[2] in (1, 3, 4):
                return f"{held}: open the folder with {flag('channels', theirs[2])}"
            return f"{held}: convert them"
    return ""


def _of_run(
    run: RunDirectory, plugins: Sequence[str]
) -> tuple[str, dict[str, np.ndarray], tuple[str, ...]]:
    """Returns what a run's result is called, the best state by validation data or else the last,
    its arrays and its classes.
    """
    config = run.load_trusted_config(plugins)
    description = read_description(run)
    step, arrays = read_checkpoint(run, config, description, None, SavedCheckpoints.model_arrays)
    return f"step {step} of {run.path}", arrays, description.names


def _as_encoder(found: Mapping[str, Any], expected: Shapes) -> Mapping[str, Any]:
    """Returns arrays of a ResNet by the names that they have in the encoder of a U-Net, and any
    other arrays as they are.
    """
    if _STEM not in expected or _STEM.removeprefix(_ENCODER) not in found:
        return found
    return {f"{_ENCODER}{name}": array for name, array in found.items()}


def _are_same(before: Sequence[str], now: Sequence[str]) -> bool | None:
    """Returns whether two sets of classes have the same names; None if one has none."""
    return tuple(before) == tuple(now) if before and now else None


def _of_file(
    path: str, expected: Shapes, config: TrainConfig, dataset: Any, inputs: Inputs
) -> tuple[dict[str, np.ndarray], str]:
    """Returns the arrays of a file by our names, those that the model does not have by theirs, and
    what there is to say of them.
    """
    weights, own = read_weights(path)
    ours = {name.replace(".", "/"): array for name, array in weights.items()}
    if own or set(ours) & set(expected):
        return ours, ""
    bare = bare_state(weights)
    places = reference_names(abstract_model(config, dataset, inputs))
    found: dict[str, np.ndarray] = {}
    for name, array in bare.items():
        if (place := places.get(name)) is not None:
            found["/".join(map(str, place.path))] = in_our_order(array, place)
        else:
            found[name] = array
    _refuse_deeper(path, bare, places)
    likely = not bare.keys().isdisjoint(_OF_TORCHVISION) and dataset.image_shape[-1] == 3
    return found, _NORMALIZATION if likely and config.normalize != "imagenet" else ""


def _refuse_deeper(path: str, state: Mapping[str, Any], places: Mapping[str, Any]) -> None:
    """Raises ConfigError if a stage has more blocks in a PyTorch state than in the model."""
    stages = {name.partition(".")[0] for name in places if _BLOCK.match(name)}
    for name in state:
        block = _BLOCK.match(name)
        if block and block[1] in stages and not any(each.startswith(block[0]) for each in places):
            remedy = f"{block[1]} has more blocks in it than in the model, which is less deep"
            raise ConfigError("", path, remedy)


def _heads(config: TrainConfig, dataset: Any, inputs: Inputs, expected: Shapes) -> set[str]:
    """Returns the names of the arrays with a shape that depends on the number of classes."""
    classes = dataset.num_classes
    if inputs.model is not None:  # it cannot be made for other classes
        return {name for name, like in expected.items() if like.shape[-1:] == (classes,)}
    other = types.SimpleNamespace(num_classes=classes + 1, image_shape=dataset.image_shape)
    params, batch_stats = array_shapes(config, other, inputs)
    others = {**params, **batch_stats}
    return {
        name
        for name in others
        if name not in expected or others[name].shape != expected[name].shape
    }
