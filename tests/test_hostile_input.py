"""What others wrote or named ends in one line: texts, names, links, pipes, and numbers that would take all memory."""

import io
import json
import os
import pathlib
import subprocess
import sys
import zipfile
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from jaxdp import checkpoints, data, evaluate, launch, predict, report, train
from jaxdp.config import TrainConfig
from jaxdp.data import npz_file
from jaxdp.data.npz_file import NpzFile
from jaxdp.data.sources import images
from jaxdp.inference import files
from jaxdp.inference.weights import read_weights
from jaxdp.parsing import parse_json, parse_yaml, printable
from jaxdp.registry import ConfigError
from jaxdp.runtime import platform

LAUGHS = "a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
SMALL = "--model cnn --model-kwargs width=4 hidden=16 --global-batch-size 16 --steps 2 --strategy single".split()
RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 5000, "nested"),
        ("a: " + "[" * 60 + "]" * 60, "nested more than 50 levels deep"),
        (LAUGHS, "more than 100,000 values"),
        ("&a [*a]", "contains itself"),
        ("{a: 1", "expected ',' or '}'"),
        ("!!python/object/apply:os.system [exit]", "could not determine a constructor"),
        ("!!int ''", ""),
        ("a\0b", "special characters are not allowed"),
    ],
)
def test_yaml_of_others(text: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=f".*{says.replace('[', '.')}"):
        parse_yaml(text)
    pathlib.Path("settings.yaml").write_text(text)
    assert train.main(["--config", "settings.yaml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("jaxdp.train: error: --config settings.yaml: cannot be read: ")


def test_aliases_that_repeat_little_are_fine() -> None:
    assert parse_yaml("a: &a {b: 1}\nc: *a\nd: {<<: *a, e: 2}") == {"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1, "e": 2}}
    assert parse_yaml("") is None
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * 100_000)


def test_values_that_are_no_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("width={a: 1", "width=" + "[" * 3000):
        assert train.main(["--model", "cnn", "--model-kwargs", word]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "width has no value that is YAML: " in line


def test_nul_and_names_that_no_file_can_have(capsys: pytest.CaptureFixture[str]) -> None:
    for settings in ({"run_dir": "a\0b"}, {"dataset": "npz:a\0b"}, {"plugins": ("a\0b.py",)}):
        with pytest.raises(ConfigError, match="must not contain a NUL character"):
            TrainConfig.of(**settings)
    long = "x" * 300
    commands: list[Callable[[], int]] = [
        lambda: evaluate.main([long]), lambda: checkpoints.main([long]), lambda: predict.main([long, "a.png"]),
        lambda: report.main([long]), lambda: train.main([*SMALL, "--dataset", f"folder:{long}"]),
        lambda: train.main([*SMALL, "--dataset", f"npz:{long}"]), lambda: train.main([*SMALL, "--run-dir", long]),
        lambda: train.main([*SMALL, "--init-from", long]), lambda: train.main(["--plugins", f"{long}.py"]),
        lambda: train.main(["--config", long]),
    ]  # fmt: skip
    for number, run in enumerate(commands):
        assert run() == 2, number
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("jaxdp."), line


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (lambda: train.main(["--devices", "100000"]), "--devices 100000: must be at most 512"),
        (lambda: evaluate.main(["run", "--devices", "100000"]), "--devices 100000: must be at most 512"),
        (lambda: launch.main(["-n", "100000000000", "--", "train"]), "--num-processes 100000000000: must be at most 256"),
        (lambda: launch.main(["-n", "2", "--devices-per-process", "1000000", "--", "train"]), "must be at most 512"),
        (lambda: train.main(["--exchange", "exact", "--workers", "1000000"]), "--workers 1000000: must be at most 4096"),
        (lambda: train.main(["--num-classes", "2147483647"]), "--num-classes 2147483647: must be at most 32768"),
        (lambda: train.main(["--steps", "1000000000000"]), "--steps 1000000000000: must be at most 100000000"),
        (lambda: train.main(["--model", "cnn", "--epochs", "1000000000000"]), "--epochs 1000000000000: makes 11000000000000 steps"),
        (lambda: train.main(["--image-size", "65535"]), "of at most 16384"),
        (
            lambda: train.main(["--on-divergence", "rollback", "--max-divergences", "60"]),
            "--max-divergences 60: each rollback halves the learning rate",
        ),
    ],
)
def test_numbers_that_would_take_everything(run: Callable[[], int], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def write_npz(header: dict[str, object], content: bytes) -> pathlib.Path:
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(member, header)
    path = pathlib.Path("set.npz")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("images.npy", member.getvalue() + content)
    return path


def test_an_npz_file_says_what_it_takes_before_it_is_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_npz({"descr": "|u1", "fortran_order": False, "shape": (2**40, 256, 256, 1)}, b"abc")
    with NpzFile(path) as file, pytest.raises(ValueError, match=r"cut short: .* instead of 65536\.0 TiB|instead of 65,?536 TiB"):
        file.read("images")
    write_npz({"descr": "|u1", "fortran_order": False, "shape": (30, 8, 8)}, bytes(30 * 64))
    with NpzFile(path) as file:
        assert file.bytes_of("images") == 1920
        assert file.read("images").shape == (30, 8, 8)
    np.savez_compressed("large.npz", images=np.zeros((65, 1024, 1024), np.uint8), labels=np.arange(65) % 2)
    assert pathlib.Path("large.npz").stat().st_size < 2**18
    monkeypatch.setattr(platform, "available_memory_bytes", lambda: 2**20)
    assert train.main([*SMALL, "--dataset", "npz:large.npz"]) == 2
    assert "images cannot be read: it would take 65.0 MiB of memory, and 1.0 MiB are free" in capsys.readouterr().err
    np.savez("pickled.npz", images=np.array([{}], object), labels=np.zeros(1))
    assert train.main([*SMALL, "--dataset", "npz:pickled.npz"]) == 2
    assert "images holds Python objects, which are not read" in capsys.readouterr().err


def test_the_free_memory_is_that_of_the_machine() -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    assert 0 < platform.available_memory_bytes() < page * os.sysconf("SC_PHYS_PAGES")
    platform.check_memory(2**10)
    with pytest.raises(ValueError, match=r"would take .* of memory"):
        platform.check_memory(2**60)
    assert npz_file.check_memory is platform.check_memory


def test_labels_that_are_no_class_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("set.npz", images=np.zeros((20, 8, 8), np.uint8), labels=np.arange(20) + 2147483647 - 19)
    assert train.main([*SMALL, "--dataset", "npz:set.npz"]) == 2
    assert "its highest class number is 2147483647; number the classes from 0 on" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="highest class number is 99999;"):
        data.from_arrays(np.zeros((2, 8, 8), np.uint8), np.array([0, 99999]))


def test_images_without_pixels(capsys: pytest.CaptureFixture[str]) -> None:
    for shape in ((20, 0, 8, 1), (20, 8, 0), (20, 8, 8, 0), (0, 8, 8)):
        np.savez("set.npz", images=np.zeros(shape, np.uint8), labels=np.arange(shape[0]) % 2)
        assert train.main([*SMALL, "--dataset", "npz:set.npz"]) == 2, shape
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("jaxdp.train: error: ")


def picture(path: str) -> None:
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 256, (8, 8), np.uint8)).save(path, format="PNG")


