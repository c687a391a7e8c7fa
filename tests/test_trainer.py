"""The library does what the command does, with names and with objects."""

import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.numpy
from flax import nnx
from runs import arrays as saved_arrays

import jaxdp
from jaxdp import train
from jaxdp.build.inputs import take_inputs
from jaxdp.callbacks import CallbackError, EarlyStopping
from jaxdp.inference import instances
from jaxdp.rundir.layout import RunDirectory
from jaxdp.runtime.signals import STOPPED_AT_START
from jaxdp.training import run as run_lib
from jaxdp.training.reader import MEASURED

SMALL: dict[str, Any] = {
    "model_kwargs": {"width": 4, "hidden": 16},
    "devices": 2,
    "global_batch_size": 160,
    "log_every": 4,
    "progress": False,
}
FLAGS = "--model cnn --model-kwargs width=4 hidden=16 --devices 2 --global-batch-size 160 --log-every 4".split()


def arrays(count: int = 240, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Images whose brightness tells the class."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, count)
    images = rng.integers(0, 60, (count, 8, 8, 1)) + 60 * labels[:, None, None, None]
    return images.astype(np.uint8), labels


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in MEASURED} for row in rows]


def cnn(**kwargs: Any) -> nnx.Module:
    settings = {
        "width": 4,
        "hidden": 16,
        "num_classes": 3,
        "in_channels": 1,
        "rngs": nnx.Rngs(0),
    } | kwargs
    return jaxdp.models.CNN(**settings)


class Mlp(nnx.Module):
    """A model that knows nothing of jaxdp: Flax's own dropout and batch norm."""

    def __init__(self, classes: int, rngs: nnx.Rngs) -> None:
        self.norm = nnx.BatchNorm(64, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.hidden, self.head = nnx.Linear(64, 32, rngs=rngs), nnx.Linear(32, classes, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.norm(images.reshape(len(images), -1))
        return self.head(self.dropout(nnx.relu(self.hidden(x))))


@pytest.mark.usefixtures("no_pictures")
def test_the_trainer_does_what_the_command_does() -> None:
    assert train.main([*FLAGS, "--epochs", "2", "--run-dir", "command"]) == 0
    result = jaxdp.Trainer("cnn", "digits", **SMALL).fit(epochs=2)
    directory = RunDirectory(pathlib.Path("command"))
    assert without_times(result.history) == without_times(directory.read("metrics.jsonl"))
    summary = directory.read("summary.json")
    assert summary is not None
    assert result.metrics == summary["metrics"]
    assert result.status == "done"
    assert not pathlib.Path("runs").exists()  # a trainer without run_dir writes nothing
    again = jaxdp.load("command")
    np.testing.assert_array_equal(
        again.state.params["head"]["kernel"], result.state.params["head"]["kernel"]
    )


def test_objects_train_are_saved_and_loaded() -> None:
    images, labels = arrays()
    data = jaxdp.data.from_arrays(images, labels, validation=0.25)
    model = cnn()
    before = jax.tree.map(np.asarray, nnx.state(model, nnx.Param))
    trainer = jaxdp.Trainer(
        model,
        data,
        jaxdp.tasks.Classification(3),
        optimizer=optax.adam(3e-3),
        strategy="pmap",
        devices=8,
        global_batch_size=32,
        callbacks=[EarlyStopping("loss", patience=3)],
        progress=False,
    )
    result = trainer.fit(epochs=12)
    assert result.metrics["validation"]["accuracy"] > 0.95
    assert result.metrics["validation"]["examples"] == 60
    assert "learning_rate" not in result.history[0]  # which only the optimizer knows
    after = jax.tree.map(np.asarray, nnx.state(model, nnx.Param))
    # The object that was given stays as it was.
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, before, after)))
    expected = result.predict(images[:5])
    assert expected.shape == (5, 3)
    np.testing.assert_allclose(expected.sum(-1), 1, atol=1e-5)
    assert (expected.argmax(-1) == labels[:5]).all()
    result.save("run")
    loaded = jaxdp.load("run")
    np.testing.assert_array_equal(loaded.predict(images[:5]), expected)
    assert loaded.metrics == result.metrics
    assert loaded.history == result.history
    assert loaded.evaluate(data)["accuracy"] == result.metrics["validation"]["accuracy"]
    normalized = (images[:5] - np.float32(result.description.mean)) / np.float32(
        result.description.std
    )
    np.testing.assert_allclose(
        jax.nn.softmax(loaded.model(jnp.asarray(normalized))), expected, atol=1e-5
    )
    with pytest.raises(jaxdp.ConfigError, match="run is not empty; give another folder"):
        result.save("run")


