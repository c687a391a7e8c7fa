"""The text of --mesh becomes a shape, and the shape a mesh.

Texts that do not fit are in test_sharded.py.
"""

import jax
import pytest

from jaxdp.sharding.mesh import MeshShape


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (None, {"data": 8}),
        ("data=8", {"data": 8}),
        ("space=2, data=4", {"data": 4, "space": 2}),
        ("space=8", {"data": 1, "space": 8}),
        ("data=8,space=1", {"data": 8, "space": 1}),
    ],
)
def test_text_is_parsed_to_a_shape(text: str | None, sizes: dict[str, int]) -> None:
    shape = MeshShape.parse(text, 8)
    assert MeshShape.parse(str(shape), 8) == shape == MeshShape(**sizes)
    assert [*shape.over(jax.devices()[:8]).shape.items()] == [*sizes.items()]