def test_links_and_pipes_count_no_picture_twice() -> None:
    for number in range(10):
        picture(f"set/a/{number}.png")
        picture(f"set/b/deep/{number}.png")
        picture(f"set/.hidden/{number}.png")
        picture(f"elsewhere/{number}.png")
    found = [str(path) for path in images.find_pictures(pathlib.Path("set/a"))]
    for place, target in (
        ("set/a/self", "."), ("set/a/up", ".."), ("set/loop", "."), ("set/a/x", "y"), ("set/a/y", "x"), ("set/b/again", "deep"),
        ("set/a/first.png", "first.png"), ("set/b/2nd", "../b"), ("set/b/3rd", "3rd/b"),
    ):  # fmt: skip
        os.symlink(target, place)
    os.mkfifo("set/a/pipe.png")
    os.mkfifo("set/pipe.png")
    assert [str(path) for path in images.find_pictures(pathlib.Path("set/a"))] == found
    assert len(images.find_pictures(pathlib.Path("set/b"))) == 10
    dataset = data.from_folder("set")
    assert dataset.class_names == ("a", "b")
    assert sum(len(split) for split in dataset.splits().values()) == 20
    assert len(files.find(["set"])) == 20
    os.symlink("../../elsewhere", "set/a/more")
    os.symlink("../../elsewhere", "set/a/more-again")
    os.symlink("../.hidden", "set/b/shown")
    assert len(images.find_pictures(pathlib.Path("set/a"))) == 20  # what lies elsewhere belongs to it, once
    assert len(images.find_pictures(pathlib.Path("set/b"))) == 20


