"""Writes src/jaxdp/config/keywords.py: the settings of a training run as keywords of `Trainer`, for
type checkers, from their declarations. `nox -s keywords` starts it.
"""

import pathlib
import types
import typing
from typing import Literal

from jaxdp.config import ClassWeights, Facts, TrainConfig, fields
from jaxdp.config.values import Columns

FILE = pathlib.Path(__file__).parents[1] / "src" / "jaxdp" / "config" / "keywords.py"
OWN = ("model", "dataset", "task", "callbacks")  # parameters of Trainer itself
OBJECTS = {
    "optimizer": "GradientTransformation",
    "learning_rate": "Callable[[Any], Any]",
    "init_from": "Path | Resumable",
    "resume": "str | Path | Resumable",
}
HEAD = '''"""Keywords of `Trainer` and `Trainer.fit` for editors and type checkers.

Written by `nox -s keywords` from the declarations of `TrainConfig`.
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


def as_keyword(facts: Facts) -> str:
    union = typing.get_origin(facts.annotation) in (types.UnionType, typing.Union)
    kinds = list(typing.get_args(facts.annotation)) if union else [facts.annotation]
    texts = []
    for kind in kinds:
        if typing.get_origin(kind) is Literal:
            texts.append(
                f"Literal[{', '.join(map(repr, typing.get_args(kind)))}]".replace("'", '"')
            )
        elif hasattr(kind, "parse"):
            texts += ["str", *["Sequence[float]"] * (kind is ClassWeights)]
            texts += ["dict[str, str]"] * (kind is Columns)
        elif kind is type(None):
            texts.append("None")
        else:
            texts.append(
                {tuple[str, ...]: "Sequence[str]"}.get(kind, getattr(kind, "__name__", ""))
            )
    texts = [text if text != "dict" else "dict[str, Any]" for text in texts]
    texts += [kind.__name__ for kind in facts.numbers]
    if facts.name in OBJECTS:
        texts.append(OBJECTS[facts.name])
    texts.sort(key=lambda text: text == "None")
    return f"    {facts.name}: {' | '.join(texts)}\n"


def generated() -> str:
    own = [facts for name, facts in fields(TrainConfig).items() if name not in OWN]
    return HEAD + "".join(map(as_keyword, own))


if __name__ == "__main__":
    FILE.write_text(generated())
