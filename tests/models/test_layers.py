"""Layers agree with formulas written out in NumPy."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxdp.models import batch_norm as moments
from jaxdp.models import convolution, layers, resampling
from jaxdp.sharding.communication import Communication
from jaxdp.step import batch_norm as batch_norm_lib


def batch_norm(features: int, **attributes) -> layers.BatchNorm:
    norm = layers.BatchNorm(features, dtype=jnp.float32)
    layers.set_batch_norm(norm, **{"group_size": None, "combine": None} | attributes)
    return norm


def assert_same_derivatives(
    ours: Any, theirs: Any, *arguments: jax.Array, rtol: float = 1e-4, atol: float = 1e-4
) -> None:
    """Compares values and vector-Jacobian products of two functions."""
    (found, pull_back), (expected, expected_pull_back) = (
        jax.vjp(function, *arguments) for function in (ours, theirs)
    )
    cotangents = jax.tree.map(lambda y: jax.random.normal(jax.random.key(9), y.shape), found)
    compare = functools.partial(np.testing.assert_allclose, rtol=rtol, atol=atol)
    jax.tree.map(compare, found, expected)
    jax.tree.map(compare, pull_back(cotangents), expected_pull_back(cotangents))


def lowered(function: Any, platform: str, *shapes: Any) -> str:
    return jax.jit(function).trace(*shapes).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize("rounded", [False, True])
def test_moments_have_the_derivative_that_jax_finds_itself(rounded: bool) -> None:
    x = jax.random.normal(jax.random.key(0), (2, 5, 3, 4)) * 2 + 3
    assert_same_derivatives(
        lambda x: moments.moments(x, rounded),
        lambda x: (jnp.mean(x, (1, 2)), jnp.var(x, (1, 2))),
        x,
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_one_pass_finds_the_moments_of_bfloat16(offset: float) -> None:
    """Also where values of bfloat16 are an eighth of a standard deviation apart, as at a mean of
    30.
    """
    x = (
        (offset + jax.random.normal(jax.random.key(0), (2, 32, 16, 16, 3)))
        .astype(jnp.bfloat16)
        .astype(jnp.float32)
    )
    for found, expected in zip(moments.one_pass(x), moments.two_passes(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-4)
    equal = jnp.full((1, 32, 1), 3.140625)
    assert moments.one_pass(equal)[1].min() >= 0


@pytest.mark.parametrize(
    ("platform", "dtype", "passes"),
    [
        ("tpu", "bfloat16", 1),
        ("cuda", "bfloat16", 1),
        ("tpu", "float32", 2),
        ("cpu", "bfloat16", 2),
    ],
)
def test_accelerators_pass_once_over_bfloat16(platform: str, dtype: str, passes: int) -> None:
    norm = layers.BatchNorm(3, dtype=dtype)
    shape = jax.ShapeDtypeStruct((8, 4, 4, 3), dtype)
    text = lowered(lambda x: nnx.merge(*nnx.split(norm), copy=True)(x), platform, shape)
    # Only the second pass takes the mean from each value.
    assert bool(re.search(r"stablehlo.subtract .*tensor<1x8x4x4x3xf32>", text)) == (passes == 2)


@pytest.mark.parametrize("channels", [(5, 3), (3, 5)])
@pytest.mark.parametrize(
    ("size", "stride", "pad"), [(3, 1, 1), (3, 2, 1), (1, 1, 0), (3, 1, 0), (7, 2, 3)]
)
def test_a_convolution_has_the_gradients_that_jax_finds_itself(
    channels: tuple[int, int], size: int, stride: int, pad: int
) -> None:
    keys = jax.random.split(jax.random.key(0), 2)
    x = jax.random.normal(keys[0], (4, 9, 11, channels[0]))
    kernel = jax.random.normal(keys[1], (size, size, *channels))
    settings: Any = ((stride, stride), ((pad, pad), (pad, pad)))
    assert_same_derivatives(
        lambda x, kernel: convolution.convolve(x, kernel, *settings),
        lambda x, kernel: convolution.plain(x, kernel, *settings),
        x,
        kernel,
    )


def test_large_convolutions_are_computed_by_fewer_products() -> None:
    settings: Any = ((1, 1), ((1, 1), (1, 1)))
    x = jax.random.normal(jax.random.key(0), (32, 31, 34, 16))
    kernel = jax.random.normal(jax.random.key(1), (3, 3, 16, 17))

    def convolve(*arrays: Any) -> Any:
        return convolution.convolve(*arrays, *settings)

    def is_convolved(platform: str, function: Any, *arrays: Any) -> bool:
        return "stablehlo.convolution" in lowered(function, platform, *arrays)

    assert_same_derivatives(
        convolve,
        lambda x, kernel: convolution.plain(x, kernel, *settings),
        x / 32,  # sums over all pixels in the gradient of the kernel
        kernel,
    )
    gradient = jax.grad(lambda *arrays: jnp.sum(convolve(*arrays)), (0, 1))
    many = (jnp.ones((32, 8, 8, 64)), jnp.ones((3, 3, 64, 64)))
    for function, large in ((gradient, (x, kernel)), (convolve, many)):
        assert not is_convolved("cpu", function, *large)
        assert is_convolved("cuda", function, *large)
    assert is_convolved("cpu", convolve, x, kernel)
    half = (x.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16))
    for small in (half, (x[..., 1:], kernel[:, :, 1:]), (x, kernel[..., 2:]), (x[3:], kernel)):
        assert is_convolved("cpu", gradient, *small)


@pytest.mark.parametrize("platform", ["cuda", "tpu", "cpu"])
def test_the_gradient_of_a_kernel_has_its_layout_on_cuda(platform: str) -> None:
    def loss(kernel: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(convolution.convolve(x, kernel, (1, 1), ((1, 1), (1, 1))))

    arrays = (jnp.ones((3, 3, 4, 5)), jnp.ones((2, 6, 6, 4)))
    found = "LayoutConstraint" in lowered(jax.grad(loss), platform, *arrays)
    assert found == (platform == "cuda")


@pytest.mark.parametrize(("platform", "kept"), [("cpu", [1, 2]), ("cuda", [0, 0])])
def test_a_sum_of_branches_and_its_gradient_are_kept_on_a_cpu(platform: str, kept: list) -> None:
    forward = functools.partial(layers.run_blocks, nnx.Dict(), [jnp.tanh])
    texts = [
        lowered(function, platform, 1.0) for function in (forward, jax.value_and_grad(forward))
    ]
    assert [text.count("optimization_barrier") for text in texts] == kept


def test_variance_survives_a_large_mean() -> None:
    """E[x²] - E[x]² in float32 would be off by everything here."""
    x = 4096 + jax.random.normal(jax.random.key(0), (64, 4, 4, 1))
    np.testing.assert_allclose(np.std(batch_norm(1)(x)), 1, rtol=1e-3)
    of_all = functools.partial(batch_norm_lib.of_all, Communication(axis="data"))
    shared = jax.vmap(lambda part: batch_norm(1, combine=of_all)(part), axis_name="data")
    np.testing.assert_allclose(np.std(shared(x.reshape(8, 8, 4, 4, 1))), 1, rtol=1e-3)


def test_groups_are_normalized_apart_and_running_statistics_averaged() -> None:
    x = jax.random.normal(jax.random.key(0), (8, 2, 2, 3)) * jnp.arange(1.0, 9).reshape(8, 1, 1, 1)
    norm = batch_norm(3, group_size=4)
    parts = np.split(np.asarray(x, np.float64), 2)
    expected = np.concatenate(
        [(part - part.mean((0, 1, 2))) / np.sqrt(part.var((0, 1, 2)) + 1e-5) for part in parts]
    )
    np.testing.assert_allclose(norm(x), expected, atol=1e-5)
    np.testing.assert_allclose(
        norm.var[...], 0.9 + 0.1 * np.mean([part.var((0, 1, 2)) for part in parts], 0), rtol=1e-5
    )
    with pytest.raises(ValueError, match="groups of 3"):
        batch_norm(3, group_size=3)(x)


@pytest.mark.parametrize("size", [4, 5])
def test_shortcut_pools_real_cells_and_appends_zeros(size: int) -> None:
    x = np.random.default_rng(0).normal(size=(2, size, size, 3)).astype(np.float32)
    half = -(-size // 2)
    expected = np.zeros((2, half, half, 5))
    for row, column in np.ndindex(half, half):
        window = x[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        # A border window is smaller, and so is its divisor.
        expected[:, row, column, :3] = window.mean((1, 2))
    np.testing.assert_allclose(layers.shortcut(jnp.asarray(x), 5, 2), expected, atol=1e-6)
    assert layers.shortcut(jnp.asarray(x, jnp.bfloat16), 5, 2).dtype == jnp.bfloat16


def test_strided_convolution_pads_both_sides() -> None:
    """Flax's SAME pads (0, 1) at stride 2; a kernel that picks its first tap tells them apart."""
    conv = layers.conv(1, 1, 3, stride=2, dtype=jnp.float32, rngs=nnx.Rngs(0))
    conv.kernel[...] = jnp.zeros((3, 3, 1, 1)).at[0, 0].set(1)
    x = jnp.arange(16.0).reshape(1, 4, 4, 1)
    np.testing.assert_array_equal(conv(x)[0, :, :, 0], [[0, 0], [0, 5]])


