"""Defines the types of the files of a run, and checks a JSON value against a type."""

import re
import types
import typing
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

from jaxdp.text.parsing import is_finite

# Each type is followed by its check.
Count = Annotated[int, range(2**63).__contains__]
Side = Annotated[int, range(1, 2**20 + 1).__contains__]  # pixels
Classes = Annotated[int, range(1, 2**15 + 1).__contains__]  # also channels
Digest = Annotated[str, re.compile("[0-9a-f]{64}").fullmatch]


class Dataset(TypedDict):
    """The facts of the dataset that its model knows."""

    task: str
    num_classes: Classes
    image_shape: tuple[Side, Side, Classes]
    mean: list[float]
    std: list[Annotated[float, lambda value: value > 0]]
    class_names: list[str]
    examples: dict[str, Count]
    kind: NotRequired[Literal["", "classification", "segmentation", "regression"]]
    dtype: NotRequired[Literal["uint8", "uint16", "float32"]]
    pixel_range: NotRequired[tuple[float, float] | None]
    instances: NotRequired[bool]
    named: NotRequired[bool | None]
    mask_values: NotRequired[list[Count]]
    value_mean: NotRequired[list[float]]
    value_std: NotRequired[list[Annotated[float, lambda value: value > 0]]]
    pixel_size: NotRequired[
        Annotated[list[float], lambda sides: len(sides) in (0, 2) and min(sides, default=1) > 0]
    ]
    spread: NotRequired[Annotated[list[float], lambda ends: len(ends) in (0, 4)]]
    fingerprint: NotRequired[str]
    own_task: NotRequired[str]
    own_loss: NotRequired[bool]
    best_metric: NotRequired[tuple[str, bool] | None]


class EndedEarly(TypedDict):
    """The end of a run before its last step."""

    total_steps: Count


class Summary(TypedDict):
    """The result of a run."""

    status: str
    steps: Count
    metrics: dict[str, dict[str, Any]]
    best: NotRequired[dict[str, Any] | None]
    seconds: NotRequired[dict[str, Any]]
    versions: NotRequired[dict[str, Any]]
    examples_per_second: NotRequired[float | None]
    epochs: NotRequired[float]
    ended_early: NotRequired[EndedEarly]


class MetricsRow(TypedDict):
    """A line of metrics.jsonl."""

    step: Count
    split: str


class Event(TypedDict):
    """A line of history.jsonl."""

    step: Count
    event: str


class Writer(TypedDict):
    """The process that writes in the folder."""

    host: str
    pid: Annotated[int, range(1, 2**31).__contains__]
    started: str


class FileKind(NamedTuple):
    """A type of file.

    Attributes:
        purpose: its content, as a phrase that follows "it has".
        remedy: how to create it again, or what to do instead.
        schema: the type of the object in it, or of each line; None for files without JSON.
    """

    purpose: str
    remedy: str
    schema: Any = None


_AGAIN = "the same training command writes it again"
_ASIDE = "keep a copy and move it away"
KINDS = {
    "config.yaml": FileKind(
        "the settings",
        "put a copy back, or move it away and give the training command with all its flags, which"
        " writes it again",
    ),
    "dataset.json": FileKind("what the model knows of its dataset", _AGAIN, Dataset),
    "summary.json": FileKind("the result", _AGAIN, Summary),
    "sources.json": FileKind("digests of the user's source files", _AGAIN, dict[str, Digest]),
    "wandb-id.txt": FileKind(
        "the name of the run at Weights & Biases", "another one is begun there"
    ),
    "metrics.jsonl": FileKind("the metrics", _ASIDE, MetricsRow),
    "history.jsonl": FileKind("what became of the run", _ASIDE, Event),
    "writer.lock": FileKind("who writes in the folder", "the next writer writes it again", Writer),
}


def problem(content: Any, name: str) -> str:
    """Returns the problem of the object in a file, or in a line of it; nothing if it is valid.

    Args:
        name: name of the file. An object in another file may have any content.
    """
    if not isinstance(content, dict):
        return "it holds no object"
    schema = KINDS[name].schema if name in KINDS else None
    field = _wrong_field(content, schema) if schema is not None else None
    if field is None and schema is Dataset:  # a model is made from these fields
        channels = content["image_shape"][-1]
        low, high = content.get("pixel_range") or (0, 1)
        fits = {
            "mean": len(content["mean"]) == channels,
            "std": len(content["std"]) == channels,
            "class_names": len(content["class_names"]) in (0, content["num_classes"]),
            "pixel_range": low < high,
        }
        field = next((name for name, does in fits.items() if not does), None)
    return "" if field is None else f"{field} is missing in it, or no such value"


def conforms(value: Any, hint: Any) -> bool:
    """Returns whether a JSON value has the type of an annotation. An object may have further
    fields.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return conforms(value, arguments[0]) and all(check(value) for check in arguments[1:])
    if origin is types.UnionType:
        return any(conforms(value, each) for each in arguments)
    if origin is Literal:
        return value in arguments
    if origin is list:
        return isinstance(value, list) and all(conforms(each, arguments[0]) for each in value)
    if origin is tuple:
        fits = isinstance(value, list) and len(value) == len(arguments)
        return fits and all(map(conforms, value, arguments))
    if origin is dict or typing.is_typeddict(hint):
        return isinstance(value, dict) and _wrong_field(value, hint) is None
    if hint in (int, float):  # true is not a number
        return is_finite(value) and (hint is float or isinstance(value, int))
    return hint is Any or isinstance(value, hint)


def _wrong_field(content: dict[str, Any], schema: Any) -> str | None:
    """Returns the first field that is missing or has another type; None if all fields are valid."""
    if typing.get_origin(schema) is dict:
        hints, required = dict.fromkeys(content, typing.get_args(schema)[1]), set[str]()
    else:
        hints, required = (
            typing.get_type_hints(schema, include_extras=True),
            schema.__required_keys__,
        )
    for name, hint in hints.items():
        if typing.get_origin(hint) is NotRequired:
            (hint,) = typing.get_args(hint)
        if name in required if name not in content else not conforms(content[name], hint):
            return name
    return None
