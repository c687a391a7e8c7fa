"""What others wrote or named ends in one line: texts, names, links, pipes, and numbers that would
take all memory.
"""

# Over 300 lines: one test for each kind of input that was once an error.

import io
import json
import math
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import zipfile
import zlib

import jax.numpy as jnp
import numpy as np
import pytest
import tifffile
from flax import nnx
from PIL import Image
from runs import error_line, run_train

from jaxdp import data, evaluate, models, predict
from jaxdp.build import model_size
from jaxdp.config import TrainConfig, to_yaml
from jaxdp.data import image_file as images
from jaxdp.data.find_images import find_images
from jaxdp.data.npz_file import open_npz, read_array
from jaxdp.data.resize import Resize
from jaxdp.data.sources import BadExample
from jaxdp.errors import ConfigError
from jaxdp.inference import files
from jaxdp.inference.weights import read_weights
from jaxdp.plugins.registry import check_keywords
from jaxdp.runtime import free_memory
from jaxdp.text.messages import printable
from jaxdp.text.parsing import is_finite, parse_json, parse_yaml

LAUGHS = "a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
SMALL = (
    "--model cnn --model-kwargs width=4 hidden=16 --global-batch-size 16 --steps 2 --strategy"
    " single"
)
RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 5000, "nested"),
        ("a: " + "[" * 60 + "]" * 60, "nested more than 50 levels deep"),
        (LAUGHS, "it has the alias *a; repeat the value"),
        ("&a [*a]", "it has the alias *a; repeat the value"),
        ("{a: 1", "expected ',' or '}'"),
        ("!!python/object/apply:os.system [exit]", "could not determine a constructor"),
        ("!!int ''", "string index out of range"),
        ("a\0b", "special characters are not allowed"),
        ("seed: " + "1:" * 10**6 + "1", "more than 1,048,576 characters"),  # all these took minutes
        ("seed: !!int " + "1:" * 10**5 + "1", "a number in it has more than 1,000 characters"),
        ("seed: " + "9" * 10**6, "a number in it has more than 1,000 characters"),
        # Python reads, but does not print it.
        ("seed: 0x" + "f" * 5000, "a number in it has more than 1,000 characters"),
        ("plugins: [" + "a," * 500_000 + "a]", "more than 100,000 values"),
    ],
    ids=lambda text: text[:20],
)
def test_yaml_of_others(text: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        parse_yaml(text)
    pathlib.Path("settings.yaml").write_text(text)
    assert run_train("--config settings.yaml") == 2
    line = error_line(capsys)
    assert line.startswith("jaxdp.train: error: --config settings.yaml: cannot be read: ")


def test_colons_make_no_number_to_base_60() -> None:
    assert parse_yaml("clock: 1:30\ntime: 1:00:00\nlong: " + "1:" * 1000 + "1")["clock"] == "1:30"
    numbers = "[1, -2, 0x10, 017, 0b11, 1_000, 1.5, -1.5e+3, .inf, !!float '2']"
    assert parse_yaml(numbers) == [1, -2, 16, 15, 3, 1000, 1.5, -1500.0, math.inf, 2.0]
    config = TrainConfig.of(**parse_yaml("model: cnn\ndataset: 1:30"))
    assert TrainConfig.of(**parse_yaml(to_yaml(config))) == config


def test_a_message_does_not_repeat_a_long_value(capsys: pytest.CaptureFixture[str]) -> None:
    for text, start in (
        ("seed: " + "1:" * 400_000 + "1", "--seed 1:1:"),
        ("? " + "x" * 900_000 + "\n: 1", "--config settings.yaml: unknown setting 'xxx"),
        ("model_kwargs: " + "x" * 900_000, "--model-kwargs xxx"),
    ):
        pathlib.Path("settings.yaml").write_text(text)
        assert run_train("--config settings.yaml") == 2
        line = error_line(capsys)
        assert line.startswith(f"jaxdp.train: error: {start}")
        assert "..." in line
        assert len(line) < 2000


def test_what_is_repeated_is_written_twice() -> None:
    repeated = {"a": [1, 2]}
    config = TrainConfig.of(model_kwargs=repeated, task_kwargs=repeated)
    assert TrainConfig.of(**parse_yaml(to_yaml(config))) == config
    assert parse_yaml("") is None
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * 100_000)