@pytest.mark.parametrize(("size", "padding"), [(2, 0), (3, 1)])
@pytest.mark.parametrize("side", [8, 9])
def test_max_pool_agrees_with_flax(side: int, size: int, padding: int) -> None:
    x = jax.random.normal(jax.random.key(0), (2, side, side + 3, 3))
    pads: Any = [(padding, padding)] * 2
    # Windows of 3 overlap, so that gradients are sums; the maxima are equal.
    assert_same_derivatives(
        lambda x: resampling.max_pool(x, size, padding=padding),
        lambda x: nnx.max_pool(x, (size, size), (2, 2), pads),
        x,
        rtol=0,
        atol=1e-6,
    )
    assert resampling.max_pool(jnp.ones((1, 1, 5, 2))).shape == (1, 1, 2, 2)


@pytest.mark.parametrize(
    ("height", "width", "size", "stride", "pad"),
    [
        (1, 1, 3, 1, 1),
        (2, 2, 3, 1, 1),
        (1, 2, 3, 1, 1),
        (2, 2, 3, 2, 1),
        (2, 1, 3, 2, 1),
        (6, 5, 7, 2, 3),
        (1, 1, 2, 1, 1),
    ],
)
def test_maps_smaller_than_the_window(
    height: int, width: int, size: int, stride: int, pad: int
) -> None:
    layer = layers.conv(5, 6, size, stride=stride, padding=pad, dtype=jnp.float32, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (4, height, width, 5))
    assert "conv_general_dilated" not in str(jax.make_jaxpr(layer)(x))
    settings: Any = ((stride, stride), ((pad, pad), (pad, pad)))
    kernel = jax.random.normal(jax.random.key(1), (size, size, 5, 6))
    assert_same_derivatives(
        lambda x, kernel: convolution.convolve_nhwc(x, kernel, *settings),
        lambda x, kernel: convolution.plain(x, kernel, *settings),
        x,
        kernel,
        rtol=1e-5,
    )


