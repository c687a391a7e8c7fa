"""The forms of U-Net: sizes of outputs, up-sampling, skips, and initial weights."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from test_models import UNET, VALID, abstract, create

from jaxdp.errors import ConfigError
from jaxdp.models.unet import UpConv, smallest_side


def output_shape(model: Any, height: int, width: int) -> tuple[int, ...]:
    return nnx.eval_shape(lambda model: model(jnp.ones((1, height, width, 3))), model).shape


def test_valid_padding_gives_the_papers_size() -> None:
    model = abstract("unet", 2, **VALID | {"levels": 4})
    assert output_shape(model, 572, 572) == (1, 388, 388, 2)


@pytest.mark.parametrize("levels", [1, 2, 4])
def test_the_smallest_image_for_valid_padding(levels: int) -> None:
    smallest = smallest_side(levels)
    model = abstract("unet", **VALID | {"levels": levels})
    assert 1 <= output_shape(model, smallest, smallest + 3)[1] <= 4
    message = f"{smallest}x{smallest} or more, got {smallest - 1}x{smallest}"
    with pytest.raises(ConfigError, match=message):
        output_shape(model, smallest - 1, smallest)


def test_an_up_convolution_is_the_gradient_of_a_strided_convolution() -> None:
    """Which is what a transposed convolution is."""
    up = UpConv(3, 2, dtype=jnp.float32, rngs=nnx.Rngs(0))
    up.bias[...] = jnp.asarray([1.0, 2.0])
    x = jax.random.normal(jax.random.key(0), (2, 4, 5, 3))
    kernel = up.kernel[...].transpose(0, 1, 3, 2)  # from the up-convolution's outputs to its inputs

    def down(y):
        return jax.lax.conv_general_dilated(
            y, kernel, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    (expected,) = jax.linear_transpose(down, jnp.zeros((2, 8, 10, 2)))(x)
    np.testing.assert_allclose(up(x), expected + up.bias[...], atol=1e-5)


def test_skips_come_first_and_the_paddings_odd_row_last() -> None:
    """What the decoder is given at an odd size: the skip, then the up-sampled map with zeros on the
    far side.
    """
    model = create("unet", **UNET | {"levels": 1})
    model.eval()
    given = {}
    block = model.decoder[0]
    model.decoder[0] = lambda x: given.setdefault("x", x)[..., :4]
    images = jax.random.normal(jax.random.key(0), (1, 5, 7, 3))
    model(images)
    np.testing.assert_allclose(given["x"][..., :4], model.encoder[0](images), atol=1e-6)
    assert not np.any(given["x"][:, -1, :, 4:])
    assert not np.any(given["x"][:, :, -1, 4:])
    assert np.all(np.any(given["x"][:, :-1, :-1, 4:], -1))
    assert block.convs[0].kernel.shape[2] == given["x"].shape[-1]


def test_initial_weights_follow_the_paper() -> None:
    """He's normal, by fan-in: the standard deviation is sqrt(2 / N) for N incoming nodes."""
    model = create("unet", base_channels=32, levels=2)
    for kernel, fan in (
        (model.encoder[-1].convs[-1].kernel, 9 * 128),
        (model.up_convs[0].kernel, 128),
    ):
        assert float(jnp.std(kernel[...])) == pytest.approx(np.sqrt(2 / fan), rel=0.02)


@pytest.mark.parametrize("upsampling", ["transposed", "bilinear", "resize"])
@pytest.mark.parametrize("levels", [1, 3, 5])
@pytest.mark.parametrize("size", [(64, 96), (37, 50), (1, 9)])
def test_an_encoder_gives_an_output_per_pixel(
    size: tuple[int, int], levels: int, upsampling: str
) -> None:
    kwargs = {"encoder": "resnet18", "base_channels": 4, "levels": levels}
    model = abstract("unet", **kwargs, upsampling=upsampling)
    assert output_shape(model, *size)[:3] == (1, *size)


def test_a_decoder_sees_the_encoders_maps_of_its_resolution() -> None:
    """At an odd size, and at the place of the pixels that they are computed from."""
    model = create("unet", encoder="resnet18", base_channels=4, levels=2)
    model.eval()
    given: list[Any] = []
    for index, block in enumerate(model.decoder):
        model.decoder[index] = lambda x, block=block: given.append(x) or block(x)
    images = np.zeros((1, 75, 98, 3), np.float32)
    model(jnp.asarray(images))
    images[0, 40, 52] = 100
    model(jnp.asarray(images))
    empty, changed = given[:2], given[2:]
    assert [x.shape[1:3] for x in empty] == [(38, 49), (75, 98)]
    for x, before in zip(changed, empty, strict=True):
        places = np.argwhere(np.abs(x - before).max((0, 3)) > 1e-4)
        middle = places.mean(0) * np.asarray(images.shape[1:3]) / x.shape[1:3]
        np.testing.assert_allclose(middle, (40.5, 52.5), atol=3)


def test_behind_an_encoder_the_odd_row_is_left_out() -> None:
    """The encoder rounds up, so that the last of its pixels becomes one row instead of two."""
    model = create("unet", encoder="resnet18", base_channels=4, levels=1)
    model.eval()
    given: list[Any] = []
    block = model.decoder[0]
    model.decoder[0] = lambda x: given.append(x) or block(x)
    images = jax.random.normal(jax.random.key(0), (1, 5, 7, 3))
    model(images)
    ((stem, _),) = model.encoder.parts()
    expected = model.up_convs[0](stem(images))
    assert expected.shape[1:3] == (6, 8)
    np.testing.assert_allclose(given[0], expected[:, :5, :7], atol=1e-6)