def test_no_text_has_a_nul_character() -> None:
    for settings in ({"run_dir": "a\0b"}, {"dataset": "npz:a\0b"}, {"plugins": ("a\0b.py",)}):
        with pytest.raises(ConfigError, match="must not contain a NUL character"):
            TrainConfig.of(**settings)


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
    path = write_npz(
        {"descr": "|u1", "fortran_order": False, "shape": (2**40, 256, 256, 1)}, b"abc"
    )
    with open_npz(path) as file, pytest.raises(ValueError, match="allocate"):
        read_array(file, "images")
    write_npz({"descr": "|u1", "fortran_order": False, "shape": (30, 8, 8)}, bytes(30 * 64))
    with open_npz(path) as file:
        assert read_array(file, "images").shape == (30, 8, 8)
    # NumPy multiplies in 64 bits.
    write_npz({"descr": "|u1", "fortran_order": False, "shape": (10**20, 0)}, b"")
    with open_npz(path) as file, pytest.raises(ValueError):  # noqa: PT011 - NumPy's words
        read_array(file, "images")
    np.savez_compressed(
        "large.npz", images=np.zeros((65, 1024, 1024), np.uint8), labels=np.arange(65) % 2
    )
    assert pathlib.Path("large.npz").stat().st_size < 2**18
    monkeypatch.setattr(free_memory, "available_memory_bytes", lambda: 2**20)
    assert run_train(f"{SMALL} --dataset npz:large.npz") == 2
    assert (
        "images cannot be read: it would take 65.0 MiB of memory, and 1.0 MiB are free"
        in capsys.readouterr().err
    )
    np.savez("pickled.npz", images=np.array([{}], object), labels=np.zeros(1))
    assert run_train(f"{SMALL} --dataset npz:pickled.npz") == 2
    assert (
        "images cannot be read: it holds Python objects, which are not read"
        in capsys.readouterr().err
    )


def test_the_free_memory_is_that_of_the_machine() -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    assert 0 < free_memory.available_memory_bytes() < page * os.sysconf("SC_PHYS_PAGES")
    with pytest.raises(ValueError, match=r"would take .* of memory"):
        free_memory.check_memory(2**60)


def test_labels_that_are_no_class_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(
        "set.npz", images=np.zeros((20, 8, 8), np.uint8), labels=np.arange(20) + 2147483647 - 19
    )
    assert run_train(f"{SMALL} --dataset npz:set.npz") == 2
    assert (
        "its highest class number is 2147483647; number the classes from 0 on"
        in capsys.readouterr().err
    )
    with pytest.raises(ConfigError, match="highest class number is 99999;"):
        data.from_arrays(np.zeros((2, 8, 8), np.uint8), np.array([0, 99999]))


def test_images_without_pixels(capsys: pytest.CaptureFixture[str]) -> None:
    for shape in ((20, 0, 8, 1), (20, 8, 0), (20, 8, 8, 0), (0, 8, 8)):
        np.savez("set.npz", images=np.zeros(shape, np.uint8), labels=np.arange(shape[0]) % 2)
        assert run_train(f"{SMALL} --dataset npz:set.npz") == 2, shape
        line = error_line(capsys)
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
    found = [str(path) for path in find_images(pathlib.Path("set/a"))]
    for place, target in (
        ("set/a/self", "."),
        ("set/a/up", ".."),
        ("set/loop", "."),
        ("set/a/x", "y"),
        ("set/a/y", "x"),
        ("set/b/again", "deep"),
        ("set/a/first.png", "first.png"),
        ("set/b/2nd", "../b"),
        ("set/b/3rd", "3rd/b"),
    ):
        os.symlink(target, place)
    os.mkfifo("set/a/pipe.png")
    os.mkfifo("set/pipe.png")
    assert [str(path) for path in find_images(pathlib.Path("set/a"))] == found
    assert len(find_images(pathlib.Path("set/b"))) == 10
    dataset = data.from_folder("set")
    assert dataset.class_names == ("a", "b")
    assert sum(len(split) for split in dataset.splits().values()) == 20
    assert len(files.find(["set"])) == 20
    os.symlink("../../elsewhere", "set/a/more")
    os.symlink("../../elsewhere", "set/a/more-again")
    os.symlink("../.hidden", "set/b/shown")
    # What lies elsewhere belongs to it, once.
    assert len(find_images(pathlib.Path("set/a"))) == 20
    assert len(find_images(pathlib.Path("set/b"))) == 20


