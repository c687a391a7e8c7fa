"""The keywords of `Trainer` for type checkers: `python tests/config/test_keywords.py` writes them anew."""

import inspect
import pathlib
import subprocess
import sys
import types
import typing
from typing import Any, Literal

import pytest

import jaxdp
from jaxdp.config import ClassWeights, TrainConfig, facts_of, fields
from jaxdp.config.keywords import TrainKeywords

FILE = pathlib.Path(inspect.getfile(TrainKeywords))
OWN = ("model", "dataset", "task", "callbacks")  # parameters of Trainer itself
OBJECTS = {
    "optimizer": "GradientTransformation",
    "learning_rate": "Callable[[Any], Any]",
    "init_from": "Path | Resumable",
    "resume": "str | Path | Resumable",
}
HEAD = '''"""Keywords of `Trainer` and `Trainer.fit` for editors and type checkers.

Written by tests/config/test_keywords.py from the declarations of `TrainConfig`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict

from optax import GradientTransformation  # pyright: ignore[reportMissingTypeStubs]


class Resumable(Protocol):
    """A result of training, with the folder of its run, if it has one."""

    run_dir: Path | None


class TrainKeywords(TypedDict, total=False):
    """Settings of a training run by name, in the types in which a program gives them."""

'''


def as_keyword(name: str, field: Any) -> str:
    union = typing.get_origin(field.type) in (types.UnionType, typing.Union)
    kinds = list(typing.get_args(field.type)) if union else [field.type]
    texts = []
    for kind in kinds:
        if typing.get_origin(kind) is Literal:
            texts.append(
                f"Literal[{', '.join(map(repr, typing.get_args(kind)))}]".replace("'", '"')
            )
        elif hasattr(kind, "parse"):
            texts += ["str", *["Sequence[float]"] * (kind is ClassWeights)]
        elif kind is type(None):
            texts.append("None")
        else:
            texts.append(
                {tuple[str, ...]: "Sequence[str]"}.get(kind, getattr(kind, "__name__", ""))
            )
    texts = [text if text != "dict" else "dict[str, Any]" for text in texts]
    texts += [kind.__name__ for kind in facts_of(field).numbers]
    if name in OBJECTS:
        texts.append(OBJECTS[name])
    texts.sort(key=lambda text: text == "None")
    return f"    {name}: {' | '.join(texts)}\n"


def generated() -> str:
    own = {name: field for name, field in fields(TrainConfig).items() if name not in OWN}
    return HEAD + "".join(as_keyword(name, field) for name, field in own.items())


def test_the_keywords_are_those_of_the_settings() -> None:
    assert FILE.read_text() == generated()


MISTAKES = """import jaxdp

trainer = jaxdp.Trainer("cnn", "digits", epocs=3)
trainer = jaxdp.Trainer("cnn", "digits", epochs="x", batch_norm="global", image_size=8)
trainer.fit(epochs=3, learning_rate=0.1)
trainer.fit(epochs="x")
"""


def test_a_type_checker_finds_wrong_keywords(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("pyright")
    (tmp_path / "mistakes.py").write_text(MISTAKES)
    source = pathlib.Path(jaxdp.__file__).parent.parent
    (tmp_path / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{source}"]}}')
    found = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "mistakes.py"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    if " errors, " not in found.stdout:
        reason = (found.stdout + found.stderr).strip().splitlines() or ["nothing was printed"]
        pytest.skip(f"pyright, which downloads Node.js, does not run here: {reason[-1]}")
    lines = [line for line in found.stdout.splitlines() if " error: " in line]
    assert [line.split(":")[1] for line in lines] == ["3", "4", "6"], found.stdout
    assert "epocs" in lines[0]


if __name__ == "__main__":
    FILE.write_text(generated())
