"""Random words of a command line, made from the settings that a command takes: right, wrong and
absurd ones.
"""

import importlib
import pathlib
import typing
from typing import Any, Literal

import yaml
from hypothesis import strategies as st

from jaxdp import config

COMMANDS = {
    "train": ("train", "TrainConfig"),
    "evaluate": ("evaluate", "EvaluateConfig"),
    "predict": ("predict", "PredictConfig"),
    "convert import": ("convert", "ImportConfig"),
    "convert export": ("convert", "ExportConfig"),
    "check": ("check", "CheckConfig"),
    "devices": ("devices", "DevicesConfig"),
    "plan": ("plan", "PlanConfig"),
    "launch": ("launching.launcher", "LaunchConfig"),
    "launch slurm": ("launching.slurm", "SlurmConfig"),
}
# Small enough to be run; other flags displace these.
MODEL = {"model": ["cnn"], "model-kwargs": ["width=4", "hidden=16"]}
STEPS = {"global-batch-size": ["160"], "steps": ["2"]}
BASE = {
    "train": MODEL | STEPS | {"strategy": ["single"], "run-dir": ["new"]},
    "check": MODEL | STEPS | {"devices": ["1"], "steps": ["1"]},
    "devices": {},
    "plan": MODEL | STEPS,
    "convert import": MODEL | {"run-dir": ["new"]},
    "convert export": {"output": ["weights.safetensors"]},
    "launch": {"num-processes": ["2"]},
    "launch slurm": {"nodes": ["2"]},
}
POSITIONAL = {
    "evaluate": ["run"],
    "predict": ["run", "image.png"],
    "convert import": ["weights.safetensors"],
    "convert export": ["run"],
}
AFTER = {"launch": ["--", "train"], "launch slurm": ["--", "train"]}

odd_words = st.one_of(
    st.sampled_from(
        [
            "",
            " ",
            "-",
            "--",
            "-1",
            "nan",
            "inf",
            "1e400",
            "x" * 300,
            "[/b]",
            "$x$",
            "é",
            "\x1b[31m",
            "a\nb",
            "\udcff",
            "%s",
            "{}",
            "null",
            "~",
            "0x10",
            "1_000",
            "٣",
            "²",
            "..",
            "*",
        ]
    ),
    st.text("ab=,:[]{}'\"0.-é*&!#%$", max_size=8),
)
_WORDS = yaml.safe_load(pathlib.Path(__file__).with_name("fuzz_words.yaml").read_text())
_PATHS = [*_WORDS["paths"], "x" * 300]
_INTEGERS = [*_WORDS["integers"], "9" * 400, "9" * 5000]


def settings_of(command: str) -> Any:
    module, name = COMMANDS[command]
    return getattr(importlib.import_module(f"jaxdp.{module}"), name)


def _words_for(name: str, annotation: Any) -> st.SearchStrategy[list[str]]:
    """Returns lists of words that may follow the flag of a setting."""
    if name in _WORDS["keywords"]:
        return st.lists(st.sampled_from(_WORDS["keywords"][name]), min_size=1, max_size=3)
    inner = annotation
    kinds = (
        typing.get_args(inner)
        if typing.get_origin(inner) is not Literal and typing.get_args(inner)
        else (inner,)
    )
    choices = [
        str(choice)
        for kind in kinds
        if typing.get_origin(kind) is Literal
        for choice in typing.get_args(kind)
    ]
    if name in _WORDS["settings"]:
        known = _WORDS["settings"][name]
    elif choices:
        known = [*choices, "x"]
    elif bool in kinds:
        return st.sampled_from([[], [], ["true"], ["x"]])
    elif int in kinds:
        known = _INTEGERS
    elif float in kinds:
        known = _WORDS["floats"]
    else:
        known = _PATHS
    usual = st.sampled_from(known).map(lambda word: [word]) if known else st.just(["x"])
    return st.one_of(
        usual, usual, usual, usual, usual, odd_words.map(lambda word: [word]), st.just([])
    )


# Several processes, workers and services take more than a process that is warm.
_LEFT_OUT = {"submit", "ray_address", "workers_address", "deterministic"}


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Draws a command and its words: those of a small run, some of them replaced by others."""
    heavy = ["train"] * 6 + [
        "evaluate",
        "predict",
        "convert import",
        "convert export",
        "check",
        "devices",
        "devices",
    ]
    command = draw(st.sampled_from([*heavy, *COMMANDS]))
    places = config.fields(settings_of(command))
    names = sorted(
        name for name in places if name not in _LEFT_OUT and name not in ("paths", "weights")
    )
    names = [
        name
        for name in names
        if command == "train" or name != "run_dir" or command == "convert import"
    ]
    flags = dict(BASE.get(command, {}))
    for name in draw(st.lists(st.sampled_from(names), max_size=3, unique=True)):
        flags[name.replace("_", "-")] = draw(_words_for(name, places[name].type))
        if name == "model" and flags["model"] != ["cnn"]:
            small = {"resnet": ["depth=8", "width=4"], "unet": ["levels=2", "base_channels=4"]}
            flags["model-kwargs"] = small.get(flags["model"][0] if flags["model"] else "", [])
        if name in ("epochs", "per_device_batch_size"):
            flags.pop({"epochs": "steps", "per_device_batch_size": "global-batch-size"}[name], None)
    words = [word for name, own in flags.items() for word in (f"--{name}", *own)]
    positional = list(POSITIONAL.get(command, []))
    if positional and draw(st.integers(0, 4)) == 0:
        positional[draw(st.integers(0, len(positional) - 1))] = draw(
            st.sampled_from(_PATHS) | odd_words
        )
    extra = (
        draw(
            st.lists(
                odd_words
                | st.sampled_from(
                    ["--no-such", "--help", "--steps", "-h", "--model=cnn", "--seed=1=2"]
                ),
                max_size=1,
            )
        )
        if draw(st.integers(0, 9)) == 0
        else []
    )
    subcommand = command.split()[1:]
    return command.split()[0], [*subcommand, *positional, *words, *extra, *AFTER.get(command, [])]
