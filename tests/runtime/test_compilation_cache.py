"""Compiled programs are kept for the next process, unless another user can have put them there."""

import os
import pathlib
import re
import stat
import subprocess
import sys
from collections.abc import Callable

import pytest

import jaxdp
from jaxdp.runtime import compilation_cache

COMPILE = """
from jaxdp.runtime import platform
platform.configure(None)
import jax
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
found = []
jax.monitoring.register_event_listener(lambda event, **_: found.append(event))
jax.jit(lambda x: x * 3 + 1)(2.0)
print(sum(event.endswith("compilation_cache/cache_hits") for event in found))
"""


def compile_in_a_process(home: pathlib.Path, **variables: str) -> tuple[int, str]:
    """Returns how many programs were found in the cache, and what was said on standard error."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment |= {"XDG_CACHE_HOME": str(home), "XLA_FLAGS": ""} | variables
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=True
    )
    # JAX 0.10.0 takes no note of two features of AMD's processors and says so of each program;
    # 0.10.2 knows them.
    return int(done.stdout), re.sub(
        r"E\d{4} .*prefer-no-(gather|scatter) is not +supported.*\n", "", done.stderr
    )


def test_compiled_programs_are_kept_for_the_next_process(tmp_path: pathlib.Path) -> None:
    assert compile_in_a_process(tmp_path) == (0, "")
    (folder,) = (tmp_path / "jaxdp").iterdir()
    kept = sorted(folder.glob("*-cache"))
    assert kept
    # A process was killed over one program: its file is cut short, and the note of its use is
    # missing.
    kept[0].write_bytes(kept[0].read_bytes()[:100])
    kept[0].with_name(kept[0].name.removesuffix("-cache") + "-atime").unlink()
    hits, said = compile_in_a_process(tmp_path)
    assert (hits, said) == (len(kept) - 1, "")
    assert compile_in_a_process(tmp_path) == (len(kept), "")


def test_where_programs_cannot_be_kept_they_are_compiled_again(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert compile_in_a_process(tmp_path / "file") == (0, "")
    own = tmp_path / "own"
    assert compile_in_a_process(tmp_path, JAX_COMPILATION_CACHE_DIR=str(own)) == (0, "")
    assert list(own.glob("*-cache"))
    assert not (tmp_path / "jaxdp").exists()


@pytest.fixture
def home(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The user's cache directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    # Else the value that a test leaves would stay.
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    return tmp_path / "home"


@pytest.fixture
def folder(home: pathlib.Path) -> pathlib.Path:
    """The folder of compiled programs, with one of them."""
    folder = compilation_cache._private_folder()
    (folder / "a-cache").write_bytes(b"machine code")
    (folder / "a-atime").write_bytes(b"now")
    return folder


def refusal(capsys: pytest.CaptureFixture[str]) -> str:
    """Returns the one line that says why there is no cache, here and in child processes."""
    compilation_cache.enable()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == ""
    (line,) = capsys.readouterr().err.splitlines()
    compilation_cache.enable()
    assert capsys.readouterr().err == ""  # it is said once
    return line


def contents(folder: pathlib.Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.lstat().st_mode) for path in [folder, *folder.rglob("*")])


@pytest.mark.parametrize(("given", "expected"), [(None, "0.1"), ("5", "5")])
def test_a_folder_of_the_user_keeps_short_compilations_too(
    given: str | None,
    expected: str,
    home: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shortest, largest = (
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
        "JAX_COMPILATION_CACHE_MAX_SIZE",
    )
    for name in (shortest, largest):
        monkeypatch.setenv(name, "")  # else the value that a test leaves would stay
        monkeypatch.delenv(name)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    if given is not None:
        monkeypatch.setenv(shortest, given)
    monkeypatch.setattr(
        compilation_cache,
        "set_options",
        lambda options: os.environ.update(
            {name.upper(): str(value) for name, value in options.items()}
        ),
    )
    compilation_cache.enable()
    assert os.environ[shortest] == expected
    assert largest not in os.environ
    assert not home.exists()


def test_what_is_made_is_private(tmp_path: pathlib.Path, home: pathlib.Path) -> None:
    before = os.umask(0)
    try:
        folder = compilation_cache._private_folder()
    finally:
        os.umask(before)
    assert folder.parent == home / "jaxdp"
    for made in (home, home / "jaxdp", folder):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_a_parent_like_tmp_is_safe_and_a_link_is_resolved(
    home: pathlib.Path,
    folder: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home.chmod(0o1777)
    (tmp_path / "link").symlink_to(home)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "link"))
    assert compilation_cache._private_folder() == folder


Spoil = Callable[[pathlib.Path], object]


def link_to_a_folder_of_all(folder: pathlib.Path) -> None:
    other = folder.parent.parent.parent / "shared"
    folder.rename(other)
    other.chmod(0o777)
    folder.symlink_to(other)


SPOILED: dict[str, tuple[Spoil, str]] = {
    "folder 777": (lambda folder: folder.chmod(0o777), r"other users can write \S+; remove it"),
    "folder 755": (lambda folder: folder.chmod(0o755), r"other users can open \S+; remove it"),
    "folder with sticky bit": (
        lambda folder: folder.chmod(0o1777),
        r"other users can open \S+; remove it",
    ),
    "parent 777": (
        lambda folder: folder.parent.chmod(0o777),
        r"other users can write \S+/jaxdp; correct that",
    ),
    "its parent 770": (
        lambda folder: folder.parent.parent.chmod(0o770),
        r"other users can write \S+/home; correct that",
    ),
    "folder a link": (link_to_a_folder_of_all, r"other users can write \S+/shared; remove it"),
}


@pytest.mark.parametrize("case", SPOILED)
def test_what_others_can_change_is_left_alone(
    case: str, home: pathlib.Path, folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, said = SPOILED[case]
    spoil(folder)
    before = contents(home)
    remedy = "or set JAX_COMPILATION_CACHE_DIR to a folder that only you can write"
    assert re.fullmatch(f"jaxdp: compiled programs are not kept: {said}, {remedy}", refusal(capsys))
    assert contents(home) == before


@pytest.mark.skipif(
    os.geteuid() != 0, reason="NOT TESTED: only root can give a file to another user"
)
@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("../..", "correct that"),
        ("..", "correct that"),
        ("", "remove it"),
    ],
)
def test_what_belongs_to_another_user_is_left_alone(
    path: str,
    remedy: str,
    home: pathlib.Path,
    folder: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = os.path.realpath(folder / path)
    os.chown(other, 65534, 65534)
    before = contents(home)
    assert f": {other} belongs to another user; {remedy}" in refusal(capsys)
    assert contents(home) == before


def test_a_user_without_a_home_directory_has_no_cache(
    home: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def expanduser(path: pathlib.Path) -> pathlib.Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(pathlib.Path, "expanduser", expanduser)
    compilation_cache.enable()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == ""


@pytest.mark.skipif(sys.platform != "linux", reason="counts memory maps as Linux shows them")
@pytest.mark.parametrize("limit", [0, 10**9])
def test_programs_of_trainers_that_are_gone_do_not_add_up(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the release each Trainer leaves its programs' memory maps: the second case."""
    monkeypatch.setattr(compilation_cache, "_MOST_MAPS", limit)
    counts = []
    for _ in range(3):
        jaxdp.Trainer("cnn", model_kwargs={"width": 4, "hidden": 16}).fit(steps=1)
        counts.append(pathlib.Path("/proc/self/maps").read_bytes().count(b"\n"))
    assert (counts[2] - counts[1] > 20) == (limit > 0), counts