def test_two_fits_are_two_runs_and_compile_once(count_compilations: Callable[[], int]) -> None:
    trainer = jaxdp.Trainer("cnn", "digits", **SMALL)
    first = trainer.fit(steps=8)
    compiled = count_compilations()
    again = trainer.fit(steps=8)
    assert without_times(first.history) == without_times(again.history)
    other = trainer.fit(steps=8, learning_rate=0.01)
    assert other.history[-1]["loss"] != first.history[-1]["loss"]
    assert count_compilations() - compiled <= 4  # schedules and the optimizer's zeros; no step
    expected = jaxdp.Trainer("cnn", "digits", **SMALL, learning_rate=0.01).fit(steps=8)
    assert without_times(other.history) == without_times(expected.history)


def test_any_module_schedule_and_loss_function() -> None:
    images, labels = arrays()
    data = jaxdp.data.from_arrays(images, labels, validation=0.25)
    trainer = jaxdp.Trainer(
        Mlp(3, nnx.Rngs(1)),
        data,
        optax.softmax_cross_entropy_with_integer_labels,
        optimizer="adam",
        learning_rate=optax.constant_schedule(0.01),
        devices=2,
        global_batch_size=30,
        progress=False,
    )
    result = trainer.fit(epochs=10)
    assert result.metrics["validation"]["accuracy"] > 0.95
    assert next(row for row in result.history if row["split"] == "train")[
        "learning_rate"
    ] == pytest.approx(0.01)
    losses = [row["loss"] for row in trainer.fit(epochs=1).history]
    # Dropout draws from the seed and the step.
    assert losses == [row["loss"] for row in trainer.fit(epochs=1).history]
    result.save("run")
    with pytest.raises(
        jaxdp.ConfigError,
        match=r"was trained with a model object; give one of the same structure: load\(.*model=",
    ):
        jaxdp.load("run")
    loaded = jaxdp.load("run", model=Mlp(3, nnx.Rngs(5)))
    np.testing.assert_array_equal(loaded.predict(images[:3]), result.predict(images[:3]))


