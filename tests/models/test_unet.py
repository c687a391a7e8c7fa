"""U-Net has exactly the published numbers of parameters in each of its forms, and takes images of
any size.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxdp import models
from jaxdp.models.unet import UpConv, smallest_side
from jaxdp.registry import ConfigError

# (keywords, input channels, output channels, parameters): the paper's (`valid`) and the common
# implementation's.
PUBLISHED = [
    ({}, 1, 2, 31_036_546),
    ({}, 3, 2, 31_037_698),
    ({"upsampling": "bilinear"}, 1, 2, 17_261_890),
    ({"upsampling": "bilinear"}, 3, 2, 17_263_042),
    ({"padding": "valid"}, 1, 2, 31_030_658),
]
FORMS = [{}, {"upsampling": "bilinear"}, {"upsampling": "resize"}, {"padding": "valid"}]


def create(num_classes: int = 2, in_channels: int = 1, **kwargs):
    kwargs = {"base_channels": 4, "levels": 2} | kwargs
    return models.create(
        "unet", num_classes=num_classes, in_channels=in_channels, rngs=nnx.Rngs(0), **kwargs
    )


def abstract(**kwargs):
    return nnx.eval_shape(lambda: create(**kwargs))


@pytest.mark.parametrize(("kwargs", "in_channels", "num_classes", "expected"), PUBLISHED)
def test_parameter_count_is_the_published_one(
    kwargs: dict, in_channels: int, num_classes: int, expected: int
) -> None:
    model = abstract(
        base_channels=64, levels=4, in_channels=in_channels, num_classes=num_classes, **kwargs
    )
    assert models.parameter_count(model) == expected


@pytest.mark.parametrize(("hidden", "channels"), [(8, 1), (5, 3), (16, 2)])
def test_parameter_count_of_the_three_scale_form(hidden: int, channels: int) -> None:
    model = abstract(base_channels=hidden, upsampling="resize", in_channels=channels, num_classes=1)
    assert models.parameter_count(model) == 495 * hidden**2 + (9 * channels + 22) * hidden + 1


@pytest.mark.parametrize("kwargs", FORMS)
@pytest.mark.parametrize("levels", [1, 3])
def test_other_numbers_of_poolings_work(kwargs: dict, levels: int) -> None:
    model = abstract(levels=levels, **kwargs)
    assert len(model.encoder) == levels + 1
    side = smallest_side(levels) + 10
    expected = 2 if kwargs.get("padding") == "valid" else side
    assert (
        nnx.eval_shape(lambda model: model(jnp.ones((1, side, side, 1))), model).shape[1]
        >= expected
    )


@pytest.mark.parametrize("kwargs", FORMS[:3])
@pytest.mark.parametrize("size", [(16, 16), (17, 22), (5, 3), (1, 1)])
def test_the_output_is_as_large_as_the_image(kwargs: dict, size: tuple[int, int]) -> None:
    answer = nnx.eval_shape(lambda: create(num_classes=3, **kwargs)(jnp.ones((2, *size, 1))))
    assert (answer.shape, answer.dtype) == ((2, *size, 3), jnp.float32)


def test_valid_padding_gives_the_papers_size() -> None:
    model = abstract(levels=4, padding="valid")
    assert nnx.eval_shape(lambda model: model(jnp.ones((1, 572, 572, 1))), model).shape == (
        1,
        388,
        388,
        2,
    )


@pytest.mark.parametrize("levels", [1, 2, 4])
def test_the_smallest_image_for_valid_padding(levels: int) -> None:
    smallest = smallest_side(levels)
    model = abstract(levels=levels, padding="valid")
    answer = nnx.eval_shape(lambda model: model(jnp.ones((1, smallest, smallest + 3, 1))), model)
    assert 1 <= answer.shape[1] <= 4
    with pytest.raises(
        ConfigError, match=f"{smallest}x{smallest} or more, got {smallest - 1}x{smallest}"
    ):
        nnx.eval_shape(lambda model: model(jnp.ones((1, smallest - 1, smallest, 1))), model)


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
    model = create(levels=1)
    model.eval()
    given = {}
    block = model.decoder[0]
    model.decoder[0] = lambda x: given.setdefault("x", x)[..., :4]
    images = jax.random.normal(jax.random.key(0), (1, 5, 7, 1))
    model(images)
    np.testing.assert_allclose(given["x"][..., :4], model.encoder[0](images), atol=1e-6)
    assert not np.any(given["x"][:, -1, :, 4:])
    assert not np.any(given["x"][:, :, -1, 4:])
    assert np.all(np.any(given["x"][:, :-1, :-1, 4:], -1))
    assert block.convs[0].kernel.shape[2] == given["x"].shape[-1]


@pytest.mark.parametrize("kwargs", FORMS)
def test_every_weight_has_a_finite_gradient(kwargs: dict) -> None:
    model = create(**kwargs)
    images = jax.random.normal(jax.random.key(0), (2, 45, 44, 1))
    grads = nnx.jit(nnx.grad(lambda model: jnp.mean(jnp.square(model(images, keys=None) - 1))))(
        model
    )
    leaves = jax.tree.leaves(grads)
    assert all(np.isfinite(leaf).all() and np.any(leaf) for leaf in leaves)
    normalizes = not kwargs or kwargs == {"upsampling": "bilinear"}
    assert bool(jax.tree.leaves(nnx.state(model, nnx.BatchStat))) == normalizes


def test_creating_it_does_not_compile_per_shape(count_compilations) -> None:
    create()
    before = count_compilations()
    for kwargs in FORMS:
        create(base_channels=6, levels=3, **kwargs)
    assert count_compilations() - before <= 2


def test_initial_weights_follow_the_paper() -> None:
    """He's normal, by fan-in: the standard deviation is sqrt(2 / N) for N incoming nodes."""
    model = create(base_channels=32, levels=2)
    for kernel, fan in (
        (model.encoder[-1].convs[-1].kernel, 9 * 128),
        (model.up_convs[0].kernel, 128),
    ):
        assert float(jnp.std(kernel[...])) == pytest.approx(np.sqrt(2 / fan), rel=0.02)


def test_the_output_is_float32_under_bfloat16() -> None:
    for kwargs in FORMS[:3]:
        model = create(dtype=jnp.bfloat16, **kwargs)
        assert (
            nnx.eval_shape(lambda model: model(jnp.ones((1, 9, 9, 1))), model).dtype == jnp.float32
        )
        assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(model))} == {jnp.dtype("float32")}


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"base_channels": 0}, "base_channels=0: must be a whole number of at least 1"),
        ({"levels": 0}, "levels=0: must be a whole number of at least 1"),
        ({"upsampling": "nearest"}, "known: transposed, bilinear, resize"),
        ({"padding": "reflect"}, "known: same, valid"),
        ({"padding": "valid", "upsampling": "bilinear"}, "padding=same"),
        ({"level": 3}, "did you mean levels"),
    ],
)
def test_impossible_keywords_are_explained(kwargs: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        abstract(**kwargs)
