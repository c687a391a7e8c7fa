"""Finds the place in a model of each array of a PyTorch model, by a table of names.

It does not require PyTorch.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from flax import nnx

from jaxdp.errors import ConfigError
from jaxdp.models.pyramidnet import PyramidNet
from jaxdp.models.resnet import Backbone
from jaxdp.models.unet import UNet
from jaxdp.models.vgg import POSITIONS, VGG, CifarHead

Path = tuple[str | int, ...]

# PyTorch's names of the arrays of a layer, by ours.
_ARRAYS = {
    "kernel": "weight",
    "scale": "weight",
    "bias": "bias",
    "mean": "running_mean",
    "var": "running_var",
}
# The order of PyTorch's dims that gives our order, by the number of dims, such as (out, in, h, w)
# -> (h, w, in, out). No dim is reversed, because the kernel of our transposed convolution holds the
# contribution of each input pixel to the output, as in PyTorch.
_AXES = {4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}
_TRANSPOSED_CONV = (2, 3, 0, 1)
# torchvision's names of the dense layers of a VGG, by timm's. timm has the first two as
# convolutions, of 7x7 and of 1x1.
_OF_TIMM = {
    "pre_logits.fc1": "classifier.0",
    "pre_logits.fc2": "classifier.3",
    "head.fc": "classifier.6",
}


class Place(NamedTuple):
    """The place of an array of a PyTorch state in a model.

    Attributes:
        path: attributes and indices from the model to the variable.
        axes: dims for `np.transpose`, from PyTorch's order to ours.
        flattened: whether it is the kernel of a dense layer on POSITIONS x POSITIONS pixels, which
            PyTorch flattens with channels first.
    """

    path: Path
    axes: tuple[int, ...]
    flattened: bool = False


Table = dict[str, Place]


def bare_state(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns a PyTorch state without DataParallel's prefix and without counts of batches. A VGG of
    timm gets torchvision's names.
    """
    bare = {
        name.removeprefix("module."): np.asarray(array)
        for name, array in state.items()
        if not name.endswith("num_batches_tracked")
    }
    if "pre_logits.fc1.weight" not in bare:
        return bare
    renamed: dict[str, np.ndarray] = {}
    for name, array in bare.items():
        layer, _, kind = name.rpartition(".")
        is_dense = layer in _OF_TIMM and kind == "weight"
        renamed[f"{_OF_TIMM.get(layer, layer)}.{kind}"] = (
            array.reshape(len(array), -1) if is_dense else array
        )
    return renamed


def in_our_order(array: np.ndarray, place: Place) -> np.ndarray:
    """Returns an array of a PyTorch state with its dims in our order.

    An array with another number of dims is returned unchanged.
    """
    if array.ndim != len(place.axes):
        return array
    if place.flattened and array.shape[1] % POSITIONS**2 == 0:
        channels_last = array.reshape(len(array), -1, POSITIONS**2).swapaxes(1, 2)
        array = channels_last.reshape(len(array), -1)
    return np.transpose(array, place.axes)


def reference_names(model: nnx.Module) -> Table:
    """Returns PyTorch's name of each weight and batch statistic of a model, with its place.

    Raises:
        ConfigError: if no PyTorch model has been matched with this model.
    """
    variables: Any = dict(nnx.to_flat_state(nnx.state(model, (nnx.Param, nnx.BatchStat))))
    matched = (
        not isinstance(model, UNet)
        or isinstance(model.encoder, Backbone)
        or bool(model.encoder[0].norms)
    )
    kinds = [kind for kind in _MODULES if matched and isinstance(model, kind)]
    if not kinds:
        raise ConfigError(
            "",
            None,
            f"no reference weights are known for {type(model).__name__}; known for: PyramidNet,"
            " ResNet, VGG, and UNet with batch norm",
        )
    table: Table = {}
    for module, path in _MODULES[kinds[0]](model):
        for ours, theirs in _ARRAYS.items():
            variable = variables.get((*path, ours))
            if variable is not None:
                transposed = path[0] == "up_convs" and ours == "kernel"
                axes = _TRANSPOSED_CONV if transposed else _AXES[variable.ndim]
                flattened = path == ("head", "denses", 0) and ours == "kernel"
                table[f"{module}.{theirs}"] = Place((*path, ours), axes, flattened)
    return table


def _residual_network(model: PyramidNet | Backbone) -> Iterator[tuple[str, Path]]:
    """Yields the names of torchvision's ResNets and of the PyramidNet authors' PyTorch code.

    ResNets with three stages, which torchvision does not have, use the same names, up to layer3.
    """
    yield "conv1", ("stem_conv",)
    yield "bn1", ("stem_norm",)
    stage, position = 1, 0
    for index, unit in enumerate(model.units):
        if any(conv.strides == 2 for conv in unit.convs):  # it begins a stage
            stage, position = stage + 1, 0
        name, path = f"layer{stage}.{position}", ("units", index)
        for part in range(len(unit.convs)):
            yield f"{name}.conv{part + 1}", (*path, "convs", part)
        for part in range(len(unit.norms)):
            yield f"{name}.bn{part + 1}", (*path, "norms", part)
        if getattr(unit, "projection", None) is not None:
            yield f"{name}.downsample.0", (*path, "projection", "conv")
            yield f"{name}.downsample.1", (*path, "projection", "norm")
        position += 1
    if isinstance(model, PyramidNet):
        yield "bn_final", ("final_norm",)
    yield "fc", ("head",)


def _vgg(model: VGG) -> Iterator[tuple[str, Path]]:
    """Yields the names of torchvision's VGGs.

    The dense layer of the CIFAR head is called `classifier`.
    """
    number = 0  # in a sequence that also counts ReLUs and poolings
    for index, stage in enumerate(model.stages):
        for part in range(len(stage.convs)):
            yield f"features.{number}", ("stages", index, "convs", part)
            if stage.norms:
                yield f"features.{number + 1}", ("stages", index, "norms", part)
            number += 3 if stage.norms else 2
        number += 1
    if isinstance(model.head, CifarHead):
        yield "classifier", ("head", "dense")
        return
    for index in range(len(model.head.denses)):  # a ReLU and a dropout follow each
        yield f"classifier.{3 * index}", ("head", "denses", index)


def _unet(model: UNet) -> Iterator[tuple[str, Path]]:
    """Yields the names of the common PyTorch U-Net; its bilinear up-sampling has no weights. With a
    ResNet as the encoder, yields those of torchvision's ResNets alone.
    """
    if isinstance(model.encoder, Backbone):
        for name, path in _residual_network(model.encoder):
            yield name, ("encoder", *path)
        return
    blocks = {"inc": ("encoder", 0)}
    for level in range(1, model.levels + 1):
        blocks[f"down{level}.maxpool_conv.1"] = ("encoder", level)
        blocks[f"up{level}.conv"] = ("decoder", level - 1)
    for name, path in blocks.items():
        for part in range(2):  # a ReLU follows each batch norm
            yield f"{name}.double_conv.{3 * part}", (*path, "convs", part)
            yield f"{name}.double_conv.{3 * part + 1}", (*path, "norms", part)
    for index in range(len(model.up_convs)):
        yield f"up{index + 1}.up", ("up_convs", index)
    yield "outc.conv", ("head",)


_MODULES: dict[type[nnx.Module], Callable[[Any], Iterator[tuple[str, Path]]]] = {
    PyramidNet: _residual_network,
    Backbone: _residual_network,
    UNet: _unet,
    VGG: _vgg,
}