class Recorder:
    """A callback of one's own."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_start(self, run: Any, event: Any) -> None:
        self.calls.append(f"start {event.step} {run.folder}")

    def on_evaluate(self, run: Any, event: Any) -> None:
        self.calls.append(f"evaluate {event.step} {event.split}")
        if event.step == 16:
            run.stop("enough")

    def on_end(self, run: Any, event: Any) -> None:
        self.calls.append(f"end {event.step} {event.status} {event.reason}")

    def close(self) -> None:
        self.calls.append("close")


def test_a_callback_of_ones_own_sees_and_ends_the_run() -> None:
    recorder = Recorder()
    result = jaxdp.Trainer("cnn", "digits", **SMALL, callbacks=[recorder]).fit(epochs=5)
    assert recorder.calls == [
        "start 0 None",
        "evaluate 8 test",
        "evaluate 16 test",
        "end 16 done enough",
        "close",
    ]
    assert (result.status, result.summary["steps"]) == ("done", 16)
    assert result.summary["ended_early"]["reason"] == "enough"


class Strict:
    """Loads only what its `state_dict` returned."""

    def __init__(self) -> None:
        self.seen, self.loaded = 0, list[int]()

    def on_log(self, run: Any, event: Any) -> None:
        self.seen += 1

    def state_dict(self) -> dict[str, int]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]
        self.loaded.append(self.seen)


@pytest.mark.usefixtures("no_pictures")
def test_a_callback_loads_only_what_its_state_dict_returned() -> None:
    def fit(run_dir: str, **settings: Any) -> list[int]:
        callback = Strict()
        common = SMALL | {"log_every": 1, "eval_every": 99, "run_dir": run_dir, "optimizer": "sgd"}
        jaxdp.Trainer("cnn", "digits", callbacks=[callback], **common).fit(**settings)
        return callback.loaded

    assert fit("run", steps=2) == []
    assert fit("run", steps=3) == [3]  # rows of two steps and an evaluation


def test_early_stopping_begins_anew_with_each_run() -> None:
    stopping = EarlyStopping("accuracy", patience=2, min_delta=2.0)
    trainer = jaxdp.Trainer("cnn", "digits", **SMALL, validation=0.1, callbacks=[stopping])
    assert [trainer.fit(epochs=5).summary["steps"] for _ in range(2)] == [24, 24]


def test_an_exception_in_a_callback_names_it_and_leaves_the_process_usable() -> None:
    class Faulty:
        def on_log(self, run: Any, event: Any) -> None:
            raise KeyError("x")

    trainer = jaxdp.Trainer("cnn", "digits", **SMALL, callbacks=[Faulty()])
    with pytest.raises(CallbackError, match=r"callback Faulty failed in on_log: KeyError: 'x'"):
        trainer.fit(steps=8)
    assert jaxdp.Trainer("cnn", "digits", **SMALL).fit(steps=8).status == "done"


def test_an_interrupt_stops_at_the_next_step_and_returns_what_there_is() -> None:
    class Interrupt:
        def on_step_end(self, run: Any, event: Any) -> None:
            if event.step == 5:
                signal.raise_signal(signal.SIGINT)

    result = jaxdp.Trainer("cnn", "digits", **SMALL, callbacks=[Interrupt()]).fit(steps=20)
    assert (result.status, result.summary["steps"]) == ("stopped", 5)
    assert result.predict(np.zeros((2, 8, 8, 1), np.uint8)).shape == (2, 10)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_ends_the_count_of_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = np.zeros((8, 16, 16), np.uint8)
    objects[:, 2:6, 2:6], objects[:, 8:14, 8:14] = 1, 2
    data = jaxdp.data.from_arrays(100 * objects, objects, instances=True, validation=0.5)
    counted = list[int]()

    def count(*args: Any) -> Any:
        for number in range(3):
            counted.append(number)
            if number == 1:
                signal.raise_signal(signal.SIGINT)
            yield {}

    monkeypatch.setattr(instances, "count", count)
    tiny: dict[str, Any] = {"model_kwargs": {"base_channels": 2, "levels": 2}, "progress": False}
    result = jaxdp.Trainer("unet", data, devices=1, **tiny).fit(steps=1)
    assert (result.status, counted) == ("stopped", [0, 1])
    assert result.metrics.keys() == {"train"}


TERMINATED = """
import sys, time
import jaxdp

class Slow:
    def on_step_end(self, run, event):
        print(event.step, flush=True)
        time.sleep(float(sys.argv[2]))

settings = {"model_kwargs": {"width": 2, "hidden": 8}, "devices": 1, "global_batch_size": 160}
trainer = jaxdp.Trainer("cnn", "digits", run_dir=sys.argv[1], callbacks=[Slow()], progress=False, **settings)
try:
    trainer.fit(steps=12)
    print("other work")
finally:
    print("cleaned up")
