"""Random words of a command line, made from the settings that a command takes: right, wrong and
absurd ones.
"""

import importlib
import typing
from typing import Any, Literal

from hypothesis import strategies as st

from jaxdp import config

COMMANDS = {
    "train": ("train", "TrainConfig"),
    "evaluate": ("evaluate", "EvaluateConfig"),
    "predict": ("predict", "PredictConfig"),
    "checkpoints": ("checkpoints", "CheckpointsConfig"),
    "convert import": ("convert", "ImportConfig"),
    "convert export": ("convert", "ExportConfig"),
    "check": ("check", "CheckConfig"),
    "devices": ("devices", "DevicesConfig"),
    "plan": ("plan", "PlanConfig"),
    "bench": ("bench", "BenchConfig"),
    "sweep": ("sweep", "SweepConfig"),
    "report": ("report", "ReportConfig"),
    "launch": ("runtime.launcher", "LaunchConfig"),
    "launch slurm": ("runtime.slurm", "SlurmConfig"),
    "launch ray": ("runtime.ray_launcher", "RayConfig"),
}
# Small enough to be run; other flags displace these.
MODEL = {"model": ["cnn"], "model-kwargs": ["width=4", "hidden=16"]}
STEPS = {"global-batch-size": ["160"], "steps": ["2"]}
BASE = {
    "train": MODEL | STEPS | {"strategy": ["single"], "run-dir": ["new"]},
    "check": MODEL | STEPS | {"devices": ["1"], "steps": ["1"]},
    "devices": {},
    "plan": MODEL | STEPS,
    "bench": MODEL | {"repeats": ["0"]},
    "sweep": MODEL | STEPS | {"at-a-time": ["0"]},
    "convert import": MODEL | {"run-dir": ["new"]},
    "convert export": {"output": ["weights.safetensors"]},
    "launch": {"num-processes": ["2"]},
    "launch slurm": {"nodes": ["2"]},
    "launch ray": {"workers": ["0"]},
}
POSITIONAL = {
    "evaluate": ["run"],
    "predict": ["run", "image.png"],
    "checkpoints": ["run"],
    "convert import": ["weights.safetensors"],
    "convert export": ["run"],
    "report": ["run"],
}
AFTER = {"launch": ["--", "train"], "launch slurm": ["--", "train"], "launch ray": ["--", "train"]}

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
_PATHS = [
    "run",
    "image.png",
    "pipe",
    "loop",
    "endless",
    "nothing",
    "nothing/deep",
    "image.png/deep",
    "set.npz",
    "set",
    "weights.safetensors",
    "settings.yaml",
    "x" * 300,
    "new",
    "run/config.yaml",
    "empty",
]
_INTEGERS = [
    "1",
    "2",
    "3",
    "8",
    "16",
    "0",
    "-1",
    "+2",
    "1.5",
    "1e3",
    "2147483648",
    "9" * 30,
    "9" * 400,
    "9" * 5000,
    "x",
]
_FLOATS = [
    "0",
    "0.5",
    "1e-3",
    "1",
    "3",
    "-1",
    "nan",
    "inf",
    "-0.0",
    "1e308",
    "1e-320",
    "1e400",
    "x",
]
# Where any value would take minutes, a network or another machine, and what is worth trying of
# those that are names.
_OF = {
    "steps": ["1", "2", "3", "0", "-1", "1e3", "9" * 12],
    "epochs": ["0", "-1", "9" * 12, "x"],
    "repeats": ["0", "-1", "x"],
    "global_batch_size": ["16", "24", "160", "7", "1", "0", "-1", "1437", "999999999", "x"],
    "per_device_batch_size": ["16", "40", "0", "-1", "999999999"],
    "accumulate_steps": ["1", "2", "3", "0", "99999999"],
    "devices": ["1", "2", "4", "8", "9", "0", "513", "x", "1,2", ","],
    "workers": ["0", "-1", "x", "5000"],
    "slices": ["0", "-1", "x", "5"],
    "servers": ["0", "2"],
    "staleness": ["1", "-1"],
    "ray_address": ["auto"],
    "address": [""],
    "on": ["here", "x"],
    "num_processes": ["0", "-1", "1", "2", "99999"],
    "process_id": ["0", "7", "-1"],
    "coordinator": ["x", ":", "a:b", ""],
    "distributed": ["auto", "off", "on", "x"],
    "distributed_timeout": ["0", "x", "nan"],
    "heartbeat_timeout": ["20", "0", "x"],
    "devices_per_process": ["1", "0", "99999"],
    "max_restarts": ["0", "-1"],
    "submit": [],
    "step_timeout": ["1000", "0", "-1", "nan", "1e400", "x"],
    "wait": [],
    "model": ["cnn", "cnn", "resnet", "no-such", "CNN", "unet"],
    "dataset": [
        "digits",
        "digits-denoise",
        "npz:set.npz",
        "folder:set",
        "npz:",
        "folder:",
        "folder:empty",
        "folder:image.png",
        "npz:image.png",
        "tfds:",
        "tfds:x/y:1",
        "x:y",
        "mnist",
        "folder:pipe",
    ],
    "data_dir": ["nothing", "run", "image.png", "pipe"],
    "strategy": ["single", "pmap", "shard_map", "sharded", "central", "x"],
    "strategies": ["single", "pmap,single", ",", "x"],
    "task": ["classification", "segmentation", "regression", "x"],
    "loss": ["cross_entropy", "dice", "l1", "x"],
    "optimizer": ["sgd", "adamw", "lion", "lamb", "x"],
    "mesh": [
        "data=2",
        "data=2,space=2",
        "data=1,space=2",
        "data=0",
        "data=",
        "model=2",
        "data=2,data=2",
        "x=1",
        "data=9999999999",
        "data=-1",
    ],
    "train_split": [
        "train",
        "train[:50%]",
        "train[:0]",
        "train[5:2]",
        "train[",
        "test",
        "x",
        "train[:9999999]",
        "train+test",
    ],
    "test_split": ["test", "train[50%:]", "x", "test[:1]", "test[:0%]"],
    "validation": ["0.1", "0", "1", "none", "x", "-0.5", "nan", "0.0001", "train[:10%]"],
    "split": ["train", "test", "validation", "all", "x"],
    "image_size": [
        "8",
        "16x12",
        "1",
        "resize_crop:8",
        "letterbox:9",
        "0",
        "8x",
        "x8",
        "-1",
        "9" * 9,
        "crop:1",
    ],
    "class_names": ["a,b", ",", "a,a", "0,1,2,3,4,5,6,7,8,9", "\x1b,b"],
    "class_weights": ["balanced", "1,2", "0", "nan,1", "1,1,1,1,1,1,1,1,1,1", ","],
    "mask_values": ["binary", "0,1", "0,0", "ff0000,00ff00", "x"],
    "num_classes": ["10", "2", "11", "1", "0", "99999999"],
    "batch_norm": [
        "replica",
        "global",
        "group:4",
        "group:7",
        "group:0",
        "group:",
        "group:99999999999",
        "group:²",
    ],
    "profile": ["1:2", "2:1", "0:1", ":", "1:99999999999"],
    "freeze": ["head", "(", "", "(?!head)", "*", "convs", ".*"],
    "init_from": [
        "run",
        "weights.safetensors",
        "set.npz",
        "nothing",
        "image.png",
        "pipe",
        "settings.yaml",
    ],
    "callbacks": [
        "early_stopping:patience=1,metric=loss",
        "early_stopping:patience=x",
        "early_stopping:",
        "x",
        ":",
        "profiler:x=1",
        "early_stopping:patience=1,patience=2",
    ],
    "plugins": ["plugin.py", "nothing.py", "json", "no.such.module", "settings.yaml", ""],
    "seed": ["0", "1", "-1", "2147483648"],
    "grid": ["learning_rate=0.1,0.2", "x=1", "=", "seed=", "steps=1,1", "model_kwargs.width=4"],
    "trials": ["0", "x", "2 x=log(1,0)", "2 seed=log(0,1)", "3 learning_rate=log(1e-4,1)"],
    "compare": ["nothing", "image.png", "run/metrics.jsonl", "run"],
    "device_memory": ["1GiB", "0", "-1", "x", "1e400GiB", "nan", "9" * 20],
    "batch_sizes": ["16", "0", ",", "x"],
    "output": [
        "out.html",
        "out.safetensors",
        "out.stablehlo",
        "run",
        "image.png/x",
        "pipe",
        "x" * 300,
        "loop",
        "nothing/a/b.html",
        "out\x1b[31m.html",
        "",
    ],
    "tile": ["64", "512", "0", "-1", "63", "9" * 12],
    "overlap": ["0", "16", "-1", "9" * 12],
    "top_k": ["1", "99", "0"],
    "json": ["true"],
    "config": [
        "settings.yaml",
        "nothing",
        "image.png",
        "pipe",
        "run/config.yaml",
        "run",
        "endless",
    ],
    "step": ["2", "4", "3", "0", "-1", "9" * 12, "x"],
    "time": ["1:00:00", "x", "0", "-1"],
    "batch_size": ["1"],
}
_KEYWORDS = {
    "model_kwargs": [
        "width=4",
        "hidden=16",
        "width=0",
        "width=-1",
        "width=99999999",
        "width=1e9",
        "width=2.5",
        "width=nan",
        "width=[1]",
        "width={a: 1}",
        "dropout=0.5",
        "dropout=2",
        "dropout=x",
        "x=1",
        "depth=8",
        "width=true",
        "width='4'",
        "dtype=float64",
        "num_classes=3",
        "rngs=1",
        "width=null",
        "width",
    ],
    "task_kwargs": [
        "class_weights=[1,5]",
        "num_classes=3",
        "delta=0.1",
        "x=1",
        "loss=l1",
        "ignore_label=-1",
        "label_smoothing=x",
    ],
    "optimizer_kwargs": [
        "momentum=0.95",
        "b1=2",
        "b1=nan",
        "learning_rate=1",
        "x=1",
        "nesterov=false",
        "momentum=x",
        "momentum=[1]",
        "accumulator_dtype=bfloat16",
        "mask=1",
    ],
    "augment": [
        "flip",
        "pad_crop:1",
        "pad_crop:99",
        "crop:4",
        "rotate:10",
        "cutout:3",
        "mixup",
        "mixup:x",
        "cutmix:0",
        "affine",
        "elastic",
        "brightness:9",
        "none",
        "flip:2",
        "x",
        ":",
        "crop:0",
        "crop:-1",
        "rotate:nan",
        "random_resized_crop",
        "shift:1e9",
    ],
}


def settings_of(command: str) -> Any:
    module, name = COMMANDS[command]
    return getattr(importlib.import_module(f"jaxdp.{module}"), name)


def _words_for(name: str, annotation: Any) -> st.SearchStrategy[list[str]]:
    """Returns lists of words that may follow the flag of a setting."""
    if name in _KEYWORDS:
        return st.lists(st.sampled_from(_KEYWORDS[name]), min_size=1, max_size=3)
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
    if name in _OF:
        known = _OF[name]
    elif choices:
        known = [*choices, "x"]
    elif bool in kinds:
        return st.sampled_from([[], [], ["true"], ["x"]])
    elif int in kinds:
        known = _INTEGERS
    elif float in kinds:
        known = _FLOATS
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
        name
        for name in places
        if name not in _LEFT_OUT and name not in ("run_dirs", "paths", "weights")
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
