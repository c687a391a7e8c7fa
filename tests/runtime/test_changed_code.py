"""What user code reads may change between two runs: the second run computes with the new value.

Compiled programs are kept on disk, and JAX keeps traces in memory. Neither may give an old program.
"""

import itertools
import json
import os
import pathlib
import subprocess
import sys
import time
import types
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import jaxdp
from jaxdp import models

# Each model reads its factor in another way. The files stay as they are; only what they read
# changes.
PLUGIN = """
import dataclasses, os, pathlib
import installed_helper, json_helper
import jax, numpy as np
from flax import nnx
from jaxdp import models, tasks
from jaxdp.tasks.classification import Classification

class Net(nnx.Module):
    def __init__(self, num_classes, in_channels, *, dtype, rngs):
        self.head = nnx.Linear(64 * in_channels, num_classes, dtype=dtype, rngs=rngs)
    def outputs(self, images):
        return self.head(images.reshape(len(images), -1))
    def __call__(self, images):
        return self.outputs(images)

@models.register("plain")
class Plain(Net):
    pass

@models.register("file")
class File(Net):
    def __call__(self, images):
        return self.outputs(images) * float(pathlib.Path("factor.txt").read_text())

@models.register("environment")
class Environment(Net):
    def __call__(self, images):
        return self.outputs(images) * float(os.environ["FACTOR"])

@models.register("class_attribute")
class ClassAttribute(Net):
    factor = float(os.environ["FACTOR"])
    def __call__(self, images):
        return self.outputs(images) * self.factor

def scaled(x, factor=float(os.environ["FACTOR"])):
    return x * factor

@models.register("default_argument")
class DefaultArgument(Net):
    def __call__(self, images):
        return scaled(self.outputs(images))

@models.register("json_helper")
class JsonHelper(Net):
    def __call__(self, images):
        return self.outputs(images) * json_helper.FACTOR

def scale_by(factor):
    return lambda x: x * factor

class Closures:
    scale = scale_by(float(os.environ["FACTOR"]))

@models.register("closure")
class Closure(Net):
    def __call__(self, images):
        return Closures.scale(self.outputs(images))

@models.register("installed_helper")
class InstalledHelper(Net):
    def __call__(self, images):
        return installed_helper.scaled(self.outputs(images))

@tasks.register("class_weights")
@dataclasses.dataclass(frozen=True)
class Weighted(Classification):
    name, kind = "class_weights", "classification"
    def losses(self, outputs, batch):
        weights = jax.numpy.asarray(np.load("weights.npy"))
        return super().losses(outputs, batch) * weights[batch["labels"]]
"""
JSON_HELPER = """
import json, pathlib
FACTOR = json.loads(pathlib.Path("factor.json").read_text())["factor"]
"""
# Trains each model in a run of its own, and evaluates one that an earlier process trained.
PROGRAM = """
import contextlib, hashlib, io, json, os, sys
import jaxdp
import jax
hits = []
jax.monitoring.register_event_listener(
    lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None
)
from jaxdp import evaluate
found = {}
common = {"plugins": ["plugin.py"], "devices": 1, "global_batch_size": 32, "steps": 2}
for case in sys.argv[1:]:
    task = {"task": "class_weights"} if case == "class_weights" else {}
    model = "plain" if task else case
    result = jaxdp.Trainer(model, "digits", progress=False, **common, **task).fit()
    digest = hashlib.sha256(b"".join(leaf.tobytes() for leaf in jax.tree.leaves(result.state.params)))
    found[case] = [digest.hexdigest(), result.metrics]
if not os.path.exists("run"):  # in the first process
    jaxdp.Trainer("file", "digits", progress=False, run_dir="run", **common).fit()
output = io.StringIO()
with contextlib.redirect_stdout(output):
    code = evaluate.main(["run", "--plugins", "plugin.py", "--devices", "1", "--json"])
found["evaluate"] = json.loads(output.getvalue())
found["hits"] = len(hits)
print(json.dumps(found))
sys.exit(code)
"""
CASES = (
    "file",
    "environment",
    "class_attribute",
    "default_argument",
    "json_helper",
    "closure",
    "installed_helper",
    "class_weights",
)
Found = dict[str, Any]


