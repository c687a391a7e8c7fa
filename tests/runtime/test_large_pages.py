"""A command starts again with large pages where they help, and nothing else does."""

import os
import pathlib
import subprocess
import sys
import types

import pytest

from jaxdp.runtime import large_pages

LARGE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


@pytest.fixture
def asked(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A machine with a CPU that gives large pages on request.

    Returns the file that says the last.
    """
    mode = tmp_path / "enabled"
    mode.write_text("always [madvise] never\n")
    monkeypatch.setattr(large_pages, "_MODE", mode)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    for name in [
        name for name in os.environ if name == "GLIBC_TUNABLES" or name.startswith("MALLOC_")
    ]:
        monkeypatch.delenv(name)
    return mode


def test_a_cpu_with_glibc_asks_for_them(asked: pathlib.Path) -> None:
    assert large_pages.variables() == LARGE


@pytest.mark.parametrize(
    "variables",
    [{"GLIBC_TUNABLES": "1"}, {"MALLOC_ARENA_MAX": "1"}, {"JAX_PLATFORMS": "cuda"}],
    ids=str,
)
def test_an_accelerator_and_a_user_who_has_settled_malloc_get_none(
    asked: pathlib.Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert large_pages.variables() == {}


@pytest.mark.parametrize("mode", ["[always] madvise never", "always madvise [never]", None])
def test_linux_may_give_them_always_or_never(asked: pathlib.Path, mode: str | None) -> None:
    asked.unlink() if mode is None else asked.write_text(mode)
    assert large_pages.variables() == {}


@pytest.mark.parametrize(
    ("name", "file", "starts"),
    [
        ("jaxdp.train", "train.py", True),
        (None, "/usr/bin/jaxdp", True),
        ("pytest.__main__", "", False),
        (None, "mine.py", False),
        (None, None, False),
    ],
)
def test_only_a_command_starts_again(
    asked: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str | None,
    file: str | None,
    starts: bool,
) -> None:
    main = types.ModuleType("__main__")
    main.__spec__ = None if name is None else types.SimpleNamespace(name=name)  # pyright: ignore[reportAttributeAccessIssue]
    main.__file__ = file
    started: list[tuple[str, ...]] = []
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "__main__", main)
        patch.setattr(
            os,
            "execve",
            lambda path, words, environment: started.append(
                (path, *words, environment["GLIBC_TUNABLES"])
            ),
        )
        large_pages.restart()
    assert (
        started == [(sys.executable, sys.executable, *sys.orig_argv[1:], *LARGE.values())] * starts
    )


@pytest.mark.skipif(
    not large_pages.variables(), reason="large pages do not help here, or are there already"
)
def test_a_command_starts_again_once_with_the_same_words(tmp_path: pathlib.Path) -> None:
    note = (
        "import os, sys\nprint(os.environ.get('GLIBC_TUNABLES'), *sys.orig_argv[1:],"
        " file=open('starts', 'a'))\n"
    )
    (tmp_path / "sitecustomize.py").write_text(note)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    words = ["-m", "jaxdp.train", "--model", "none of them"]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert (tmp_path / "starts").read_text().splitlines()[:2] == [
        f"{start} {' '.join(words)}" for start in (None, *LARGE.values())
    ]
