"""A model tells by which name and keywords it was constructed, and is the same model as without
this knowledge.
"""

import gc
from typing import Any

import jax.numpy as jnp
import pytest
from flax import nnx

from jaxdp import models
from jaxdp.models import recipes

COMMON: dict[str, Any] = {"num_classes": 3, "in_channels": 1}


@pytest.mark.parametrize("name", models.__all__[:5])
def test_classes_are_exported_under_their_names(name: str) -> None:
    model_class = getattr(models, name)
    assert model_class.__name__ == name
    assert models.names()[name.lower()] is model_class


def test_unknown_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="no attribute 'PyramidNot'"):
        models.PyramidNot  # noqa: B018 - what is tested


def test_a_recipe_constructs_the_same_model() -> None:
    model = models.CNN(
        **COMMON, rngs=nnx.Rngs(0), width=4, hidden=8, dropout=0.5, dtype=jnp.bfloat16
    )
    recipe = models.recipe_of(model)
    assert recipe == ("cnn", {"width": 4, "hidden": 8, "dropout": 0.5})
    assert recipe is not None
    again = models.create(recipe[0], **COMMON, rngs=nnx.Rngs(0), **recipe[1], dtype=jnp.bfloat16)
    assert nnx.graphdef(again) == nnx.graphdef(model)
    assert models.recipe_of(again) == recipe
    recipe[1]["width"] = 5
    assert models.recipe_of(again) == ("cnn", {"width": 4, "hidden": 8, "dropout": 0.5})


def test_models_are_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered = models.CNN(**COMMON, rngs=nnx.Rngs(0), width=4, hidden=8)
    monkeypatch.setattr(models.CNN, "__init__", models.CNN.__init__.__wrapped__)  # pyright: ignore[reportFunctionMemberAccess]
    plain = models.CNN(**COMMON, rngs=nnx.Rngs(0), width=4, hidden=8)
    assert models.recipe_of(plain) is None
    (graphdef, state), (other_graphdef, other_state) = nnx.split(remembered), nnx.split(plain)
    assert graphdef == other_graphdef
    assert nnx.to_flat_state(state).paths == nnx.to_flat_state(other_state).paths
    assert vars(remembered).keys() == vars(plain).keys()


@pytest.mark.usefixtures("registries")
def test_what_yaml_cannot_hold_has_no_recipe() -> None:
    @models.register("listed")
    class Listed(nnx.Module):
        def __init__(
            self, widths: Any, *, num_classes: int, in_channels: int, rngs: nnx.Rngs, **others: Any
        ) -> None:
            pass

    class Derived(Listed):
        pass

    def recipe(*args: Any, of: Any = Listed, **kwargs: Any) -> Any:
        return models.recipe_of(of(*args, **COMMON, rngs=nnx.Rngs(0), **kwargs))

    assert recipe([4, [8, 0.5]], name=None, flag=True) == (
        "listed",
        {"widths": [4, [8, 0.5]], "name": None, "flag": True},
    )
    for value in (jnp.ones(2), (4, 8), nnx.relu, {"a": 1}, [4, jnp.float32]):
        assert recipe(value) is None
    assert recipe([4], of=Derived) is None
    assert models.recipe_of(nnx.Linear(1, 1, rngs=nnx.Rngs(0))) is None


def test_recipes_go_with_their_models() -> None:
    gc.collect()
    before = len(recipes._recipes)
    model = models.CNN(**COMMON, rngs=nnx.Rngs(0), width=4, hidden=8)
    assert len(recipes._recipes) == before + 1
    del model
    gc.collect()
    assert len(recipes._recipes) == before
