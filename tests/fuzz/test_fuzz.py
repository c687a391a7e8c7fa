"""Random flags, files and pictures: each command ends with 0, 2 or 3, in bounded time and memory,
and says why in one line.
"""

import itertools
import os
import pathlib
import re
import stat
from collections.abc import Iterator

import pytest

pytest.importorskip("hypothesis")

import fuzz_cases
import fuzz_damage
import fuzz_files
import fuzz_flags
import fuzz_tiff
import numpy as np
import safetensors.numpy
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from PIL import Image

from jaxdp import config
from jaxdp.checkpoint.restore import SavedCheckpoints

# What makes cases may warn, of an archive with a name twice for instance: the commands run
# elsewhere, under rules of their own.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SMALL = (
    "--model cnn --model-kwargs width=4 hidden=16 --global-batch-size 160 --strategy single".split()
)
RUN = [
    *SMALL,
    *"--steps 4 --log-every 1 --eval-every 2 --checkpoint-every 2 --validation 0.2 --run-dir run".split(),
]
MASKS = (
    "--model unet --model-kwargs levels=2 base_channels=4 --dataset npz:set.npz --global-batch-size"
    " 8 --strategy single --steps 2 --run-dir run"
).split()
# What is tried with a folder that was damaged.
COMMANDS = {
    "train": RUN,
    "longer": [*RUN, "--steps", "6"],
    "second": [*RUN, "--run-dir", "second", "--init-from", "run"],
    "evaluate": ["run"],
    "evaluate-2": ["run", "--step", "2"],
    "predict": ["run", "image.png"],
    "convert": ["export", "run", "--output", "out.safetensors"],
    "predict-csv": ["run", "image.png", "--csv", "table.csv"],
}
TRAINED_ON_ARCHIVES = {
    "train": "--dataset npz:odd.npz --global-batch-size 8",
    "init-npz": "--init-from odd.npz",
    "init-tensors": "--init-from odd.safetensors",
}
# How many of a thousand cases, in how many parts, which processes may share.
SHARES = {
    "flags": (360, 4),
    "damage": (260, 3),
    "tiff": (40, 1),
    "pictures": (100, 1),
    "archives": (120, 1),
    "weights": (60, 1),
    "settings": (60, 1),
}
PARTS = [
    pytest.param(kind, part, id=f"{kind}-{part}")
    for kind, (_, parts) in SHARES.items()
    for part in range(parts)
]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[fuzz_cases.Runner]:
    found = fuzz_cases.Runner(tmp_path_factory.mktemp("runner"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, runner: fuzz_cases.Runner) -> pathlib.Path:
    """A folder with a run of each kind, and whatever flags may name."""
    top = tmp_path_factory.mktemp("whole")
    for name, argv in (("case", RUN), ("masks", MASKS)):
        folder = fuzz_cases.fresh(top / name)
        rng = np.random.default_rng(0)
        targets, size = {"labels": np.arange(40) % 2}, 8
        if name == "masks":
            targets, size = {"masks": rng.integers(0, 2, (40, 16, 16), np.uint8)}, 16
        images = rng.integers(0, 256, (40, size, size), np.uint8)
        np.savez(folder / "set.npz", images=images, **targets)
        Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(folder / "image.png")
        outcome = runner.run("train", argv, folder, pictures=True)
        assert outcome.code == 0, outcome
    folder = top / "case"
    (folder / "run" / "writer.lock").write_text(
        '{"host": "elsewhere", "pid": 1, "started": "2026-01-01T00:00:00+00:00"}'
    )
    (folder / "run" / "skipped.csv").write_text("split,example,reason\ntrain,a.png,is cut\n")
    (folder / "empty").mkdir()
    for name in "ab":
        (folder / "set" / name).mkdir(parents=True)
        for number in range(10):
            Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(
                folder / "set" / name / f"{number}.png"
            )
    (folder / "settings.yaml").write_text("model: cnn\nsteps: 1\n")
    (folder / "plugin.py").write_text("import jaxdp\n1 / 0\n")
    outcome = runner.run("convert", ["export", "run", "--output", "weights.safetensors"], folder)
    assert outcome.code == 0, outcome
    return top


def add_special(folder: pathlib.Path) -> None:
    """Adds what no copy of a folder takes with it."""
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    outside = folder / fuzz_damage.OUTSIDE
    (outside / "theirs").mkdir(parents=True)
    (outside / "mine").write_text("mine")
    try:  # a device of its own: root could replace that of the system
        os.mknod(outside / "endless", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        (outside / "endless").symlink_to("/dev/zero")
    (folder / "endless").symlink_to(outside / "endless")


# A line that has one of these may go with exit code 1.
_OF_FILES = re.compile("cannot be (read|written)|could not be saved|Is a directory|File exists")


class Fuzzer:
    """Tries cases of one kind."""

    def __init__(self, runner: fuzz_cases.Runner, whole: pathlib.Path, place: pathlib.Path) -> None:
        self.runner, self.whole, self.place = runner, whole, place
        self.count = 0

    def folder(self, source: str = "case") -> pathlib.Path:
        folder = fuzz_cases.fresh(self.place / "case", self.whole / source)
        add_special(folder)
        return folder

    def run(self, command: str, argv: list[str], folder: pathlib.Path) -> fuzz_cases.Outcome:
        outcome = self.runner.run(command, argv, folder, pictures=self.count % 10 == 0)
        self.count += 1
        fuzz_cases.check(outcome, command, may_fail=_OF_FILES.search)
        return outcome

    def flags(self, case: tuple[str, list[str]]) -> None:
        command, argv = case
        self.run(command, argv, self.folder())

    def damage(self, case: tuple[list[fuzz_damage.Damage], list[str]]) -> None:
        damages, commands = case
        if any(each.kind in fuzz_damage.LINKS for each in damages):
            commands = [*commands, "longer"]  # which writes most
        folder = self.folder()
        for each in damages:
            each.apply(folder / "run")
        outside = folder / fuzz_damage.OUTSIDE
        before = fuzz_cases.everything_in(outside)
        for name in commands:
            command = name.split("-")[0]
            run = fuzz_cases.everything_in(folder / "run")
            outcome = self.run(
                {"longer": "train", "second": "train"}.get(command, command), COMMANDS[name], folder
            )
            # What was damaged is whole, or gone.
            if name in ("train", "longer") and outcome.code == 0:
                again = self.run("train", COMMANDS[name], folder)
                assert again.code == 0, again
                assert "cannot be read" not in again.err, again
            if name not in ("train", "longer"):
                assert fuzz_cases.everything_in(folder / "run") == run, (name, damages)
            assert fuzz_cases.everything_in(outside) == before, (name, damages)
            if (table := folder / "table.csv").exists():
                fuzz_cases.check_table(table)

    def train(self, folder: pathlib.Path, words: str) -> fuzz_cases.Outcome:
        """Trains a small model in the folder `new` for a step."""
        argv = [*SMALL, "--steps", "1", "--run-dir", "new", *words.split()]
        return self.run("train", argv, folder)

    def pictures(self, case: tuple[str, tuple[str, bytes], tuple[str, bytes]]) -> None:
        how, (suffix, content), (other_suffix, other) = case
        folder = self.folder("masks" if how == "masks" else "case")
        (folder / f"odd{suffix}").write_bytes(content)
        if how == "folder":
            for name, number in (("a", 3), ("b", 4)):
                (folder / "set" / name / f"odd-{number}{suffix}").write_bytes(content)
            (folder / "set" / "a" / f"other{other_suffix}").write_bytes(other)
            flags = " --on-bad-example skip" if len(content) % 2 else ""
            self.train(folder, "--global-batch-size 8 --dataset folder:set" + flags)
        elif how == "pairs":
            for path in itertools.product(("train", "test"), ("images", "masks")):
                (place := folder.joinpath("pairs", *path)).mkdir(parents=True)
                for number in range(9):
                    pixels = np.full((8, 8), number % 2, np.uint8)
                    Image.fromarray(pixels).save(place / f"{number}.png")
            (folder / "pairs" / "train" / "images" / f"3{suffix}").write_bytes(content)
            (folder / "pairs" / "train" / "masks" / f"4{other_suffix}").write_bytes(other)
            flags = [word if word != "npz:set.npz" else "folder:pairs" for word in MASKS]
            self.run("train", [*flags, "--run-dir", "new", "--steps", "1"], folder)
        else:
            output = "--output-dir out" if how == "masks" else "--csv out.csv"
            self.run("predict", f"run odd{suffix} {output}".split(), folder)

    def tiff(self, stacks: list[fuzz_tiff.Stack]) -> None:
        folder = self.folder()
        for number, stack in enumerate(stacks):
            path = folder / f"odd-{self.count}-{number}.tif"
            stack.write(path)
            stack.check(path)
        self.run("predict", f"run {path.name} --csv out.csv".split(), folder)

    def archives(self, case: tuple[str, bytes, bytes]) -> None:
        how, archive, weights = case
        folder = self.folder()
        (folder / "odd.npz").write_bytes(archive)
        (folder / "odd.safetensors").write_bytes(weights)
        if how in TRAINED_ON_ARCHIVES:
            self.train(folder, TRAINED_ON_ARCHIVES[how])
        elif how == "evaluate":
            self.run(how, "run --dataset npz:odd.npz".split(), folder)
        else:
            self.run(how, [*"import odd.safetensors --run-dir new".split(), *SMALL[:5]], folder)

    def weights(self, case: tuple[str, fuzz_files.Weights]) -> None:
        how, weights = case
        folder, file = self.folder(), f"odd{weights.suffix}"
        arrays, fit = weights.changed(safetensors.numpy.load_file(folder / "weights.safetensors"))
        weights.write(folder / file, arrays)
        # Of an npz file the names would be PyTorch's.
        if how == "import" and weights.suffix == ".safetensors":
            outcome = self.run("convert", ["import", file, *SMALL[:5], "--run-dir", "new"], folder)
        else:
            outcome = self.train(folder, f"--init-from {file}")
        diverged = outcome.code == 3
        assert (outcome.code == 0 or diverged) == fit, outcome
        if not fit or diverged:
            return
        more = "--config new/config.yaml --run-dir new --resume must --steps 2 --strategy single"
        assert self.run("train", more.split(), folder).code in (0, 3)
        saved = SavedCheckpoints(folder / "new" / "checkpoints", best_metric=None)
        found = {array.dtype.name for array in saved.arrays(saved.steps()[-1]).values()}
        assert found <= {"float32", "int32", "uint32"}, found

    def settings(self, case: tuple[str, str]) -> None:
        how, text = case
        folder = self.folder()
        (folder / "odd.yaml").write_text(text, errors="surrogatepass")
        flags = [*SMALL, "--steps", "1", "--run-dir", "new"]
        if how == "run":
            (folder / "run" / "config.yaml").write_text(text, errors="surrogatepass")
            self.run("evaluate", ["run"], folder)
        else:
            self.run("train", ["--config", "odd.yaml", *flags], folder)


# Settings of which some values take long, or other machines.
_LONG = {*"coordinator step_timeout data_dir epochs steps_per_execution callbacks".split()}
_changed_settings = st.dictionaries(
    st.sampled_from(sorted(set(config.fields(fuzz_flags.settings_of("train"))) - _LONG)),
    fuzz_damage.plain_values,
    max_size=3,
).map(lambda found: yaml.safe_dump({"model": "cnn", "model_kwargs": {"width": 4}} | found))
CASES = {
    "flags": fuzz_flags.command_lines(),
    "damage": st.tuples(
        st.lists(fuzz_damage.damages, min_size=1, max_size=2),
        st.lists(st.sampled_from(sorted(COMMANDS)), min_size=1, max_size=2),
    ),
    "pictures": st.tuples(
        st.sampled_from(["predict", "masks", "folder", "pairs"]),
        fuzz_files.picture_files,
        fuzz_files.picture_files,
    ),
    "tiff": st.lists(fuzz_tiff.stacks, min_size=20, max_size=20),
    "archives": st.tuples(
        st.sampled_from(["train", "train", *TRAINED_ON_ARCHIVES, "evaluate", "convert"]),
        fuzz_files.archives.map(fuzz_files.Archive.content),
        fuzz_files.tensors.map(fuzz_files.Tensors.content),
    ),
    "weights": st.tuples(st.sampled_from(["import", "init"]), fuzz_files.weights),
    "settings": st.tuples(st.sampled_from(["train", "run"]), _changed_settings | fuzz_damage.texts),
}


@pytest.mark.parametrize(("kind", "part"), PARTS)
def test_fuzz(
    kind: str,
    part: int,
    runner: fuzz_cases.Runner,
    whole: pathlib.Path,
    tmp_path: pathlib.Path,
    pytestconfig: pytest.Config,
) -> None:
    share, parts = SHARES[kind]
    count = -(-share * pytestconfig.getoption("--fuzz-cases") // (1000 * parts))
    fuzzer = Fuzzer(runner, whole, tmp_path)

    @seed(f"{pytestconfig.getoption('--fuzz-seed')}-{kind}-{part}")
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(CASES[kind])
    def try_one(case: object) -> None:
        getattr(fuzzer, kind)(case)

    try_one()
    print(f"{kind}: {fuzzer.count} commands")