def test_names_do_nothing_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert printable("a\n\x1b[31mb\udcff\u202ec\t") == "a \\x1b[31mb\\udcff\\u202ec "
    assert printable("Größe 大きさ 👩‍🔬 $x$ [b]") == "Größe 大きさ 👩‍🔬 $x$ [b]"
    evil = os.fsdecode(b"\x1b[31mred\nline\xff.png")
    for name in ("a", os.fsdecode(b"b\xff\x1b[2J[b]$\\frac{$")):
        for number in range(10):
            picture(f"cost$_$/{name}/{number}.png")
    picture(evil)
    run = "x[/y]z$_$"
    assert run_train(f"{SMALL} --dataset folder:cost$_$ --run-dir {run}") == 0
    printed = capsys.readouterr()
    assert "x[/y]z$_$" in printed.out
    assert "warning" not in printed.err
    for name in ("confusion.png", "curves.png"):
        assert (pathlib.Path(run) / "plots" / name).is_file()
    assert (
        json.loads((pathlib.Path(run) / "dataset.json").read_text())["class_names"][1]
        == "b\\udcff\\x1b[2J[b]$\\frac{$"
    )
    assert predict.main([run, evil]) == 0
    pathlib.Path(evil).write_bytes(b"no picture")
    assert predict.main([run, evil]) == 2
    printed = capsys.readouterr()
    for text in (printed.out, printed.err):
        assert "\x1b" not in text
        assert "\udcff" not in text
    assert len(printed.err.splitlines()) == 1