def test_names_do_nothing_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert printable("a\n\x1b[31mb\udcff\u202ec\t") == "a \\x1b[31mb\\udcff\\u202ec "
    assert printable("Größe 大きさ 👩‍🔬 $x$ [b]") == "Größe 大きさ 👩‍🔬 $x$ [b]"
    evil = os.fsdecode(b"\x1b[31mred\nline\xff.png")
    for name in ("a", os.fsdecode(b"b\xff\x1b[2J[b]$\\frac{$")):
        for number in range(10):
            picture(f"set/{name}/{number}.png")
    picture(evil)
    run = "x[/y]z$_$"
    assert train.main([*SMALL, "--dataset", "folder:set", "--run-dir", run]) == 0
    printed = capsys.readouterr()
    assert "x[/y]z$_$" in printed.out
    assert (pathlib.Path(run) / "plots" / "confusion.png").is_file()
    assert json.loads((pathlib.Path(run) / "dataset.json").read_text())["class_names"][1] == "b\\udcff\\x1b[2J[b]$\\frac{$"
    assert predict.main([run, evil]) == 0
    pathlib.Path(evil).write_bytes(b"no picture")
    assert predict.main([run, evil]) == 2
    printed = capsys.readouterr()
    for text in (printed.out, printed.err):
        assert "\x1b" not in text
        assert "\udcff" not in text
    assert len(printed.err.splitlines()) == 1
    assert report.main([run, "--title", os.fsdecode(b"\xff"), "--output", "page.html"]) == 0
    assert "<title>?" in pathlib.Path("page.html").read_text(encoding="utf-8")


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    python = f"{sys.executable} -m jaxdp."
    return subprocess.run(
        ["bash", "-c", command.replace("jaxdp.", python)], capture_output=True, text=True, env=os.environ | environment, timeout=300
    )


def test_standard_output_that_is_closed_or_full() -> None:
    flags = " ".join([*SMALL, "--run-dir", "run"])
    full = shell(f"jaxdp.train {flags} > /dev/full")
    assert full.returncode == 1
    assert full.stderr.splitlines()[-1] == ("jaxdp.train: error: standard output cannot be written: No space left on device")
    assert json.loads(pathlib.Path("run/summary.json").read_text())["status"] == "done"
    closed = shell("jaxdp.checkpoints run >&- 2>&- <&-")
    assert (closed.returncode, closed.stdout, closed.stderr) == (0, "", "")
    closed = shell("jaxdp.checkpoints run >&-")
    assert (closed.returncode, closed.stderr) == (0, "")


def test_a_platform_that_is_not_there() -> None:
    done = shell(f"jaxdp.train {' '.join(SMALL)}", JAX_PLATFORMS="cuda")
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("jaxdp.train: error: ")]
    assert "JAX cannot start: " in line
    assert line.endswith("; JAX_PLATFORMS is cuda, correct or unset it")
    assert "Traceback" not in done.stderr


def test_pipes_are_not_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe.png")
    os.mkfifo("pipe.yaml")
    with pytest.raises(ConfigError, match=r"pipe\.png: is no regular file"):
        files.find(["pipe.png"])
    assert train.main(["--config", "pipe.yaml"]) == 2
    assert "--config pipe.yaml: is no regular file" in capsys.readouterr().err
    pathlib.Path("settings.yaml").write_text("strategy: none-such")
    done = shell("jaxdp.train --config <(cat settings.yaml)")
    assert done.returncode == 2
    assert "none-such" in done.stderr


def test_sizes_that_are_named_can_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("set.npz", images=np.zeros((24, 8, 8), np.uint8), labels=np.arange(24) % 2)
    flags = "--model cnn --model-kwargs width=4 hidden=16 --dataset npz:set.npz --strategy pmap --steps 1".split()
    assert train.main([*flags, "--global-batch-size", "21", "--devices", "5"]) == 2
    assert "5 devices do not divide it; use 20\n" in capsys.readouterr().err


def test_weights_of_bfloat16() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    from safetensors.flax import save_file

    values = RNG.normal(size=(3, 5)).astype(np.float32)
    save_file({"b": jnp.asarray(values, jnp.bfloat16), "a": jnp.asarray(values)}, "weights.safetensors")
    found, own = read_weights("weights.safetensors")
    assert not own
    np.testing.assert_array_equal(found["a"], values)
    np.testing.assert_array_equal(found["b"], values.astype(ml_dtypes.bfloat16).astype(np.float32))
    assert found["b"].dtype == np.float32
