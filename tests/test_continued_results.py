"""What `fit` does with a result: goes on with it, in memory as in a folder, or starts from it."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import sklearn.metrics
from flax import nnx

import jaxdp
from jaxdp.checkpoint import integrity
from jaxdp.data import from_arrays

LABELS = np.arange(32) % 4
RANDOM = np.random.default_rng(0).integers(0, 60, (32, 8, 8), dtype=np.uint8)
IMAGES = (RANDOM + 60 * LABELS[:, None, None]).astype(np.uint8)
DATA = from_arrays(IMAGES, LABELS, validation=0.25)
TINY: dict[str, Any] = {
    "model_kwargs": {"width": 4, "hidden": 8},
    "devices": 1,
    "global_batch_size": 8,
    "schedule": "constant",
    "optimizer": "nesterov",
    "learning_rate": 0.05,
}


STRATEGIES: list[dict[str, Any]] = [
    {"strategy": "pmap"},
    {"strategy": "shard_map"},
    {"strategy": "central"},
    {"strategy": "single", "devices": 1},
    {"strategy": "sharded"},
    {"strategy": "sharded", "shard_params": True},
]


def trainer(**settings: Any) -> jaxdp.Trainer:
    return jaxdp.Trainer("cnn", DATA, **TINY | settings)


def assert_same(one: jaxdp.Result, other: jaxdp.Result) -> None:
    jax.tree.map(np.testing.assert_array_equal, one.state.params, other.state.params)
    assert one.metrics == other.metrics


@pytest.fixture(scope="module")
def whole() -> jaxdp.Result:
    """Four epochs of three steps at once."""
    return trainer(progress=False).fit(epochs=4)


@pytest.fixture(scope="module")
def half() -> jaxdp.Result:
    return trainer(progress=False).fit(epochs=2)


@pytest.mark.parametrize("strategy", ["pmap", "sharded"])
def test_a_result_in_memory_goes_on_to_the_same_bits(
    whole: jaxdp.Result, half: jaxdp.Result, strategy: str
) -> None:
    before = jax.tree.map(np.array, half.state)
    if strategy == "pmap":
        further = trainer(progress=False).fit(resume=half, epochs=4)
        assert_same(further, whole)
        momentum = (further.state.opt_state, whole.state.opt_state)
        jax.tree.map(np.testing.assert_array_equal, *momentum)
    else:
        further = trainer(progress=False, strategy=strategy).fit(resume=half, epochs=4)
    assert (further.step, len(further.history)) == (12, len(half.history) + 4)
    jax.tree.map(np.testing.assert_array_equal, before, half.state)  # it can go on again


def test_a_result_goes_on_in_its_folder(
    tmp_path: pathlib.Path, whole: jaxdp.Result, half: jaxdp.Result
) -> None:
    folder = half.save(tmp_path / "half")
    loaded = jaxdp.load(folder)
    continued = loaded.trainer(data=DATA, progress=False).fit(epochs=3)
    assert (continued.step, continued.run_dir) == (9, folder)
    for given in (continued, folder, str(folder)):
        assert_same(trainer(progress=False).fit(resume=given, epochs=4), whole)


def test_a_folder_named_like_a_choice_is_no_run_to_resume(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("never").mkdir()
    result = trainer(progress=False).fit(resume="never", epochs=1)
    assert (result.step, result.run_dir) == (3, None)


def test_only_the_second_fit_says_that_it_starts_anew(
    half: jaxdp.Result, capsys: pytest.CaptureFixture[str]
) -> None:
    own = trainer()
    own.fit(epochs=1)
    first = capsys.readouterr().err
    assert "anew" not in first
    own.fit(epochs=1)
    assert capsys.readouterr().err.splitlines()[0].startswith("trains anew from the initial")
    own.fit(resume=half, epochs=4)
    assert "continuing after step 6" in capsys.readouterr().err.splitlines()[0]


def test_a_result_gives_its_weights(half: jaxdp.Result, capsys: pytest.CaptureFixture[str]) -> None:
    started = trainer(init_from=half)
    head = started.setup.create_state().params["head"]["kernel"]
    np.testing.assert_array_equal(head, half.state.params["head"]["kernel"])
    assert started.fit(epochs=1).step == 3
    assert "(19 arrays) from Result(cnn on arrays" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 2}, "resume=step 6: has done 6 steps of 6; give more epochs or steps"),
        ({"epochs": 4, "optimizer": "adam"}, "has another model or optimizer; init_from starts"),
        ({"epochs": 4, "run_dir": "other"}, "run_dir=other: the result to resume has no folder"),
    ],
)
def test_what_cannot_go_on_is_one_line(
    half: jaxdp.Result, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(jaxdp.ConfigError, match=message):
        trainer(progress=False, **settings).fit(resume=half)


class Own(nnx.Module):
    """A model with a constant, a cache of whole numbers and Flax's own batch norm."""

    def __init__(self, rngs: nnx.Rngs, factor: float = 1.0) -> None:
        self.hidden = nnx.Linear(64, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.head = nnx.Linear(8, 4, rngs=rngs)
        self.factors = nnx.Variable(jnp.arange(4.0) + factor)
        self.calls = nnx.Cache(jnp.zeros(2, jnp.int32))

    def __call__(self, images: jax.Array) -> jax.Array:
        self.calls[...] = self.calls[...] + 1
        hidden = self.norm(self.hidden(images.reshape(len(images), -1)))
        return self.head(nnx.relu(hidden)) * self.factors[...]


@pytest.mark.parametrize("strategy", ["pmap", "shard_map", "sharded"])
def test_variables_of_other_kinds_are_carried_and_not_trained(
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    strategy: str,
) -> None:
    settings: dict[str, Any] = {**TINY, "strategy": strategy, "devices": 2, "progress": False}
    settings |= {"ema_decay": 0.9, "weight_decay": 0.1}
    del settings["model_kwargs"]
    result = jaxdp.Trainer(Own(nnx.Rngs(0)), DATA, **settings).fit(epochs=1)
    assert (
        "nnx.BatchNorm in a model: each sees the examples of one device" in capsys.readouterr().err
    )
    others: Any = result.state.others
    np.testing.assert_array_equal(others["factors"], [1, 2, 3, 4])
    np.testing.assert_array_equal(others["calls"], [0, 0])
    loaded = jaxdp.load(result.save(tmp_path / "run"), model=Own(nnx.Rngs(1), factor=7.0))
    np.testing.assert_array_equal(loaded.predict(IMAGES), result.predict(IMAGES))


class Pruned(Exception):
    """Stands for `optuna.TrialPruned`."""

    __module__ = "optuna.exceptions"


@pytest.mark.parametrize("error", [Pruned, ValueError])
def test_a_pruned_trial_passes_through(error: type[Exception]) -> None:
    class Prune(jaxdp.callbacks.Callback):
        def on_evaluate(self, run: Any, event: Any) -> None:
            raise error("no better than others")

    expected = Pruned if error is Pruned else jaxdp.callbacks.CallbackError
    with pytest.raises(expected, match="no better"):
        trainer(callbacks=[Prune()], progress=False).fit(epochs=1)


def loss(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses, {"sure": jnp.max(jax.nn.softmax(logits), -1)}


def test_values_beside_a_loss_are_metrics_that_stop_a_run() -> None:
    stopping = jaxdp.callbacks.EarlyStopping("sure", patience=1, larger_is_better=False)
    settings: dict[str, Any] = {**TINY, "callbacks": [stopping], "progress": False}
    result = jaxdp.Trainer("cnn", DATA, loss, **settings).fit(epochs=10)
    assert result.step < 30  # the model becomes surer
    expected = result.predict(IMAGES).max(-1).mean()
    assert result.evaluate(split="all")["sure"] == pytest.approx(expected, rel=1e-5)


def test_the_documented_metric_is_that_of_scikit_learn(tmp_path: pathlib.Path) -> None:
    """The task of docs/extend.md chooses the best checkpoint, and stops a run."""
    text = (pathlib.Path(__file__).parents[1] / "docs" / "extend.md").read_text()
    code = text[text.index("class Ranked(") : text.index("\n\n\nranked = ")]
    names: dict[str, Any] = {"jaxdp": jaxdp, "jax": jax, "jnp": jnp, "np": np}
    exec(code, names)
    labels = np.random.default_rng(1).integers(0, 2, 96)
    images = (np.resize(RANDOM, (96, 8, 8)) + 8 * labels[:, None, None]).astype(np.uint8)
    data = from_arrays(images, labels, validation=0.5)
    settings = {**TINY, "learning_rate": 0.005, "devices": 2, "progress": False}
    stopping = jaxdp.callbacks.EarlyStopping("auroc", patience=2, larger_is_better=True)
    settings |= {"callbacks": [stopping], "run_dir": str(tmp_path / "run"), "epochs": 8}
    result = jaxdp.Trainer("cnn", data, names["Ranked"](2), **settings).fit()
    rows = [row for row in result.history if row["split"] == "validation"]
    best = max(rows, key=lambda row: row["auroc"])
    assert result.metrics["validation"]["auroc"] == best["auroc"]
    split: Any = data.validation
    held_out = [split[index] for index in range(len(split))]
    scores = result.predict(np.stack([each["images"] for each in held_out]))[:, 1]
    expected = sklearn.metrics.roc_auc_score([each["labels"] for each in held_out], scores)
    assert best["auroc"] == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (lambda logits: logits.mean(), "returns a single number; it must return one value of a"),
        (lambda logits: logits.T, r"returns a of shape \(4, 8\); it must return"),
    ],
)
def test_values_are_one_per_example(extra: Callable[..., Any], message: str) -> None:
    def wrong(logits: jax.Array, labels: jax.Array) -> Any:
        return loss(logits, labels)[0], {"a": extra(logits)}

    with pytest.raises(jaxdp.ConfigError, match=message):
        jaxdp.Trainer("cnn", DATA, wrong, progress=False, **TINY).fit(epochs=1)


