"""Flags, files of settings and help; `test_mistakes.py` has what is wrong in them."""

import importlib.metadata
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import error_line, run_train

import jaxdp
from jaxdp import check, config, models
from jaxdp.cli import command_line
from jaxdp.config import conversion
from jaxdp.data import sources
from jaxdp.reporting import progress
from jaxdp.sharding import strategy
from jaxdp.sharding.communication import Communication
from jaxdp.step import batch_norm as batch_norm_lib
from jaxdp.step import keys, step
from jaxdp.step.optim import OPTIMIZERS
from jaxdp.training import comparison


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("learning_rat: 0.1", "unknown setting 'learning_rat'; did you mean learning_rate?"),
        ("epochs: many", "--epochs many: must be an integer or null"),
        ("resume: true", "--resume true: known: auto, must, never"),
        ("model: [pyramidnet]", "--model pyramidnet: must be a string, not a list"),
        ("- 1", "must consist of `name: value` lines"),
        ("a: b: c", "--config settings.yaml: cannot be read: "),
    ],
)
def test_bad_files_are_one_line_and_code_2(
    content: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pathlib.Path("settings.yaml").write_text(content)
    assert run_train("--config settings.yaml") == 2
    line = error_line(capsys)
    assert message in line


@pytest.fixture
def _float32_afterwards() -> Iterator[None]:
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.mark.usefixtures("_float32_afterwards")
@pytest.mark.parametrize(
    ("batch_norm", "where", "code", "word"),
    [
        pytest.param(
            "group:4",
            "--devices 1,4 --strategies pmap,sharded",
            0,
            "passed",
            marks=pytest.mark.slow,
        ),
        ("replica", "--devices 4 --strategies pmap", 1, "FAILED"),
    ],
)
def test_check_tells_whether_devices_matter(
    batch_norm: str, where: str, code: int, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = (
        f"{where} --model cnn --model-kwargs width=4 hidden=16 --global-batch-size 32 --steps 2"
        f" --batch-norm {batch_norm}"
    )
    assert check.main(flags.split()) == code
    assert jnp.ones(1).dtype == jnp.float32  # a notebook goes on as before
    shown = capsys.readouterr().out
    assert word in shown
    assert len([line for line in shown.splitlines() if "pmap" in line or "sharded" in line]) == (
        4 if code == 0 else 1
    )


SMALL = (
    "--devices 8 --strategies pmap --model pyramidnet --model-kwargs depth=8 alpha=4"
    " --global-batch-size 32 --batch-norm group:8 --steps 2 --augment shift:1"
)


@pytest.mark.usefixtures("_float32_afterwards")
@pytest.mark.parametrize(
    "optimizer", ["adamw", pytest.param("lion --augment rotate:20", marks=pytest.mark.slow)]
)
def test_check_passes_where_an_optimizer_magnifies_rounding(
    optimizer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Adam divides a gradient that is zero but for its rounding by its own size, and Lion takes its
    sign. In float32 anywhere in the step, parameters then differed by 1e-4.
    """
    assert check.main(f"{SMALL} --optimizer {optimizer} --tolerance 1e-10".split()) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "passed: the largest difference is" in shown
    assert "compared after each of 2 steps" in shown
    assert "; params leave out " in shown


_mean = Communication.mean
MUTANTS = {
    "a sum for a mean": (
        Communication,
        "mean",
        lambda self, tree: (self.sum(tree[0]), *_mean(self, tree[1:])),
    ),
    "no mean": (Communication, "mean", lambda self, tree: tree),
    "a key by place": (
        step,
        "example_keys",
        lambda key, count, indices: keys.example_keys(key, count, jnp.arange(len(indices))),
    ),
    "statistics per device": (
        batch_norm_lib,
        "of_groups",
        lambda replicas, count, mean, var: (mean, var),
    ),
}


@pytest.mark.usefixtures("_float32_afterwards")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_check_fails_with_adamw_if_devices_change_gradients(
    mutant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Adam hides a factor of all gradients, so that they are compared before the update."""
    monkeypatch.setattr(*MUTANTS[mutant])
    assert check.main(f"{SMALL} --optimizer adamw".split()) == 1
    row = next(line for line in capsys.readouterr().out.splitlines() if "pmap" in line)
    assert float(row.split("│")[3]) > 1e-3, row


def test_check_never_passes_with_nan() -> None:
    arrays = {"first": np.zeros(2), "second": np.array([0.0, np.nan])}
    assert comparison._largest_difference(arrays, arrays) == float("inf")
    assert comparison._largest_difference(np.ones(2), np.zeros(2)) == 1


def test_flags_override_a_file_and_displace_the_partner_of_a_pair() -> None:
    pathlib.Path("settings.yaml").write_text(
        "epochs: 7\nlearning_rate: 1e-3\nmodel_kwargs: {depth: 26}\nglobal_batch_size: 64\n"
    )

    def parse(flags: str) -> config.TrainConfig:
        argv = ["--config", "settings.yaml", *flags.split()]
        return command_line.parse(config.TrainConfig, argv, prog="x", description="x")

    parsed = parse("--learning-rate 0.5 --steps 3")
    assert (parsed.learning_rate, parsed.steps, parsed.epochs) == (0.5, 3, None)
    assert (parsed.model_kwargs, parsed.global_batch_size) == ({"depth": 26}, 64)
    assert parse("").learning_rate == 0.001
    assert parse("--per-device-batch-size 4").global_batch_size is None
    assert parse("--model-kwargs alpha=3.5 bottleneck=true").model_kwargs == {
        "alpha": 3.5,
        "bottleneck": True,
    }


def test_no_flags_at_all_are_the_defaults() -> None:
    assert (
        command_line.parse(config.TrainConfig, [], prog="x", description="x")
        == config.TrainConfig()
    )


def test_help_names_everything_and_does_not_import_jax() -> None:
    code = (
        "import sys; from jaxdp.train import main\ntry: main(['--help-all'])\nfinally: assert 'jax' not"
        " in sys.modules"
    )
    helped = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    for field in config.fields(config.TrainConfig):
        assert f"--{field.replace('_', '-')}" in helped
    for name in [*models.names(), *sources.names(), *strategy.names(), *OPTIMIZERS]:
        assert name in helped
    assert "{jaxdp" not in helped


def test_jaxdp_is_the_same_as_the_modules() -> None:
    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "jaxdp", *argv], capture_output=True, text=True
        )

    assert "train" in run().stdout
    assert "--strategy" in run("train", "--help").stdout
    for name, message in (
        ("trian", "unknown command; did you mean train?"),
        ("sweep", "was removed after 0.3.0: use Optuna, as in examples/search.py"),
        ("report", "was removed after 0.3.0: use examples/compare_runs.py, or TensorBoard"),
        ("bench", "was removed after 0.3.0: use the speed in the summary of a training run, or"),
    ):
        failed = run(name)
        assert failed.returncode == 2
        assert failed.stderr.startswith(f"jaxdp: error: {name}: {message}")


@pytest.mark.parametrize("arguments", [["train", "--help"], ["devices", "--json"]])
def test_nobody_reads_what_is_printed(arguments: list[str]) -> None:
    """As behind `| head`: no trace, and the exit code that a shell has for it."""
    with subprocess.Popen(
        [sys.executable, "-m", "jaxdp", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


SUMMARY = {
    "model": "cnn",
    "dataset": "folder:a",
    "status": "done",
    "metrics": {},
    "devices": 1,
    "device_kind": "cpu",
    "strategy": "pmap",
    "batch_norm": "replica",
    "parameters": 1,
    "steps": 1,
    "epochs": 1.0,
    "global_batch_size": 1,
    "examples_per_second": None,
    "seconds": {"total": 1.0, "first_step": None},
}


def test_a_summary_prints_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    progress.print_summary(SUMMARY, "runs/[bold]x", "accuracy")
    printed = capsys.readouterr().out
    assert "cnn on folder:a: done" in printed  # and no picture of an A
    assert "runs/[bold]x" in printed


def test_a_summary_counts_workers_and_names_their_strategy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    of_version_0_2 = {"strategy": "pmap", "exchange": "exact", "workers": 3}
    progress.print_summary(SUMMARY | of_version_0_2, "run", "accuracy")
    assert "3 x cpu (exact, batch norm replica)" in capsys.readouterr().out


def test_a_package_that_is_not_installed_has_no_version_and_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with PYTHONPATH=src, on machines where nothing can be installed."""
    from jaxdp.training import summary

    installed = importlib.metadata.version

    def version(name: str) -> str:
        if name == "jaxdp":
            raise importlib.metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = summary.versions()
    assert found["jaxdp"] == jaxdp.__version__ == "unknown"
    assert found["jax"] == installed("jax")


def test_a_flag_takes_every_value_that_its_setting_lists() -> None:
    for name, facts in config.fields(config.TrainConfig).items():
        for value in conversion.choices(facts.annotation):
            words = [f"--{name.replace('_', '-')}", str(value)]
            read = command_line.parse(config.TrainConfig, words, prog="x", description="x")
            assert getattr(read, name) == value
            assert config.TrainConfig.of(**{name: value}) == read
