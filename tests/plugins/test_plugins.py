"""What is registered outside the package is found by name, again after the run, and a mistake in it
is one line.
"""

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image
from runs import answers, error_line, rows, run_train, summary

import jaxdp
from jaxdp import convert, evaluate, models, predict, tasks, train
from jaxdp.build.data import open_data
from jaxdp.config import TrainConfig, run_hash
from jaxdp.config.files import defining
from jaxdp.data import sources
from jaxdp.errors import ConfigError
from jaxdp.plugins.loading import load_plugins
from jaxdp.plugins.registry import Registry

NET = """
from flax import nnx
from jaxdp import models

@models.register("{name}")
class Net(models.registry._models["cnn"]):
    pass
"""
TASK = """
import dataclasses
from jaxdp import tasks
from jaxdp.tasks.classification import Classification

@tasks.register("grading")
@dataclasses.dataclass(frozen=True)
class Grading(Classification):
    name, kind = "grading", "classification"
    best_metric = ("squared", False)

    def probabilities(self, outputs):
        return 0 * outputs

    def metrics(self, sums):
        return super().metrics(sums) | {"squared": 0.25}
"""
PARTS = """
import numpy as np
from jaxdp import callbacks
from jaxdp.data import sources
from jaxdp.sharding import strategy
from jaxdp.sharding.pmap import Pmap

@sources.register("halves")
def halves(request):
    request.choose("classification")
    images = np.zeros((80, 16, 16, 1), np.uint8)
    images[1::2, :8] = 255
    examples = sources.ArraySource(images, np.arange(80, dtype=np.int32) % 2, "labels")
    return sources.Dataset(train=examples, test=examples, num_classes=2)

@strategy.register("counted")
class Counted(Pmap):
    name, calls = "counted", 0

    def shard_batch(self, batch):
        self.calls += 1
        return super().shard_batch(batch)

@callbacks.register("calls")
class Calls:
    def on_row(self, run, row):
        row["calls"] = run.setup.strategy.calls
"""
STEPS = (
    "--model-kwargs width=4 hidden=16 --global-batch-size 64 --steps 2 --image-size 16 --devices 2"
    " --run-dir run"
)


pytestmark = pytest.mark.usefixtures("registries")


def write(name: str, content: str) -> str:
    pathlib.Path(name).write_text(content)
    return name


def python(*words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({"PYTHONPATH": os.pathsep.join([path, *sys.path])} if path else {})
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment)


@pytest.mark.usefixtures("no_pictures")
def test_a_file_is_found_again_by_the_other_commands(capsys: pytest.CaptureFixture[str]) -> None:
    write("net.py", NET.format(name="othernet"))
    write("task.py", TASK)
    flags = "--plugins net.py task.py --model othernet --task grading --dataset digits"
    assert run_train(f"{flags} {STEPS}") == 0
    found = summary()
    assert (found["model"], found["task"]) == ("othernet", "grading")
    assert found["metrics"]["test"]["squared"] == 0.25
    assert found["best_metric"] == {"name": "squared", "larger_is_better": False}
    # As in a new process.
    for registry, name in ((models.registry._models, "othernet"), (tasks.task._tasks, "grading")):
        del registry._entries[name], registry._origins[name]
    for name in ("net.py", "task.py"):
        del sys.modules[str(pathlib.Path(name).resolve())]
    capsys.readouterr()
    assert evaluate.main(["run", "--json"]) == 2
    line = error_line(capsys)
    assert line.endswith(
        "which run only if you also name them: if you trust them, add --plugins net.py task.py"
    )
    assert evaluate.main(["run", "--json", "--plugins", "net.py", "task.py"]) == 0
    assert json.loads(capsys.readouterr().out)["squared"] == 0.25
    # They are imported by now.
    (answer,) = answers("run", [np.zeros((16, 16, 1), np.uint8)])
    assert answer.shape == (10,)
    assert not answer.any()  # by the task's own probabilities


@pytest.mark.usefixtures("no_pictures")
def test_a_dataset_a_strategy_and_a_callback_are_one_file_each() -> None:
    write("parts.py", PARTS)
    flags = f"--plugins parts.py --model cnn --dataset halves {STEPS} --log-every 1 --seed 3"
    assert run_train(f"{flags} --strategy counted --callbacks calls") == 0
    assert run_train(f"{flags} --strategy pmap --run-dir plain") == 0
    counted, plain = rows("run"), rows("plain")
    assert all(row.pop("calls") for row in counted)
    assert counted == plain
    assert summary("run")["strategy"] == "counted"