def test_names_that_are_not_utf8(capsys: pytest.CaptureFixture[str]) -> None:
    """They train, and tables show them as messages do: with escapes, which tell one from
    another.
    """
    odd, folder = os.fsdecode(b"photos/b\xff/0\xfe.png"), os.fsdecode(b"photos\xff")
    for name in ("photos/a", os.path.dirname(odd)):
        for number in range(10):
            picture(f"{name}/{number}.png")
    picture(odd)
    shutil.copytree("photos", folder)
    assert run_train(f"{SMALL} --dataset folder:{folder}") == 0
    (run,) = pathlib.Path("runs").iterdir()
    assert run.name.startswith("cnn-folder-photos_udcff-")
    of_photos = ["--dataset", "folder:photos", "--split", "all"]
    assert evaluate.main([str(run), *of_photos]) == 0
    escaped = r"photos/b\udcff/0\udcfe.png"
    assert predict.main([str(run), odd, "--csv", "classes.csv", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out.splitlines()[-1])["file"] == escaped
    assert "was saved with" not in said.err
    assert escaped in pathlib.Path("classes.csv").read_text(encoding="utf-8")
    pathlib.Path(odd).write_bytes(b"no picture")
    flags = "--dataset folder:photos --on-bad-example skip --run-dir run"
    assert run_train(f"{SMALL} {flags}") == 0
    assert escaped in pathlib.Path("run/skipped.csv").read_text(encoding="utf-8")


def test_a_run_directory_that_is_not_utf8_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Orbax saves nothing there: it is refused before it trains."""
    run = os.fsdecode(b"run\xff")
    assert run_train(f"{SMALL} --run-dir {run}") == 2
    said = capsys.readouterr()
    assert not pathlib.Path(run).exists()
    assert run_train(f"{SMALL} --run-dir run") == 0
    pathlib.Path("run").rename(run)
    capsys.readouterr()
    assert evaluate.main([run]) == 2
    for lines in (said.err.splitlines(), capsys.readouterr().err.splitlines()):
        assert len(lines) == 1
        assert r"--run-dir run\udcff: the path " in lines[0]
        assert r"run\udcff is not UTF-8; give another folder" in lines[0]


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    python = f"{sys.executable} -m jaxdp."
    return subprocess.run(
        ["bash", "-c", command.replace("jaxdp.", python)],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=300,
    )


def test_standard_output_that_is_closed_or_full() -> None:
    full = shell(f"jaxdp.train {SMALL} --run-dir run > /dev/full")
    assert full.returncode == 1
    reason = "standard output cannot be written: No space left on device"
    assert full.stderr.splitlines()[-1].startswith(f"jaxdp.train: error: {reason}")
    assert json.loads(pathlib.Path("run/summary.json").read_text())["status"] == "done"
    closed = shell("jaxdp.convert export run --output a.safetensors >&- 2>&- <&-")
    assert (closed.returncode, closed.stdout, closed.stderr) == (0, "", "")
    closed = shell("jaxdp.convert export run --output b.safetensors >&-")
    assert (closed.returncode, closed.stderr) == (0, "")


@pytest.mark.parametrize("streams", ["2>&-", ">&- 2>&- <&-", "2> /dev/full"])
def test_exit_codes_need_no_standard_error(streams: str) -> None:
    assert shell(f"jaxdp.train --no-such-flag {streams}").returncode == 2
    assert shell(f"jaxdp.launch --no-such-flag {streams}").returncode == 2
    bad = f"{sys.executable} -m jaxdp no-such-command {streams}"
    assert subprocess.run(["bash", "-c", bad], timeout=60).returncode == 2


def test_training_needs_no_standard_streams() -> None:
    done = shell(f"jaxdp.train {SMALL} --run-dir run >&- 2>&- <&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads(pathlib.Path("run/summary.json").read_text())["status"] == "done"


def test_a_platform_that_is_not_there() -> None:
    done = shell(f"jaxdp.train {SMALL}", JAX_PLATFORMS="cuda")
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
    assert run_train("--config pipe.yaml") == 2
    assert "--config pipe.yaml: is no regular file" in capsys.readouterr().err
    endless = shell("ulimit -v 16000000; jaxdp.train --config /dev/zero")
    assert (endless.returncode, endless.stderr) == (
        2, "jaxdp.train: error: --config /dev/zero: is no regular file; give a file of settings\n",
    )  # fmt: skip
    endless = shell("ulimit -v 16000000; jaxdp.train --config <(cat /dev/zero)")
    assert endless.returncode == 2
    assert "cannot be read: it has more than 1,048,576 characters" in endless.stderr
    pathlib.Path("settings.yaml").write_text("strategy: none-such")
    done = shell("jaxdp.train --config <(cat settings.yaml)")
    assert done.returncode == 2
    assert "none-such" in done.stderr


@pytest.mark.parametrize(
    ("examples", "size", "group", "remedy"),
    [
        (24, "21", "replica", "use 20\n"),
        (90, "21", "group:4", "use 20 or 40\n"),
        (90, "21", "global", "use 20 or 25\n"),
        (
            90,
            "41",
            "group:41",
            "there are 81 examples to train on: use fewer devices or smaller groups\n",
        ),
    ],
)
def test_sizes_that_are_named_can_be_used(
    examples: int, size: str, group: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = np.arange(examples) % 2
    np.savez("set.npz", images=np.zeros((examples, 8, 8), np.uint8), labels=labels)
    flags = f"--dataset npz:set.npz --strategy pmap --devices 5 --batch-norm {group}"
    assert run_train(f"{SMALL} {flags} --global-batch-size {size}") == 2
    assert f"5 devices do not divide it; {remedy}" in capsys.readouterr().err


def test_weights_of_bfloat16() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    from safetensors.flax import save_file

    values = RNG.normal(size=(3, 5)).astype(np.float32)
    save_file(
        {"b": jnp.asarray(values, jnp.bfloat16), "a": jnp.asarray(values)}, "weights.safetensors"
    )
    found, own = read_weights("weights.safetensors")
    assert not own
    np.testing.assert_array_equal(found["a"], values)
    np.testing.assert_array_equal(found["b"], values.astype(ml_dtypes.bfloat16))


def test_a_limit_on_the_memory_of_the_process_counts() -> None:
    limited = (
        "import resource\nfrom jaxdp.runtime import free_memory\nresource.setrlimit(resource.RLIMIT_AS,"
        " (2**30, 2**30))\nprint(free_memory.available_memory_bytes())"
    )
    found = subprocess.run(
        [sys.executable, "-c", limited], capture_output=True, text=True, check=True
    )
    assert 0 < int(found.stdout) < 2**30


def test_numbers_of_hundreds_of_digits_in_files() -> None:
    digits = "9" * 400
    for text, says in (
        (f"learning_rate: {digits}", "must be a number with fewer digits"),
        (f"model: cnn\nmodel_kwargs: {{width: {digits}}}", "must be a finite number"),
        ("model_kwargs: {1: 2}", "must be a mapping of names"),
    ):
        with pytest.raises(ConfigError, match=says):
            check_keywords(
                "model_kwargs", models.CNN, TrainConfig.of(**parse_yaml(text)).model_kwargs, ()
            )
    assert not is_finite(int(digits))
    assert is_finite(1)
    assert not is_finite(float("nan"))
    assert not is_finite(True)


def test_a_model_that_is_too_large_for_the_memory(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_size, "available_memory_bytes", lambda: 2**20)
    flags = "--model cnn --strategy single --global-batch-size 16 --steps 1 --run-dir run"
    assert run_train(f"{flags} --model-kwargs width=1000 hidden=16") == 2
    line = error_line(capsys)
    found = re.fullmatch(
        r"jaxdp.train: error: --model-kwargs width=1000: its parameters and gradients take \S+ MiB,"
        r" and 1.0 MiB are free; "
        r"use at most width=(\d+)",
        line,
    )
    assert found is not None, line
    assert not pathlib.Path("run").exists()
    largest = int(found[1])
    parameters = [
        models.parameter_count(
            models.create(
                "cnn", num_classes=10, in_channels=1, rngs=nnx.Rngs(0), width=width, hidden=16
            )
        )
        for width in (largest, largest + 1)
    ]
    assert 8 * parameters[0] <= 2**20 < 8 * parameters[1]
    monkeypatch.setattr(model_size, "available_memory_bytes", lambda: 2**12)
    assert run_train(flags) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("; choose a smaller one")


def test_a_tiff_file_says_what_it_takes_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    path, pixels = pathlib.Path("odd.tif"), np.zeros((8, 8), np.uint8)

    def says(*edits: tuple[str, int], **kwargs: object) -> str:
        tifffile.imwrite(path, pixels, **kwargs)
        with tifffile.TiffFile(path, mode="r+b") as file:
            for name, value in edits:
                file.pages[0].tags[name].overwrite(value)
        with pytest.raises(BadExample) as caught:
            images.read_image(path, "it")
        return str(caught.value)

    many = (
        '<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06"><Image ID="Image:0"><Pixels'
        ' ID="Pixels:0" DimensionOrder="XYCZT" Type="uint8" SizeX="8" SizeY="8" SizeC="1"'
        ' SizeZ="100000000" SizeT="1"><TiffData IFD="0" PlaneCount="1"/></Pixels></Image></OME>'
    )
    assert "its metadata claim 100000000 planes" in says(description=many, metadata=None)
    assert "its metadata claim 1000000000 planes" in says(
        description='{"shape": [1000000000, 8, 8]}', metadata=None
    )
    assert images.read_header(path) is None
    assert "it has no pixels" in says(("ImageLength", 0))
    assert "it would take 4194304 TiB of memory" in says(
        ("ImageWidth", 2**31 - 1), ("ImageLength", 2**31 - 1)
    )
    stacked = np.zeros((3, 5, 8, 8), np.uint8)
    tifffile.imwrite(path, stacked, ome=True)
    assert images.read_header(path, "pages").sizes == ((8, 8),) * 15
    monkeypatch.setattr(free_memory, "available_memory_bytes", lambda: 2**26)
    assert "it would take 100 MiB of memory, and 64.0 MiB are free" in says(
        ("ImageWidth", 10240), ("ImageLength", 10240), compression="zlib"
    )


def test_a_small_file_of_a_huge_picture_is_not_unpacked() -> None:
    side = 2 * math.isqrt(Image.MAX_IMAGE_PIXELS or 0)
    content = io.BytesIO()
    Image.new("L", (8, 8)).save(content, format="PNG")
    header = b"IHDR" + struct.pack(">II", side, side) + content.getvalue()[24:29]
    path = pathlib.Path("huge.png")
    path.write_bytes(
        content.getvalue()[:12]
        + header
        + struct.pack(">I", zlib.crc32(header))
        + content.getvalue()[33:]
    )
    with pytest.raises(BadExample, match=rf"{side**2} pixels\) exceeds limit"):
        images.read_image(path, "it")


def test_a_line_of_pixels_is_not_blown_up() -> None:
    line = np.zeros((1, 60000, 1), np.uint8)
    with pytest.raises(
        ConfigError, match=r"resize_crop:224: an image of 1x60000 pixels would become 224x13440000"
    ):
        Resize.parse("resize_crop:224").apply(line)
    assert Resize.parse("letterbox:224").apply(line).shape == (224, 224, 1)
    assert Resize.parse("resize_crop:8").apply(line[:, :900]).shape == (8, 8, 1)