"""


@pytest.mark.usefixtures("no_pictures")
def test_sigterm_ends_a_script_that_continues_bitwise() -> None:
    def start(run_dir: str, seconds: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", TERMINATED, run_dir, str(seconds)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    process = start("run", 0.5)
    assert process.stdout is not None
    for step in ("1", "2", "3"):
        assert process.stdout.readline().strip() == step
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate()
    assert (process.returncode, out.splitlines()[-1]) == (75, "cleaned up")
    assert "other work" not in out
    stopped = RunDirectory(pathlib.Path("run")).read("summary.json")
    assert stopped is not None
    assert (stopped["status"], 3 <= stopped["steps"] < 12) == ("stopped", True)
    assert err == f"ended by SIGTERM after step {stopped['steps']}, which run holds\n"
    for run_dir in ("run", "whole"):
        process = start(run_dir, 0)
        out, err = process.communicate()
        assert (process.returncode, err) == (0, "")
        assert out.split()[0] == str(1 if run_dir == "whole" else stopped["steps"] + 1)
    expected, continued = (saved_arrays(name, 12) for name in ("whole", "run"))
    assert continued.keys() == expected.keys()
    for name, array in continued.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


class Terminate:
    """Sends SIGTERM after the second step."""

    def on_step_end(self, run: Any, event: Any) -> None:
        if event.step == 2:
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.usefixtures("no_pictures")
def test_sigterm_is_left_to_a_handler_that_is_there_and_without_a_run_directory() -> None:
    received: list[int] = []

    def handle(number: int, frame: object) -> None:
        received.append(number)

    before = signal.signal(signal.SIGTERM, handle)
    try:
        trainer = jaxdp.Trainer("cnn", "digits", callbacks=[Terminate()], run_dir="run", **SMALL)
        assert trainer.fit(steps=4).summary["steps"] == 4
        assert received == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is handle
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with pytest.raises(SystemExit) as stop:
            trainer.fit(steps=4, run_dir="other")
        assert stop.value.code == 75
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
    script = TERMINATED.replace("run_dir=sys.argv[1]", "run_dir=None").replace(
        "time.sleep", "signal.raise_signal(15);"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import signal{script}", "run", "0"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "1\n")


def test_sigterm_before_the_first_step_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer, claim = jaxdp.Trainer("cnn", "digits", run_dir="run", **SMALL), run_lib.open_run

    def claimed(*args: Any, **kwargs: Any) -> RunDirectory:
        signal.raise_signal(signal.SIGTERM)
        return claim(*args, **kwargs)

    monkeypatch.setattr(run_lib, "open_run", claimed)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as stop:
            trainer.fit(steps=4)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stop.value.code == 75
    assert capsys.readouterr().err == f"{STOPPED_AT_START}\n"


def test_a_run_directory_is_resumed_and_early_stopping_remembers(no_pictures: None) -> None:
    def fit(run_dir: str, **settings: Any) -> jaxdp.Result:
        # No accuracy is that much better.
        callbacks = [EarlyStopping("accuracy", patience=2, min_delta=2.0)]
        trainer = jaxdp.Trainer(
            "cnn",
            "digits",
            **SMALL,
            validation=0.1,
            callbacks=callbacks,
            checkpoint_every=8,
            run_dir=run_dir,
        )
        return trainer.fit(**settings)

    whole = fit("whole", epochs=5)
    # The first value counts as an improvement, the next two do not.
    assert whole.summary["steps"] == 24
    fit("parts", epochs=5, steps=None)
    assert fit("parts", epochs=5).summary["steps"] == 24  # complete: nothing is trained
    assert jaxdp.load("parts").metrics == whole.metrics
    stopped = fit("other", epochs=2)
    assert stopped.summary["steps"] == 16
    assert fit("other", epochs=5).summary["steps"] == 24  # one of the two evaluations was before


def test_early_stopping_takes_no_test_data() -> None:
    trainer = jaxdp.Trainer("cnn", "digits", **SMALL, callbacks=["early_stopping"])
    with pytest.raises(
        jaxdp.ConfigError, match=r"early_stopping: stops by validation data.*validation=0\.1"
    ):
        trainer.fit(steps=8)


class NoCallback:
    pass


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            {"optimizer": optax.adam},
            "optimizer=adam: is a function; call it, e.g. optax.adamw(1e-3)",
        ),
        (
            {"optimizer": optax.adam(1e-3), "learning_rate": 0.1},
            "learning_rate=0.1: optimizer is an object, and settings such as",
        ),
        ({"learning_rat": 0.1}, "learning_rat=0.1: unknown setting; did you mean learning_rate?"),
        (
            {"lr": 0.1},
            "lr=0.1: unknown setting; did you mean learning_rate? known: accumulate_steps",
        ),
        ({"accum": 2}, "accum=2: unknown setting; did you mean accumulate_steps?"),
        ({"dataset": "mnist"}, "dataset=mnist: data is given, too"),
        (
            {"callbacks": [NoCallback()]},
            "callbacks=NoCallback: is no callback: it has none of the methods on_start",
        ),
        (
            {"callbacks": [NoCallback]},
            "callbacks=NoCallback: is a class; give an object: NoCallback(...)",
        ),
        (
            {"callbacks": ["early_stopping:patience=0"]},
            "callbacks=patience=0: must be a whole number of at least 1",
        ),
    ],
)
def test_what_cannot_work_is_one_line(arguments: dict[str, Any], line: str) -> None:
    with pytest.raises(jaxdp.ConfigError) as caught:
        jaxdp.Trainer(**{"model": "cnn", "data": "digits", **SMALL, **arguments}).fit(steps=1)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)
    assert str(caught.value).count(", ") < 20


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"model": 3}, "model=int: must be the name of a model, or an nnx.Module"),
        ({"model": Mlp}, "model=Mlp: is a class; give an object, Mlp(...)"),
        (
            {"dataset": np.zeros(3)},
            "data=ndarray: must be the name of a dataset, or a Dataset of jaxdp.data.load",
        ),
        ({"task": 3}, "task=int: must be the name of a task, a task, or a loss function"),
        (
            {"task": jaxdp.tasks.Classification},
            "task=Classification: is a class; give an object, Classification(...)",
        ),
    ],
)
def test_what_is_of_a_wrong_type_is_one_line(arguments: dict[str, Any], line: str) -> None:
    # Not by Trainer, whose annotations these tests check.
    with pytest.raises(jaxdp.ConfigError) as caught:
        take_inputs({"model": "cnn", **arguments})
    assert str(caught.value).startswith(line)


def misfit(model: Any, data: Any = None, task: Any = None, **settings: Any) -> jaxdp.Trainer:
    data = jaxdp.data.from_arrays(*arrays(), validation=0.25) if data is None else data
    return jaxdp.Trainer(model, data, task, global_batch_size=16, **settings)


def large_images() -> jaxdp.data.Dataset:
    images = np.zeros((8, 9, 9, 1), np.uint8)
    return jaxdp.data.from_arrays(images, [0, 1, 2, 0] * 2, validation=0.5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: misfit(cnn(num_classes=5)),
            "model=cnn: returns (1, 5) for an image; classification on arrays needs (1, 3)",
        ),
        (
            lambda: misfit(Mlp(3, nnx.Rngs(0)), large_images()),
            "model=Mlp: cannot be called with images of shape (1, 9, 9, 1): ",
        ),
        (
            lambda: misfit("cnn", task=jaxdp.tasks.Classification(5)),
            "task=classification: is for 5 classes, and arrays has 3",
        ),
        (
            lambda: misfit(Mlp(3, nnx.Rngs(0)), batch_norm="global"),
            "batch_norm=global: nnx.BatchNorm normalizes over what one device sees",
        ),
        (
            lambda: misfit(cnn()).fit(steps=1).evaluate(split="test"),
            "split=test: there is no split 'test' in arrays; there are: train, validation",
        ),
    ],
)
def test_a_model_that_does_not_fit_is_one_line(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(jaxdp.ConfigError, match=re.escape(message)):
        make()


DEVICES = """
import numpy as np
from flax import nnx
import jaxdp
images = np.random.default_rng(0).integers(0, 255, (64, 8, 8, 1), dtype=np.uint8)
data = jaxdp.data.from_arrays(images, np.arange(64) % 2, validation=0.25)
model = jaxdp.models.CNN(width=4, hidden=16, num_classes=2, in_channels=1, rngs=nnx.Rngs(0))  # starts JAX, with one device
first = jaxdp.Trainer(model, data, global_batch_size=16, progress=False)
one = first.fit(steps=3, batch_norm="global")
trainer = jaxdp.Trainer(model, data, devices=8, global_batch_size=16, batch_norm="global", progress=False)
eight = trainer.fit(steps=3)
assert eight.summary["devices"] == 8, eight.summary["devices"]
assert one.summary["devices"] == 1
np.testing.assert_allclose(one.history[-1]["loss"], eight.history[-1]["loss"], atol=1e-5)
one.predict(images[:1])
try:
    first.fit(steps=1)
