"""A run says when the code that made it has changed, and that it was complete before it was asked
for.
"""

import importlib
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from runs import answers, error_line, run_train

import jaxdp
from jaxdp import evaluate
from jaxdp.plugins import loading as plugins
from jaxdp.rundir import source_files
from jaxdp.rundir.layout import RunDirectory
from jaxdp.text import console

pytestmark = pytest.mark.usefixtures("no_pictures", "registries")

NET = """
from flax import nnx
from jaxdp import models
from neighbour import WIDTH

@models.register("mynet")
class MyNet(models.CNN):
    def __init__(self, *, num_classes, in_channels, rngs, dtype=None):
        super().__init__(num_classes=num_classes, in_channels=in_channels, rngs=rngs, width=WIDTH, hidden=8)
"""
OBJECTS = """
import jax.numpy as jnp
import optax

class Watch:
    def on_end(self, run, event):
        pass

def loss(outputs, labels):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, labels)
"""
SCRIPT = """
import jaxdp
small = dict(model_kwargs={"width": 4, "hidden": 8}, strategy="single", global_batch_size=160, progress=False)
print(jaxdp.Trainer("cnn", "digits", steps=2, run_dir="run", **small).fit().status)
"""
FLAGS = (
    "--plugins mynet.py --model mynet --dataset digits --strategy single --global-batch-size 160"
    " --run-dir run"
)
SMALL: dict[str, Any] = {
    "strategy": "single",
    "global_batch_size": 160,
    "progress": False,
    "run_dir": "run",
}
CNN: dict[str, Any] = {"model": "cnn", "data": "digits", "model_kwargs": {"width": 4, "hidden": 8}}
RUN = RunDirectory(pathlib.Path("run"))
CHANGED = "mynet.py has changed since the run began"


@pytest.fixture(autouse=True)
def _code(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pathlib.Path("mynet.py").write_text(NET)
    pathlib.Path("neighbour.py").write_text("WIDTH = 4\n")
    pathlib.Path("own.py").write_text(OBJECTS)
    monkeypatch.syspath_prepend(os.getcwd())
    yield
    for name in ("neighbour", "own"):
        sys.modules.pop(name, None)


def edit(name: str) -> None:
    with open(name, "a") as file:
        file.write("# edited\n")


def files() -> dict[str, bytes]:
    return {
        str(path): path.read_bytes() for path in pathlib.Path("run").rglob("*") if path.is_file()
    }


def recorded() -> dict[str, str]:
    return json.loads(RUN.file("sources.json").read_text())


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]


def test_a_file_has_the_name_that_python_imports_it_by(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "nets/__init__.py",
        "nets/deep.py",
        "site-packages/installed.py",
        "other/mynet.py",
    ):
        pathlib.Path(name).parent.mkdir(exist_ok=True)
        pathlib.Path(name).write_text("")
    monkeypatch.syspath_prepend("site-packages")
    before = set(sys.modules)
    try:
        for name in ("nets.deep", "installed", "neighbour"):
            importlib.import_module(name)
        plugins.load_plugins(["mynet.py", "other/mynet.py"])
        found = source_files.digests()
        second = str(pathlib.Path("other/mynet.py").resolve())
        assert {"mynet.py", "neighbour.py", "nets/__init__.py", "nets/deep.py", second} <= set(
            found
        )
        assert not [
            name for name in found if "installed" in name or "jaxdp" in name or "numpy" in name
        ]
        pathlib.Path("neighbour.py").unlink()
        assert "neighbour.py" not in source_files.digests()
    finally:
        for name in set(sys.modules) - before:
            del sys.modules[name]


def test_a_run_goes_on_under_other_code_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_train(f"{FLAGS} --steps 2") == 0
    before = recorded()
    assert {"mynet.py", "neighbour.py"} <= set(before)
    assert run_train(f"{FLAGS} --steps 2") == 0
    said = capsys.readouterr().err
    assert "warning" not in said
    assert (
        "run is complete (epochs: 0.25, steps: 2), so nothing was trained; train anew with another"
        " --run-dir, or extend " in said
    )

    edit("mynet.py")
    for _ in range(2):  # the weights are still those of the old code
        assert run_train(f"{FLAGS} --steps 2") == 0
        (line,) = lines(capsys)
        assert line.startswith(
            f"warning: run is complete (epochs: 0.25, steps: 2), so nothing was trained; {CHANGED};"
            " train anew "
        )
    assert recorded() == before
    assert run_train(f"{FLAGS} --steps 3") == 0
    assert lines(capsys) == [f"warning: run: {CHANGED}; its weights go on under the new code"]
    event = next(row for row in RUN.read("history.jsonl") if row["event"] == "resumed")
    assert event["changed"]["mynet.py"] == [before["mynet.py"][:16], recorded()["mynet.py"][:16]]
    assert recorded()["mynet.py"] != before["mynet.py"]
    assert run_train(f"{FLAGS} --steps 4") == 0
    assert lines(capsys) == []
    for name in ("mynet.py", "neighbour.py"):
        edit(name)
    assert run_train(f"{FLAGS} --steps 5") == 0
    assert lines(capsys) == [
        "warning: run: mynet.py, neighbour.py have changed since the run began; its weights go on"
        " under the new code"
    ]


