"""Steps that are kept: traced once, the same bits, and never the wrong one."""

import copy
import dataclasses
import functools
import importlib.machinery
import os
import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import jaxdp
from jaxdp import models, tasks
from jaxdp.components import Objects
from jaxdp.config import TrainConfig
from jaxdp.data import augment
from jaxdp.models.layers import BatchNorm
from jaxdp.runtime import kept_step, private_folder, program_key
from jaxdp.step import state as step_state
from jaxdp.step import step
from jaxdp.training import setup as setup_lib

SETTINGS: dict[str, Any] = {"model": "tiny", "dataset": "digits", "global_batch_size": 32, "steps": 3, "augment": ("none",)}


class Tiny(nnx.Module):
    def __init__(self, num_classes: int, in_channels: int, dtype: Any, rngs: nnx.Rngs, width: int = 8) -> None:
        self.hidden = nnx.Linear(64 * in_channels, width, dtype=dtype, rngs=rngs)
        self.norm = BatchNorm(width, dtype=dtype)
        self.head = nnx.Linear(width, num_classes, dtype=dtype, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        return self.head(nnx.relu(self.norm(self.hidden(images.reshape(len(images), -1)))))


def create_tiny(num_classes: int, in_channels: int, dtype: Any, rngs: nnx.Rngs) -> Tiny:
    return Tiny(num_classes, in_channels, dtype, rngs)


@pytest.fixture
def keeps(registries: None, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Lets steps be kept in a folder of the test's own."""
    models.register("tiny")(create_tiny)
    monkeypatch.delenv("JAXDP_KEEP_STEPS", raising=False)
    monkeypatch.setattr(kept_step, "_folder", lambda: tmp_path / "steps")
    # This file may have been edited a moment ago.
    monkeypatch.setattr(program_key, "_process_started", lambda: 1e12)
    monkeypatch.setattr(jaxdp, "IMPORTED", 1e12)
    return tmp_path / "steps"


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Is told of each step that is traced."""
    found: list[str] = []

    def noting(name: str, before: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(before)  # what is of another module would be found out
        def note(*args: Any, **kwargs: Any) -> Any:
            found.append(name)
            return before(*args, **kwargs)

        return note

    for name in ("train_step", "eval_step"):
        monkeypatch.setattr(step, name, noting(name, getattr(step, name)))
    return found


def create(**settings: Any) -> setup_lib.Setup:
    return setup_lib.create_setup(TrainConfig.of(**SETTINGS | settings))


def run(setup: setup_lib.Setup) -> list[np.ndarray]:
    """Returns what three steps and an evaluation give."""
    state = setup.strategy.restore(setup.create_state(), setup.shapes)
    batches, found = setup.train_batches(0), []
    for _ in setup.intervals.calls(0):
        before = state
        state, sums = setup.train_step(state, next(batches), setup.constants)
        found.append(sums)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before.params))  # its memory was used again
    return [np.asarray(leaf) for leaf in jax.tree.leaves((found, setup.strategy.gather(state), setup.evaluate(state)))]


def equal(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "single"},
        {"strategy": "pmap", "devices": 1},
        {"strategy": "pmap", "devices": 4, "ema_decay": 0.9, "precision": "float16"},
        {"strategy": "shard_map", "devices": 4, "steps_per_execution": 2},
        {"strategy": "sharded", "devices": 4, "mesh": "data=2,model=2", "shard_params": True, "optimizer": "adam"},
    ],
    ids=str,
)
def test_the_next_run_traces_nothing_and_gives_the_same_bits(
    keeps: pathlib.Path, traced: list[str], monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    written = run(create(**settings))
    times = len(traced)
    assert times >= 2
    read = run(create(**settings))
    assert len(traced) == times
    assert len(os.listdir(keeps)) == (3 if "steps_per_execution" in settings else 2)
    monkeypatch.setattr(kept_step, "_folder", lambda: None)
    assert equal(read, run(create(**settings)))
    assert len(traced) > times
    assert equal(written, read)


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "single", "sampler": "balanced"},
        {"strategy": "pmap", "devices": 4, "augment": ("mixup:0.2",)},
        {"strategy": "shard_map", "devices": 4, "data_placement": "host"},
        {"strategy": "sharded", "devices": 4, "mesh": "data=2,model=2", "shard_params": True, "optimizer": "adam"},
    ],
    ids=str,
)
def test_a_step_that_is_known_is_loaded_before_there_are_weights(
    keeps: pathlib.Path, traced: list[str], settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    create(**settings).load_step()
    assert not traced  # nothing is known yet, and nothing is done
    with jax.log_compiles():
        expected = run(create(**settings))
        times = len(traced)
        caplog.clear()
        setup = create(**settings)
        setup.load_step()
        assert equal(run(setup), expected)
    assert len(traced) == times
    # That of the evaluation: the other one was compiled in a thread, which says nothing.
    assert sum("XLA compilation of jit(step)" in record.getMessage() for record in caplog.records) == 1


def test_data_of_the_step_are_not_in_its_key(keeps: pathlib.Path, traced: list[str]) -> None:
    first = run(create())
    times = len(traced)
    other = run(create(learning_rate=0.01, seed=3, schedule="cosine", log_every=1, warmup_fraction=0.2))
    assert len(traced) == times
    assert not equal(first, other)


@pytest.mark.parametrize("name", sorted(TrainConfig.places()))
def test_every_setting_changes_the_key_unless_it_is_data(name: str) -> None:
    config = TrainConfig()
    group, field = TrainConfig.places()[name]
    if group is None:
        changed = replaced(config, field.name)
    else:
        changed = replaced(config, group, replaced(getattr(config, group), field.name))
    assert (described(changed) == described(config)) == (name in program_key.NOT_IN_PROGRAM)


def replaced(value: Any, name: str, by: Any = "another value") -> Any:
    """Returns a copy with another value in a field, whatever the type of that is."""
    other = copy.copy(value)
    object.__setattr__(other, name, by)
    return other


def described(*values: Any) -> list[str]:
    words: list[str] = []
    program_key._describe(values, words, {})
    return words


def test_settings_that_are_left_out_do_not_change_the_program(keeps: pathlib.Path) -> None:
    others = {
        "learning_rate": 0.3, "lr_scaling": "sqrt", "schedule": "cosine", "warmup_fraction": 0.1, "epochs": 7, "seed": 5,
        "log_every": 3, "eval_every": 2, "checkpoint_every": 9, "keep": 1, "run_dir": "elsewhere", "resume": "never",
        "max_divergences": 2,
        "profile": "1:2", "step_timeout": 5.0, "callbacks": ("learning_rate_monitor",), "data_workers": 3,
        "measure_devices": True,
    }  # fmt: skip
    assert others.keys() | {"steps", "early_stop"} == program_key.NOT_IN_PROGRAM  # steps exclude epochs
    early = {"early_stop": 2, "validation": "0.5"}  # which need validation data; so has the other
    assert lowered(**others, **early, steps=None) == lowered(validation="0.5")


def lowered(**settings: Any) -> str:
    setup = create(**settings)
    state = setup.strategy.restore(setup.create_state(), setup.shapes)
    return setup.strategy.train_step.lower(state, next(setup.train_batches(0)), setup.constants).as_text()


def recipe() -> step.Recipe:
    return create().recipe


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(step.Recipe)])
def test_every_part_of_a_recipe_changes_the_key(keeps: pathlib.Path, name: str) -> None:
    one = recipe()
    assert described(one) == described(recipe())
    assert described(replaced(one, name)) != described(one)


def test_values_deep_in_a_recipe_change_the_key(keeps: pathlib.Path) -> None:
    one = recipe()
    moved = dataclasses.replace(one.preprocess, mean=(np.nextafter(one.preprocess.mean[0], 9),))
    weighted = tasks.create("classification", num_classes=10, class_names=(), class_weights=(1.0,) * 9 + (2.0,))
    even = tasks.create("classification", num_classes=10, class_names=(), class_weights=(1.0,) * 10)
    frozen = {frozenset({"head/kernel"}), frozenset({"head/bias"})}
    assert described(dataclasses.replace(one, preprocess=moved)) != described(one)
    assert described(weighted) != described(even)
    assert len({str(described(dataclasses.replace(one, frozen=names))) for names in frozen}) == 2


def scaled(factor: Any) -> Callable[[float], Any]:
    return lambda value: factor * value


def test_functions_are_told_apart_by_what_they_hold() -> None:
    assert described(scaled(2.0)) == described(scaled(2.0)) != described(scaled(3.0))
    assert described(scaled(np.arange(3))) != described(scaled(np.arange(3) + 1))
    typed = types.FunctionType(scaled.__code__, {"__name__": "a_cell"})
    with pytest.raises(program_key.Undecided):
        described(typed)
    with pytest.raises(program_key.Undecided):
        described(object())
    with pytest.raises(program_key.Undecided):
        described(jax.devices()[0].client)


def test_arrays_are_told_apart_by_shape_format_and_place() -> None:
    places = [jax.sharding.SingleDeviceSharding(device) for device in jax.devices()[:2]]
    arrays = [
        jax.device_put(np.zeros(3, np.float32), places[0]),
        jax.device_put(np.zeros(3, np.float32), places[1]),
        jax.device_put(np.zeros(3, np.int32), places[0]),
        jax.device_put(np.zeros(4, np.float32), places[0]),
        jax.device_put(jax.numpy.asarray(0.0), places[0]),
    ]
    assert len({str(described(array)) for array in arrays}) == len(arrays)


@pytest.fixture
def package(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Stands for the source of jaxdp."""
    monkeypatch.setattr(program_key, "_PACKAGE", tmp_path)
    monkeypatch.setattr(program_key, "_process_started", lambda: 1e12)
    monkeypatch.setattr(jaxdp, "IMPORTED", 1e12)
    (tmp_path / "module.py").write_text("x = 1\n")
    return tmp_path


def test_other_code_is_another_key(package: pathlib.Path) -> None:
    before = program_key.program_key()
    assert program_key.program_key() == before
    (package / "module.py").write_text("x = 2\n")
    assert program_key.program_key() != before
    (package / "module.py").write_text("x = 1\n")
    assert program_key.program_key() == before


def test_code_that_changed_after_it_was_imported_has_no_key(package: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxdp, "IMPORTED", (package / "module.py").stat().st_ctime - 60)
    with pytest.raises(program_key.Undecided):
        program_key.program_key()


def test_modules_that_are_not_installed_count(package: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = program_key.program_key()
    neighbour = types.ModuleType("neighbour")
    neighbour.__file__ = str(package / "neighbour.txt")
    (package / "neighbour.txt").write_text("of a plugin")
    monkeypatch.setitem(sys.modules, "neighbour", neighbour)
    with_neighbour = program_key.program_key()
    (package / "neighbour.txt").write_text("of another")
    assert len({before, with_neighbour, program_key.program_key()}) == 3


def test_a_command_has_the_key_of_a_script(package: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `--measure-devices` has left is found by `python -m jaxdp.train`."""
    before = program_key.program_key()
    command = types.ModuleType("__main__")
    command.__file__ = str(package / "module.py")
    command.__spec__ = importlib.machinery.ModuleSpec("jaxdp.train", None)
    monkeypatch.setitem(sys.modules, "jaxdp_main", command)
    assert program_key.program_key() == before
    command.__spec__ = importlib.machinery.ModuleSpec("other.train", None)
    assert program_key.program_key() != before


def test_what_a_script_has_set_counts(package: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {program_key.program_key()}
    for place, name in ((step, "apply_gradients"), (augment.Preprocess, "__call__"), (optax.tree, "norm")):
        with monkeypatch.context() as patched:
            patched.setattr(place, name, scaled)
            with pytest.raises(program_key.Undecided):
                program_key.program_key()
    monkeypatch.setattr(step_state, "_GROWTH_INTERVAL", 3)
    keys.add(program_key.program_key())
    script = types.ModuleType("script")
    script.__file__ = str(package / "module.py")
    monkeypatch.setitem(sys.modules, "script", script)
    keys.add(program_key.program_key())
    monkeypatch.setattr(program_key.registry, "_registering", {"script"})
    for width in (1, 2):
        monkeypatch.setattr(script, "WIDTH", {"first": width}, raising=False)
        keys.add(program_key.program_key())
    assert len(keys) == 5


def test_installed_plugins_count_with_all_that_is_installed(package: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = types.ModuleType("plugin")
    plugin.__file__ = str(package / "site-packages" / "plugin.txt")
    (package / "site-packages").mkdir()
    (package / "site-packages" / "plugin.txt").write_text("one")
    monkeypatch.setitem(sys.modules, "plugin", plugin)
    monkeypatch.setattr(program_key, "_INSTALLED", (*program_key._INSTALLED, str(package / "site-packages")))
    monkeypatch.setattr(program_key.registry, "_registering", {"jaxdp.models.cnn"})
    before = program_key.program_key()
    (package / "site-packages" / "plugin.txt").write_text("longer")
    assert program_key.program_key() == before  # it has registered nothing
    monkeypatch.setattr(program_key.registry, "_registering", {"plugin"})
    registered = program_key.program_key()
    (package / "site-packages" / "plugin.txt").write_text("longer still")
    assert len({before, registered, program_key.program_key()}) == 3
    monkeypatch.setattr(program_key.registry, "_registering", {"typed_into_a_notebook"})
    with pytest.raises(program_key.Undecided):
        program_key.program_key()


def test_configuration_and_environment_count(package: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {program_key.program_key()}
    with jax.default_matmul_precision("float32"):
        keys.add(program_key.program_key())
    with jax.enable_x64(True):
        keys.add(program_key.program_key())
    with jax.numpy_rank_promotion("warn"):
        keys.add(program_key.program_key())
    for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_ANYTHING"):
        monkeypatch.setenv(name, "another value")
        keys.add(program_key.program_key())
    monkeypatch.setattr(optax, "__version__", "0")
    keys.add(program_key.program_key())
    assert len(keys) == 8


def test_a_damaged_step_is_traced_again_and_replaced(keeps: pathlib.Path, traced: list[str]) -> None:
    first = run(create())
    for file in keeps.iterdir():
        file.write_bytes(file.read_bytes()[:100])
    times = len(traced)
    assert equal(run(create()), first)
    assert len(traced) == 2 * times
    for file in keeps.iterdir():  # sound for the folder, and nonsense for JAX
        private_folder.PrivateFolder(keeps, 10**9).write(file.name.removesuffix(".kept"), b'["loss"]\nnonsense')
    assert equal(run(create()), first)
    assert len(traced) == 3 * times
    assert equal(run(create()), first)
    assert len(traced) == 3 * times


def test_what_cannot_be_kept_runs_as_before(keeps: pathlib.Path, traced: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(create())
    for file in keeps.iterdir():
        file.unlink()

    def fail(*_: object, **__: object) -> None:
        raise ValueError("cannot be exported")

    monkeypatch.setattr(jax.export, "export", fail)
    assert equal(run(create()), first)
    assert not os.listdir(keeps)


def test_objects_and_strategies_of_several_programs_are_not_kept(keeps: pathlib.Path) -> None:
    setup = create()
    assert isinstance(setup.train_step, kept_step.KeptStep)
    for objects in (Objects(model=setup.create_model()), Objects(task=setup.recipe.task), Objects(optimizer=optax.sgd(0.1))):
        given = dataclasses.replace(setup, objects=objects, steps={})
        assert given.train_step is given.strategy.train_step
    central = create(strategy="central", devices=2)
    assert central.train_step == central.strategy.train_step


def test_runs_that_share_a_strategy_share_its_steps(keeps: pathlib.Path) -> None:
    """As of `Trainer.fit`, twice: each has other settings than the trainer's own, whose step nobody asks for."""
    setup = create()
    one, other = (setup.reconfigured(setup.config.replace(learning_rate=rate)) for rate in (0.01, 0.02))
    assert one is not None
    assert other is not None
    assert one.train_step is other.train_step is one.with_learning_rates_times(0.5).train_step


def test_where_steps_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    values = dict(jax.config.values) | {"jax_compilation_cache_dir": str(tmp_path), "jax_enable_compilation_cache": True}

    def place(**changed: Any) -> pathlib.Path | None:
        monkeypatch.setattr(kept_step.jax, "config", types.SimpleNamespace(values=values | changed))
        return kept_step._folder()

    monkeypatch.delenv("JAXDP_KEEP_STEPS", raising=False)
    assert place() == tmp_path / "steps"
    assert place(jax_compilation_cache_dir=None) is None
    assert place(jax_compilation_cache_dir="gs://bucket/cache") is None
    assert place(jax_enable_compilation_cache=False) is None
    assert place(jax_debug_nans=True) is None
    monkeypatch.setenv("JAXDP_KEEP_STEPS", "false")
    assert place() is None