def start(folder: pathlib.Path, factor: float, cache: str) -> "subprocess.Popen[str]":
    """Starts a process that trains all cases, after all that they read was set to a factor."""
    (folder / "factor.txt").write_text(str(factor))
    (folder / "factor.json").write_text(json.dumps({"factor": factor}))
    np.save(folder / "weights.npy", np.linspace(1, factor, 10, dtype=np.float32))
    installed = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    installed.mkdir(parents=True, exist_ok=True)
    (installed / "installed_helper.py").write_text(f"def scaled(x):\n    return x * {factor}\n")
    # Users have a cache: the folder is jaxdp's own choice, and small programs are kept, too.
    own = {
        "XDG_CACHE_HOME": str(folder / cache), "FACTOR": str(factor), "XLA_FLAGS": "",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "PYTHONUSERBASE": str(folder),
        "PYTHONPATH": os.pathsep.join([str(installed), *filter(None, sys.path)]),
    }  # fmt: skip
    time.sleep(0.5)  # as with a user, the files are older than the process
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *CASES], cwd=folder, env=environment | own,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process: "subprocess.Popen[str]") -> Found:
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return json.loads(output)


def test_the_next_process_computes_with_what_changed(tmp_path: pathlib.Path) -> None:
    """One test for all cases, since their processes take 10 s to start."""
    (tmp_path / "plugin.py").write_text(PLUGIN)
    (tmp_path / "json_helper.py").write_text(JSON_HELPER)
    before = finish(start(tmp_path, 2.0, "cache"))
    processes = start(tmp_path, 3.0, "cache"), start(tmp_path, 3.0, "empty")
    after, expected = map(finish, processes)
    assert after.pop("hits") > expected.pop("hits")  # the cache was there
    assert after == expected  # bit for bit
    assert set(after) == {*CASES, "evaluate"}
    assert not [case for case in after if after[case] == before[case]]


changing = types.SimpleNamespace(SCALE=1.0)


@jax.jit
def jitted(x: jax.Array) -> jax.Array:
    return x * changing.SCALE


@nnx.remat
def rematerialized(x: jax.Array) -> jax.Array:
    return x * changing.SCALE


def scanned(x: jax.Array, _: None) -> tuple[jax.Array, None]:
    return x * changing.SCALE, None


class Changing(nnx.Module):
    """Reads a constant of its module where it is called, and in functions whose traces JAX
    keeps.
    """

    def __init__(self, num_classes: int, in_channels: int, dtype: Any, rngs: nnx.Rngs) -> None:
        self.head = nnx.Linear(64 * in_channels, num_classes, dtype=dtype, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.head(images.reshape(len(images), -1))
        inner = jitted(x) + rematerialized(x) + jax.lax.scan(scanned, x, None, length=1)[0]
        return x * changing.SCALE + inner


def fit(trainer: jaxdp.Trainer) -> tuple[list[float], np.ndarray]:
    """Returns the losses of training and evaluation, and probabilities of two images."""
    result = trainer.fit()
    losses = [row["loss"] for row in result.history]
    answers = result.predict(np.zeros((2, 8, 8, 1), np.uint8))
    return [*losses, result.metrics["test"]["loss"]], np.asarray(answers)


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("single", {"devices": 1}),
        ("pmap", {"devices": 2}),
        ("shard_map", {"devices": 2}),
        ("sharded", {"devices": 2}),
        ("sharded", {"devices": 2, "mesh": "data=2", "shard_params": True}),
        ("central", {"devices": 2}),
    ],
)
def test_the_next_trainer_of_a_process_computes_with_what_changed(
    strategy: str, settings: dict[str, Any], registries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.register("changing")(Changing)
    common = {"global_batch_size": 32, "steps": 2, "progress": False, "strategy": strategy}
    trainers, found = [], []
    for scale in (1.0, 0.0, 2.0) if strategy == "single" else (1.0, 0.0):
        monkeypatch.setattr(changing, "SCALE", scale)
        trainers.append(jaxdp.Trainer("changing", "digits", **common, **settings))
        found.append(fit(trainers[-1]))
    # If all outputs are 0, the ten classes are equally likely.
    np.testing.assert_allclose(found[1][0], np.log(10), rtol=1e-6)
    np.testing.assert_allclose(found[1][1], 0.1, rtol=1e-6)
    for one, other in itertools.combinations(found, 2):
        assert all(a != b for a, b in zip(one[0], other[0], strict=True))
        assert not np.array_equal(one[1], other[1])
    # A Trainer keeps the program that it has.
    assert fit(trainers[0])[0] == found[0][0]