def test_reading_a_run_under_other_code_says_so_and_writes_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_train(f"{FLAGS} --steps 2") == 0
    capsys.readouterr()
    readers: list[Callable[[], object]] = [
        lambda: evaluate.main(["run", "--plugins", "mynet.py"]),
        lambda: jaxdp.load("run", plugins=["mynet.py"]),
        lambda: answers("run", [], plugins=["mynet.py"]),
        lambda: run_train(f"{FLAGS} --steps 1 --run-dir second --init-from run"),
    ]  # fmt: skip
    for command in readers:
        command()
    assert lines(capsys) == []
    edit("mynet.py")
    before = files()
    for command in readers[:3]:
        console._warned.clear()
        command()
        assert lines(capsys) == [
            f"warning: run: {CHANGED}; its weights are used under the new code"
        ]
    assert files() == before


def test_fit_says_that_a_run_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = jaxdp.Trainer(**CNN, **SMALL)
    trainer.fit(epochs=1)
    again = trainer.fit(epochs=1)
    assert again.summary["steps"] == 8
    assert capsys.readouterr().err == ""
    for _ in range(2):
        assert trainer.fit(steps=1).summary["steps"] == 8
        (line,) = lines(capsys)
        assert (
            line == "warning: run is complete (epochs: 1, steps: 8), so nothing was trained; other"
            " settings: epochs none instead of 1, steps 1 instead of none; train anew with"
            " another run_dir, or extend it with larger epochs or steps"
        )
    jaxdp.Trainer(**CNN, **SMALL | {"progress": True}).fit(epochs=1)
    line = error_line(capsys)
    assert line.startswith(
        "run is complete (epochs: 1, steps: 8), so nothing was trained; train anew with another"
        " run_dir, or "
    )


def test_a_callback_may_end_a_run_as_complete(capsys: pytest.CaptureFixture[str]) -> None:
    class Stop:
        def on_step_end(self, run: Any, event: Any) -> None:
            run.stop("complete")

    trainer = jaxdp.Trainer(**CNN, **SMALL | {"run_dir": None}, callbacks=[Stop()])
    assert trainer.fit(steps=2).summary["steps"] == 1
    assert capsys.readouterr().err == ""


def test_code_of_objects_counts(capsys: pytest.CaptureFixture[str]) -> None:
    own = importlib.import_module("own")
    trainer = jaxdp.Trainer(**CNN, task=own.loss, callbacks=[own.Watch()], **SMALL)
    trainer.fit(steps=2)
    edit("own.py")
    for steps, says in (
        (2, "run is complete (epochs: 0.25, steps: 2), so nothing was trained; own.py has"),
        (3, "run: own.py has"),
    ):
        assert trainer.fit(steps=steps).summary["steps"] == steps
        (line,) = lines(capsys)
        assert line.startswith(f"warning: {says} changed since the run began; ")


def test_the_script_counts() -> None:
    pathlib.Path("script.py").write_text(SCRIPT)

    def run() -> str:
        done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True)
        assert done.stdout == "done\n", done.stderr
        return done.stderr

    assert "changed" not in run()
    assert list(recorded()) == ["script.py"]
    edit("script.py")
    assert "; script.py has changed since the run began; train anew with another run_dir" in run()


def test_a_trainer_keeps_the_model_that_it_has() -> None:
    settings = SMALL | {"run_dir": None, "plugins": ["mynet.py"]}
    trainer = jaxdp.Trainer("mynet", "digits", **settings)
    before = trainer.fit(steps=1)
    pathlib.Path("mynet.py").write_text(NET.replace("hidden=8", "hidden=9"))
    other = jaxdp.Trainer("mynet", "digits", **settings).fit(steps=1)
    again = trainer.fit(steps=1)
    sizes = [each.summary["parameters"] for each in (before, again, other)]
    assert sizes[0] == sizes[1] < sizes[2]
    assert before.summary["metrics"] == again.summary["metrics"]


def test_damaged_digests_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_train(f"{FLAGS} --steps 1") == 0
    edit("mynet.py")
    capsys.readouterr()
    for content in (b"[1, 2]", b'{"mynet.py": 3}', b'{"\\u001b[31m": "\\u001b[31m"}'):
        RUN.file("sources.json").write_bytes(content)
        console._warned.clear()
        assert RUN.changed_sources({"mynet.py": "0" * 64}) == {}
        (line,) = lines(capsys)
        assert line.startswith("warning: run_dir=run: sources.json cannot be read (")
        assert "\x1b" not in line
    RUN.file("sources.json").unlink()
    os.mkfifo(RUN.file("sources.json"))
    for command in (
        lambda: evaluate.main(["run", "--plugins", "mynet.py"]),
        lambda: run_train(f"{FLAGS} --steps 2"),
    ):
        console._warned.clear()
        assert command() == 0
        (line,) = lines(capsys)
        assert line.startswith(
            "warning: --run-dir run: sources.json cannot be read (it is no regular file); it has"
            " digests of "
        )
    assert "mynet.py" in recorded()


def test_a_run_without_digests_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_train(f"{FLAGS} --steps 1") == 0
    RUN.file("sources.json").unlink()
    edit("mynet.py")
    assert evaluate.main(["run", "--plugins", "mynet.py"]) == 0
    assert run_train(f"{FLAGS} --steps 1") == 0
    assert not RUN.file("sources.json").exists()
    assert run_train(f"{FLAGS} --steps 2") == 0
    assert lines(capsys) == []
    assert "mynet.py" in recorded()
