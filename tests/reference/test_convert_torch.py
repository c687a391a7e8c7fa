"""Files that PyTorch wrote become runs; what is more than arrays is not loaded."""

import pathlib

import numpy as np
import pytest
from flax import nnx
from runs import evaluated

from jaxdp import convert, models
from jaxdp.models.reference_weights import reference_names

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `nox -s reference` has it")


def state_dict() -> dict:
    model = models.create(
        "pyramidnet", num_classes=10, in_channels=1, rngs=nnx.Rngs(0), depth=8, alpha=6
    )
    arrays, state = nnx.to_pure_dict(nnx.state(model)), {}
    for name, place in reference_names(model).items():
        leaf = arrays
        for key in place.path:
            leaf = leaf[key]
        back = np.transpose(np.asarray(leaf), np.argsort(place.axes))
        state[name] = torch.from_numpy(np.array(back))
    return state


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_checkpoint_of_pytorch_becomes_a_run(wrapped: bool) -> None:
    state = state_dict()
    torch.save(
        {"epoch": 3, "state_dict": {f"module.{name}": value for name, value in state.items()}}
        if wrapped
        else state,
        "w.pth",
    )
    assert convert.main("import w.pth --run-dir run --model-kwargs depth=8 alpha=6".split()) == 0
    step, figures = evaluated("run")
    assert (step, figures["examples"]) == (0, 360)


def test_pickled_code_is_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    class Harm:
        def __reduce__(self) -> tuple:
            return (pathlib.Path.touch, (pathlib.Path("harmed"),))

    torch.save({"weight": Harm()}, "harm.pt")
    assert convert.main("import harm.pt --run-dir run".split()) == 2
    assert "--weights harm.pt: cannot be read" in capsys.readouterr().err
    assert not pathlib.Path("harmed").exists()


def test_a_whole_model_or_none_is_no_state_dict(capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"epoch": 3}, "none.pt")
    assert convert.main("import none.pt --run-dir run".split()) == 2
    assert "model.state_dict()" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("bfloat16", ""),
        ("int32", "1 of another dtype: head/bias int32, expected float32"),
        ("float8_e4m3fn", "w.pt: cannot be read: Got unsupported ScalarType Float8_e4m3fn"),
    ],
)
def test_only_floats_that_numpy_has_are_weights(
    dtype: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    state = state_dict()
    state["fc.bias"] = state["fc.bias"].to(getattr(torch, dtype))
    torch.save(state, "w.pt")
    code = convert.main("import w.pt --run-dir run --model-kwargs depth=8 alpha=6".split())
    assert code == (2 if message else 0)
    assert message in capsys.readouterr().err
    assert pathlib.Path("run").exists() == (not message)
