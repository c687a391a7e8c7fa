"""The text of --mesh becomes a shape, and the shape a mesh.

Texts that do not fit are in test_sharded.py.
"""

import jax
import pytest

from jaxdp.sharding.mesh import MeshShape


@pytest.mark.parametrize(
    ("text", "shape", "written"),
    [
        (None, MeshShape(8), "data=8"),
        ("data=8", MeshShape(8), "data=8"),
        ("space=2, data=4", MeshShape(4, space=2), "data=4,space=2"),
        ("space=8", MeshShape(1, space=8), "data=1,space=8"),
        ("data=8,space=1", MeshShape(8, space=1), "data=8,space=1"),
    ],
)
def test_text_is_parsed_to_a_shape(text: str | None, shape: MeshShape, written: str) -> None:
    assert MeshShape.parse(text, 8) == shape
    assert str(shape) == written
    assert MeshShape.parse(written, 8) == shape
    assert dict(shape.over(jax.devices()[:8]).shape) == shape.sizes