@pytest.mark.usefixtures("no_pictures")
def test_a_folder_runs_no_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_train(f"--model cnn {STEPS}") == 0
    readme = write("readme.py", "import pathlib\npathlib.Path('executed').touch()\n")
    settings = pathlib.Path("run/config.yaml")
    settings.write_text(settings.read_text().replace("plugins: []", f"plugins: [{readme}]"))
    assert readme in settings.read_text()
    Image.fromarray(np.zeros((16, 16), np.uint8)).save("image.png")
    commands: list[tuple[Callable[[list[str]], int], list[str]]] = [
        (evaluate.main, ["run"]),
        (predict.main, ["run", "image.png"]),
        (convert.main, ["export", "run", "--output", "weights.safetensors"]),
        (train.main, f"--model cnn {STEPS} --run-dir second --init-from run".split()),
    ]
    for command, words in commands:
        capsys.readouterr()
        assert command(words) == 2
        line = error_line(capsys)
        assert line.endswith("if you trust them, add --plugins readme.py"), line
    with pytest.raises(ConfigError, match=r"add plugins=readme\.py"):
        jaxdp.load("run")
    assert not pathlib.Path("executed").exists()
    pathlib.Path("mine").mkdir()
    named = write("mine/readme.py", "")  # a file of that name, wherever it is now
    for command, words in commands:
        assert command([*words, "--plugins", named]) == 0
    assert not pathlib.Path("executed").exists()


