"""Loads weights trained in PyTorch into a model, by a table of names.

Only arrays are exchanged; PyTorch is not needed.

state = safetensors.numpy.load_file("pyramidnet.safetensors")
load_reference_weights(model, state)
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from jaxdp.models.pyramidnet import PyramidNet
from jaxdp.models.resnet import ResNet
from jaxdp.models.unet import UNet
from jaxdp.models.vgg import POSITIONS, VGG, CifarHead
from jaxdp.models.weights import fit_weights
from jaxdp.registry import ConfigError

# The order of PyTorch's dims that gives ours: (out, in, h, w) -> (h, w, in, out), and the like. No
# dim is reversed: the kernel of our transposed convolution holds what each input pixel adds to the
# output, as PyTorch's does.
_CONV = (2, 3, 1, 0)
_TRANSPOSED_CONV = (2, 3, 0, 1)
_DENSE = (1, 0)
_VECTOR = (0,)

_PREFIX = "module."  # of a state that DataParallel saved


class Place(NamedTuple):
    """The place of an array of a PyTorch state in a model.

    Attributes:
        path: attributes and indices from the model to the variable.
        axes: dims for `np.transpose`, from PyTorch's order to ours.
    """

    path: tuple[str | int, ...]
    axes: tuple[int, ...]


class OfPositions(Place):
    """The place of the kernel of a dense layer on POSITIONS x POSITIONS pixels, which PyTorch
    flattens with channels first.
    """


Table = dict[str, Place]


def load_reference_weights(
    model: nnx.Module, state: Mapping[str, np.ndarray], names: Table | None = None
) -> None:
    """Fills all weights and batch statistics of a model from a PyTorch `state_dict` of arrays.

    The model changes only if everything fits.

    Args:
        model: the model to fill.
        state: arrays by name, with or without the prefix `module.`; each `num_batches_tracked` is
            ignored.
        names: the table of names; None for the model's own, `reference_names`.

    Raises:
        ConfigError: in one line, if names are missing or unexpected, or shapes differ, or an array
            holds anything but finite floating-point numbers.
    """
    table = reference_names(model) if names is None else names
    arrays = {
        _bare(name): np.asarray(array)
        for name, array in state.items()
        if not name.endswith("num_batches_tracked")
    }
    variables = {name: _variable(model, place.path) for name, place in table.items()}
    fitting, problems = fit_weights(
        arrays, {name: _theirs(variables[name], place) for name, place in table.items()}
    )
    if problems:
        kind = type(model).__name__
        raise ConfigError("", None, f"reference weights do not fit the {kind}: {problems}")
    for name, place in table.items():
        # A copy: on CPU device_put may keep the memory it is given, which may still be PyTorch's.
        array = np.array(in_our_order(fitting[name], place), order="C")
        variables[name].set_value(jax.device_put(array))


def _theirs(variable: Any, place: Place) -> jax.ShapeDtypeStruct:
    """Returns shape and dtype of an array of a PyTorch state, whose values a variable is given."""
    shape = tuple(np.take(variable.shape, np.argsort(place.axes)).tolist())
    return jax.ShapeDtypeStruct(shape, variable.dtype)


def in_our_order(array: np.ndarray, place: Place) -> np.ndarray:
    """Returns an array of a PyTorch state with its dims in our order.

    One with another number of dims as it is.
    """
    if array.ndim != len(place.axes):
        return array
    if isinstance(place, OfPositions) and array.shape[1] % POSITIONS**2 == 0:
        return (
            array.reshape(len(array), -1, POSITIONS, POSITIONS)
            .transpose(2, 3, 1, 0)
            .reshape(-1, len(array))
        )
    return np.transpose(array, place.axes)


def reference_names(model: nnx.Module) -> Table:
    """Returns PyTorch's name of each weight and batch statistic of a model, with its place.

    Raises:
        ConfigError: if no PyTorch model has been matched with this one.
    """
    for kind, rows in _TABLES.items():
        if isinstance(model, kind):
            return dict(rows(model))
    raise _no_table(type(model).__name__)


def _pyramidnet(model: PyramidNet) -> Iterator[tuple[str, Place]]:
    """Yields the names in the authors' PyTorch code, for CIFAR (layer1 to layer3) and for ImageNet
    (to layer4).
    """
    yield from _conv("conv1", ("stem_conv",))
    yield from _batch_norm("bn1", ("stem_norm",))
    stage, position = 1, 0
    for index, unit in enumerate(model.units):
        if unit.stride == 2:  # it begins a stage
            stage, position = stage + 1, 0
        for part in range(len(unit.convs)):
            yield from _conv(
                f"layer{stage}.{position}.conv{part + 1}", ("units", index, "convs", part)
            )
        for part in range(len(unit.norms)):
            yield from _batch_norm(
                f"layer{stage}.{position}.bn{part + 1}", ("units", index, "norms", part)
            )
        position += 1
    yield from _batch_norm("bn_final", ("final_norm",))
    yield "fc.weight", Place(("head", "kernel"), _DENSE)
    yield "fc.bias", Place(("head", "bias"), _VECTOR)


def _resnet(model: ResNet) -> Iterator[tuple[str, Place]]:
    """Yields the names of torchvision's ResNets.

    Those with three stages are called alike, to layer3.
    """
    yield from _conv("conv1", ("stem_conv",))
    yield from _batch_norm("bn1", ("stem_norm",))
    stage = 0
    position = 0
    features = 0
    for index, unit in enumerate(model.units):
        if unit.features != features:  # it begins a stage
            stage = stage + 1
            position = 0
            features = unit.features
        name, path = f"layer{stage}.{position}", ("units", index)
        for part in range(len(unit.convs)):
            yield from _conv(f"{name}.conv{part + 1}", (*path, "convs", part))
            yield from _batch_norm(f"{name}.bn{part + 1}", (*path, "norms", part))
        if unit.projection is not None:
            yield from _conv(f"{name}.downsample.0", (*path, "projection", "conv"))
            yield from _batch_norm(f"{name}.downsample.1", (*path, "projection", "norm"))
        position += 1
    yield from _dense("fc", ("head",))


def _vgg(model: VGG) -> Iterator[tuple[str, Place]]:
    """Yields the names of torchvision's VGGs.

    The dense layer of the CIFAR head is called `classifier`.
    """
    number = 0  # in a sequence that counts ReLUs and poolings, too
    for index, stage in enumerate(model.stages):
        for part in range(len(stage.convs)):
            path = ("stages", index, "convs", part)
            yield from _conv(f"features.{number}", path)
            yield f"features.{number}.bias", Place((*path, "bias"), _VECTOR)
            if stage.norms:
                yield from _batch_norm(f"features.{number + 1}", ("stages", index, "norms", part))
            number += 3 if stage.norms else 2
        number += 1
    if isinstance(model.head, CifarHead):
        yield from _dense("classifier", ("head", "dense"))
        return
    for index in range(len(model.head.denses)):  # a ReLU and a dropout follow each
        yield from _dense(
            f"classifier.{3 * index}",
            ("head", "denses", index),
            OfPositions if index == 0 else Place,
        )


def _unet(model: UNet) -> Iterator[tuple[str, Place]]:
    """Yields the names of the common PyTorch U-Net; its bilinear up-sampling has no weights."""
    if model.padding == "valid" or model.upsampling == "resize":
        raise _no_table(f"UNet with padding={model.padding} and upsampling={model.upsampling}")
    blocks = [("inc", ("encoder", 0))]
    blocks += [
        (f"down{index}.maxpool_conv.1", ("encoder", index))
        for index in range(1, len(model.encoder))
    ]
    blocks += [(f"up{index + 1}.conv", ("decoder", index)) for index in range(len(model.decoder))]
    for name, path in blocks:
        for part in range(2):  # a ReLU follows each batch norm
            yield from _conv(f"{name}.double_conv.{3 * part}", (*path, "convs", part))
            yield from _batch_norm(f"{name}.double_conv.{3 * part + 1}", (*path, "norms", part))
    for index in range(len(model.up_convs)):
        yield f"up{index + 1}.up.weight", Place(("up_convs", index, "kernel"), _TRANSPOSED_CONV)
        yield f"up{index + 1}.up.bias", Place(("up_convs", index, "bias"), _VECTOR)
    yield from _conv("outc.conv", ("head",))
    yield "outc.conv.bias", Place(("head", "bias"), _VECTOR)


# One row per model; its function yields PyTorch's names with their places.
_TABLES: dict[type[nnx.Module], Callable[[Any], Iterator[tuple[str, Place]]]] = {
    PyramidNet: _pyramidnet,
    ResNet: _resnet,
    UNet: _unet,
    VGG: _vgg,
}


def _conv(name: str, path: tuple[str | int, ...]) -> Iterator[tuple[str, Place]]:
    yield f"{name}.weight", Place((*path, "kernel"), _CONV)


def _dense(
    name: str, path: tuple[str | int, ...], kind: type[Place] = Place
) -> Iterator[tuple[str, Place]]:
    yield f"{name}.weight", kind((*path, "kernel"), _DENSE)
    yield f"{name}.bias", Place((*path, "bias"), _VECTOR)


def _batch_norm(name: str, path: tuple[str | int, ...]) -> Iterator[tuple[str, Place]]:
    for theirs, ours in (
        ("weight", "scale"),
        ("bias", "bias"),
        ("running_mean", "mean"),
        ("running_var", "var"),
    ):
        yield f"{name}.{theirs}", Place((*path, ours), _VECTOR)


def _variable(model: nnx.Module, path: tuple[str | int, ...]) -> Any:
    found: Any = model
    for part in path:
        found = getattr(found, part) if isinstance(part, str) else found[part]
    return found


def _bare(name: str) -> str:
    return name.removeprefix(_PREFIX)


def _no_table(name: str) -> ConfigError:
    known = (
        "PyramidNet, ResNet, VGG, and UNet with same padding and transposed or bilinear up-sampling"
    )
    return ConfigError("", None, f"no reference weights are known for {name}; known for: {known}")