except jaxdp.ConfigError as error:
    print(error)
"""


def test_devices_are_simulated_in_a_process_that_has_started_jax() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", DEVICES], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout
        == "the devices of this Trainer are gone, since JAX was started anew with more; create"
        " another Trainer\n"
    )


def test_the_package_is_imported_without_its_libraries() -> None:
    code = (
        "import sys, jaxdp\nassert not {'jax', 'flax', 'matplotlib', 'numpy', 'tyro'} &"
        " set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_segmentation_predicts_masks_of_any_size() -> None:
    data = jaxdp.data.load("cells")
    result = jaxdp.Trainer(
        "unet",
        "cells",
        model_kwargs={"base_channels": 2, "levels": 2},
        global_batch_size=32,
        devices=1,
        progress=False,
    ).fit(steps=1)
    images = np.stack([data.train[number]["images"] for number in range(3)])
    masks = result.predict(images)
    assert masks.shape == images.shape[:3]
    assert masks.dtype == np.uint8
    probabilities = result.predict(images[:1], probabilities=True)
    np.testing.assert_array_equal(probabilities.argmax(-1), masks[:1])
    sizes = [answer.shape for answer in result.predict([images[0], images[1][:40, :50]])]
    assert sizes == [images.shape[1:3], (40, 50)]


def test_a_figure_shows_in_a_notebook() -> None:
    result = jaxdp.Trainer("cnn", "digits", **SMALL).fit(steps=8)
    figure: Any = result.plot()
    assert figure._repr_png_().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_run_is_resumed_with_its_batch_norm_where_none_is_given() -> None:
    """The default of version 0.1 was `replica`."""
    jaxdp.Trainer("cnn", "digits", **SMALL, batch_norm="replica", run_dir="run").fit(steps=4)
    trainer = jaxdp.Trainer("cnn", "digits", **SMALL)
    assert trainer.fit(steps=6, run_dir="run").summary["batch_norm"] == "replica"
    assert (
        jaxdp.Trainer("cnn", "digits", **SMALL, run_dir="run").fit(steps=8).summary["batch_norm"]
        == "replica"
    )
    assert [row["step"] for row in jaxdp.load("run").history if row["split"] == "test"] == [4, 6, 8]
    with pytest.raises(jaxdp.ConfigError, match=r"batch_norm=group:32: the run in run has replica"):
        trainer.fit(steps=8, run_dir="run", batch_norm="group:32")
    assert trainer.fit(steps=1).summary["batch_norm"] == "group:32"


@pytest.mark.slow
def test_the_default_batch_norm_follows_the_batch_and_data_objects_keep_their_splits() -> None:
    trainer = jaxdp.Trainer("cnn", "digits", **SMALL)
    assert str(trainer.config.batch_norm) == "group:32"
    assert trainer.fit(steps=1, global_batch_size=48).summary["batch_norm"] == "group:24"
    assert trainer.fit(steps=1).summary["batch_norm"] == "group:32"
    data = jaxdp.data.load("digits", validation=0.25)
    trainer = jaxdp.Trainer("cnn", data, **SMALL)
    for refuse in (
        lambda: trainer.fit(validation="none"),
        lambda: jaxdp.Trainer("cnn", data, **SMALL, validation=0.1),
    ):
        with pytest.raises(
            jaxdp.ConfigError,
            match=r"validation=.*: data is an object, and settings such as this one are decided",
        ):
            refuse()
    assert set(trainer.fit(steps=1).metrics) >= {"validation", "test"}


def test_a_run_of_objects_is_compared_and_planned() -> None:
    dataset = jaxdp.data.from_arrays(*arrays(), validation=0.2)
    settings = {name: value for name, value in SMALL.items() if name != "model_kwargs"}
    layer = nnx.Linear(64, 3, rngs=nnx.Rngs(0))
    model = nnx.Sequential(lambda images: images.reshape(len(images), -1), layer)
    trainer = jaxdp.Trainer(model, dataset, optimizer=optax.adam(1e-3), **settings)
    differences = trainer.check(devices=(1, 2, 10_000), strategies=("pmap", "single"))
    assert [*differences] == [("single", 1), ("pmap", 1), ("pmap", 2)]
    assert 0 < differences["pmap", 2]["gradients"] < 1e-12  # float64
    plan = trainer.plan("1GiB")
    assert plan["compiles"]
    assert plan["largest_per_device"] > 80
    with pytest.raises(jaxdp.ConfigError, match="must be a size"):
        trainer.plan("much")


def test_a_model_of_ones_own_is_exported(tmp_path: pathlib.Path) -> None:
    dataset = jaxdp.data.from_arrays(*arrays(), validation=0.2)
    settings = {name: value for name, value in SMALL.items() if name != "model_kwargs"}
    result = jaxdp.Trainer(cnn(), dataset, steps=1, **settings).fit()
    result.export(tmp_path / "own.safetensors")
    weights = safetensors.numpy.load_file(tmp_path / "own.safetensors")
    expected = jax.tree.leaves(result.state.params) + jax.tree.leaves(result.state.batch_stats)
    assert sum(leaf.size for leaf in weights.values()) == sum(leaf.size for leaf in expected)
    result.export(tmp_path / "own.stablehlo")
    program = jax.export.deserialize(bytearray((tmp_path / "own.stablehlo").read_bytes()))
    images = arrays()[0][:4]
    logits = np.asarray(program.call(images), np.float64)
    found = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    if not np.allclose(logits.sum(-1), 1, atol=1e-5):  # the program returns logits
        np.testing.assert_allclose(found, result.predict(images), rtol=1e-4)
    with pytest.raises(jaxdp.ConfigError, match="must end in"):
        result.export(tmp_path / "own.onnx")