@pytest.mark.parametrize(
    ("word", "content", "named"),
    [
        ("none.py", None, "no such file in "),
        (
            "no_such_module",
            None,
            "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("bad.py", "import jax\nx = 1 / 0\n", "bad.py, line 2)"),
        ("bad.py", "def f(:\n", "cannot be imported: SyntaxError: "),
        ("bad.py", NET.format(name="resnet"), "--model resnet: is registered twice, in "),
        ("bad", "", "a file must end in .py"),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_one_line(
    word: str, content: str | None, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        write(word, content)
    assert run_train(f"--plugins {word}") == 2
    line = error_line(capsys)
    assert line.startswith(f"jaxdp.train: error: --plugins {word}: ")
    assert named in line
    assert not pathlib.Path("runs").exists()


def test_installed_distributions_are_asked() -> None:
    metadata = pathlib.Path("site/netpack-1.0.dist-info")
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: netpack\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[jaxdp.plugins]\nnets = netpack.nets\n")
    pathlib.Path("site/netpack").mkdir()
    write("site/netpack/nets.py", NET.format(name="packnet"))
    known = python("-c", "from jaxdp import models; print(*models.names())", path="site")
    assert "packnet" in known.stdout.split(), known.stderr
    write("site/netpack/nets.py", "import nothing_there\n")
    failed = python("-m", "jaxdp.train", "--steps", "1", path="site")
    assert failed.returncode == 2
    (line,) = failed.stderr.splitlines()
    assert line.startswith(
        "jaxdp.train: error: the plugin netpack.nets of netpack cannot be imported:"
        " ModuleNotFoundError: "
    )


def test_a_name_has_one_thing() -> None:
    registry: Registry[Callable[[], None]] = Registry("thing", "jaxdp.tasks")

    def add(place: str, name: str) -> None:
        code = f"@register('x')\ndef {name}(): pass"
        exec(code, {"register": registry.register, "__name__": place})

    add("here", "first")
    add("here", "first")  # a notebook's cell that is run again
    for place, name in (("here", "second"), ("there", "first")):
        with pytest.raises(
            ConfigError,
            match=f"thing=x: is registered twice, in here and {place}; rename one of them",
        ):
            add(place, name)


def test_a_plugin_is_imported_once_and_can_import_what_lies_beside_it() -> None:
    pathlib.Path("folder").mkdir()
    write("folder/beside_it.py", "count = []\n")
    write("folder/plugin.py", "import beside_it\nbeside_it.count.append(1)\n")
    load_plugins(["folder/plugin.py", "folder/../folder/plugin.py"])
    load_plugins(["folder/plugin.py"])
    assert sys.modules.pop("beside_it").count == [1]


def test_a_plugin_may_be_a_link_to_a_file_of_another_name() -> None:
    write("content", "count = 1\n")
    pathlib.Path("link.py").symlink_to("content")
    load_plugins(["link.py"])
    assert sys.modules.pop(str(pathlib.Path("content").resolve())).count == 1


def test_a_file_that_was_edited_replaces_what_it_has_registered() -> None:
    def registered() -> dict[str, str]:
        return {
            name: entry.__name__
            for name, entry in models.registry._models.entries().items()
            if name.startswith("edited")
        }

    path = pathlib.Path("net.py").resolve()
    write("net.py", NET.format(name="edited-a"))
    load_plugins(["net.py"])
    first = sys.modules[str(path)]
    load_plugins(["net.py"], reload=True)
    assert sys.modules[str(path)] is first  # it is the same file as before
    write("net.py", NET.format(name="edited-b").replace("Net(", "Other("))
    load_plugins(["net.py"])
    assert registered() == {"edited-a": "Net"}  # a run that is under way asks for it again
    load_plugins(["net.py"], reload=True)
    assert registered() == {"edited-b": "Other"}
    second = sys.modules[str(path)]
    for wrong, says in (
        (
            NET.format(name="edited-c") + "1 / 0\n",
            r"ZeroDivisionError: division by zero \(.*net\.py, line 8\)",
        ),
        (
            NET.format(name="edited-b") + NET.format(name="resnet"),
            "model=resnet: is registered twice, in ",
        ),
        ("def f(:\n", "SyntaxError: "),
    ):
        write("net.py", wrong)
        for _ in range(2):
            with pytest.raises(ConfigError, match=rf"^plugins=net\.py: cannot be imported: {says}"):
                load_plugins(["net.py"], reload=True)
            assert sys.modules[str(path)] is second
            assert registered() == {"edited-b": "Other"}
    write("net.py", NET.format(name="edited-b").replace("Net(", "Third("))
    load_plugins(["net.py"], reload=True)
    assert registered() == {"edited-b": "Third"}


def dataset_for(
    task: str, field: str, targets: dict[str, Any]
) -> Callable[[sources.Request], sources.Dataset]:
    split = sources.ArraySource(
        np.zeros((8, 4, 4, 1), np.uint8), np.zeros((8, 2) if targets else 8, np.int32), field
    )
    return lambda request: sources.Dataset(
        split,
        split,
        num_classes=2,
        image_shape=(4, 4, 1),
        mean=(0.0,),
        std=(1.0,),
        task=task,
        targets=targets,
    )


def test_tasks_and_datasets_find_each_other() -> None:
    class Like(tasks.Task):
        kind = "regression"

    class Own(tasks.Task):
        target = "points"

    tasks.register("like")(Like)
    tasks.register("own")(Own)
    tasks.register("plain")(type("Plain", (tasks.Task,), {}))
    tasks.register("old")(type("Old", (), {}))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="task=old: is no subclass of"):
        open_data(TrainConfig.of(model="cnn", task="old"))
    del tasks.task._tasks._entries["old"]
    sources.register("points")(dataset_for("own", "points", {"points": ((2,), np.float32)}))
    sources.register("labelled")(dataset_for("plain", "labels", {}))
    built_in = ("classification", "multilabel", "scalar_regression")
    assert tasks.candidates(None, ("classification",)) == (*built_in, "own", "plain")
    config, dataset = open_data(TrainConfig.of(model="unet", task="like"))
    assert (config.dataset, config.task, dataset.task, dataset.kind) == (
        "digits-denoise",
        "like",
        "like",
        "regression",
    )
    config, dataset = open_data(TrainConfig.of(model="cnn", dataset="points"))
    assert (config.task, dataset.kind, dataset.fields()["points"]) == (
        "own",
        "classification",
        ((2,), np.float32),
    )
    assert dataset.train[0]["points"].dtype == np.float32
    assert sources.open_dataset("points").task == "own"
    config, dataset = open_data(TrainConfig.of(model="cnn", dataset="labelled"))
    assert (config.task, dataset.kind, dataset.fields()["labels"]) == (
        "plain",
        "classification",
        ((), np.int32),
    )
    for settings, message in (
        (
            {"model": "cnn", "task": "like"},
            "task=like: cnn is for classification; choose another model",
        ),
        ({"model": "cnn", "task": "own"}, "dataset: has no default for own; give one"),
        (
            {"model": "cnn", "task": "own", "dataset": "digits"},
            "dataset=digits: is for classification, but model or task",
        ),
        (
            {"model": "unet", "dataset": "points"},
            "dataset=points: is for own, but model or task asks for segmentation or",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            open_data(TrainConfig.of(**settings))  # pyright: ignore[reportArgumentType]
        assert str(caught.value).startswith(message)


def test_runs_without_plugins_keep_their_folders() -> None:
    assert "plugins" not in defining(TrainConfig())
    assert run_hash(TrainConfig.of(plugins=("net.py",))) != run_hash(TrainConfig())