@pytest.mark.parametrize("side", [3, 7, 10, 15])
def test_adaptive_average_pool_covers_the_map_evenly(side: int) -> None:
    x = np.random.default_rng(0).normal(size=(2, side, side + 1, 3)).astype(np.float32)
    expected = np.empty((2, 7, 7, 3))
    for row, column in np.ndindex(7, 7):
        rows, columns = (
            slice(cell * size // 7, (cell * size + size + 6) // 7)
            for cell, size in ((row, side), (column, side + 1))
        )
        expected[:, row, column] = x[:, rows, columns].mean((1, 2))
    np.testing.assert_allclose(
        resampling.adaptive_average_pool(jnp.asarray(x), 7), expected, atol=1e-6
    )


def test_resize_keeps_the_corners_and_is_linear_between() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 5, 2)).astype(np.float32)
    y = np.asarray(resampling.resize_align_corners(jnp.asarray(x), (6, 10)))
    np.testing.assert_allclose(y[:, ::5, ::9], x[:, ::2, ::4], atol=1e-6)
    across = [
        np.interp(np.linspace(0, 4, 10), np.arange(5), x[1, 0, :, channel]) for channel in range(2)
    ]
    np.testing.assert_allclose(y[1, 0], np.stack(across, -1), atol=1e-6)
    np.testing.assert_array_equal(
        resampling.resize_align_corners(jnp.ones((1, 1, 1, 1)), (2, 2)), jnp.ones((1, 2, 2, 1))
    )


def test_shake_drop_forward_and_backward() -> None:
    shake = layers.ShakeDrop(0.5, index=0, rngs=nnx.Rngs(0))
    keys = jax.random.split(jax.random.key(0), 2000)
    x = jnp.ones((2000, 2, 2, 1))
    forward = np.asarray(shake(x, keys))[:, 0, 0, 0]
    backward = np.asarray(jax.grad(lambda x: jnp.sum(shake(x, keys)))(x))[:, 0, 0, 0]
    passed = forward == 1
    assert passed.mean() == pytest.approx(0.5, abs=0.05)
    np.testing.assert_array_equal(backward[passed], 1)
    assert -1 <= forward[~passed].min() < -0.9
    assert 0.9 < forward[~passed].max() < 1
    assert 0 <= backward[~passed].min() < 0.05
    # Alpha and beta are drawn apart.
    assert abs(np.corrcoef(forward[~passed], backward[~passed])[0, 1]) < 0.1
    shake.eval()
    np.testing.assert_array_equal(shake(x, None), 0.5 * x)


def test_dropout_keeps_the_mean() -> None:
    dropout = layers.Dropout(0.25, index=0, rngs=nnx.Rngs(0))
    y = np.asarray(dropout(jnp.ones((64, 100)), jax.random.split(jax.random.key(0), 64)))
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)}
    assert y.mean() == pytest.approx(1, abs=0.05)