def test_folds_share_their_programs() -> None:
    """Mean and standard deviation are data of the steps, so that each fold compiles nothing."""
    texts, means = set[str](), set[tuple[float, ...]]()
    for fold in range(2):
        held_out = np.arange(32) // 4 % 8 == fold
        data = from_arrays(
            IMAGES[~held_out], LABELS[~held_out], validation=(IMAGES[held_out], LABELS[held_out])
        )
        setup = jaxdp.Trainer("cnn", data, progress=False, **TINY).setup
        state, batch, constants = setup.abstract_step(8)
        evaluated = dataclasses.replace(constants, learning_rates=(), key=())
        steps: Any = setup.strategy
        texts.add(steps.train_step.lower(state, batch, constants).as_text())
        texts.add(steps.eval_step.lower(state, batch, evaluated).as_text())
        means.add(data.mean)
    assert (len(means), len(texts)) == (2, 2)


def test_a_saved_result_keeps_its_position(tmp_path: pathlib.Path) -> None:
    # Nothing improves after the first evaluation, at step 3, whose state is the result. The next
    # ones are at 6, 9, 12 and 15.
    still: dict[str, Any] = {"early_stop": 4, "learning_rate": 1e-9, "progress": False}
    first = trainer(**still).fit(steps=7)
    folder = first.save(tmp_path / "run")
    whole_epoch = trainer(**still).fit(resume=folder, steps=9)
    assert whole_epoch.metrics["train"]["examples"] == 24
    again = trainer(**still).fit(resume=first.save(tmp_path / "again"), steps=30)
    assert (again.summary["steps"], again.status) == (15, "done")


def test_the_best_state_is_saved_with_its_own_position(tmp_path: pathlib.Path) -> None:
    result = trainer(progress=False).fit(steps=6, run_dir=str(tmp_path / "run"))
    assert result.step == 3
    copy = result.save(tmp_path / "copy")
    one, other = (
        integrity.read_position(path / "checkpoints", 3) for path in (copy, tmp_path / "run")
    )
    assert one == other
    assert one["epoch"]["examples"] == 24


@pytest.mark.parametrize("settings", STRATEGIES, ids=str)
def test_a_placed_state_shares_no_memory_with_its_source(settings: dict[str, Any]) -> None:
    strategy = trainer(progress=False, **{"devices": 2} | settings).setup.strategy
    made = trainer(progress=False).setup.create_state()
    source = jax.tree.map(lambda leaf: aligned(np.asarray(leaf)), made)
    placed = strategy.restore(source)
    before = strategy.gather(placed)
    for leaf in jax.tree.leaves(source):
        leaf[...] = 7
    jax.tree.map(np.testing.assert_array_equal, strategy.gather(placed), before)


def aligned(values: np.ndarray) -> np.ndarray:
    """Returns a copy at an address of which JAX can share the memory."""
    memory = np.zeros(values.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy
