import os
import pathlib
import time

import pytest

from jaxdp.runtime.private_folder import PrivateFolder


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> PrivateFolder:
    return PrivateFolder(tmp_path / "cache" / "steps", 1000)


def files(tmp_path: pathlib.Path) -> list[str]:
    return sorted(os.listdir(tmp_path / "cache" / "steps"))


def test_reads_what_was_written_last(folder: PrivateFolder, tmp_path: pathlib.Path) -> None:
    assert folder.read("a") is None
    folder.write("a", b"first")
    folder.write("a", b"second")
    assert folder.read("a") == b"second"
    assert folder.read("b") is None
    assert files(tmp_path) == ["a.kept"]
    assert (tmp_path / "cache" / "steps").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "cache" / "steps" / "a.kept").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 200])
def test_damage_reads_as_nothing_and_is_replaced(folder: PrivateFolder, tmp_path: pathlib.Path, content: bytes) -> None:
    folder.write("a", b"content")
    (tmp_path / "cache" / "steps" / "a.kept").write_bytes(content)
    assert folder.read("a") is None
    folder.write("a", b"content")
    assert folder.read("a") == b"content"


def test_every_flipped_bit_is_damage(folder: PrivateFolder, tmp_path: pathlib.Path) -> None:
    folder.write("a", b"content")
    file = tmp_path / "cache" / "steps" / "a.kept"
    good = file.read_bytes()
    for position in range(len(good)):
        file.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
        assert folder.read("a") is None


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_may_write_is_not_read(folder: PrivateFolder, tmp_path: pathlib.Path, mode: int) -> None:
    folder.write("a", b"content")
    (tmp_path / "cache" / "steps" / "a.kept").chmod(mode)
    assert folder.read("a") is None


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_that_others_may_write_is_not_used(folder: PrivateFolder, tmp_path: pathlib.Path, mode: int) -> None:
    folder.write("a", b"content")
    (tmp_path / "cache" / "steps").chmod(mode)
    assert folder.read("a") is None
    folder.write("b", b"content")
    assert files(tmp_path) == ["a.kept"]


def test_what_belongs_to_another_user_is_not_read(folder: PrivateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("a", b"content")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert folder.read("a") is None


def test_links_and_pipes_are_not_followed(folder: PrivateFolder, tmp_path: pathlib.Path) -> None:
    folder.write("a", b"content")
    (tmp_path / "cache" / "steps" / "b.kept").symlink_to(tmp_path / "cache" / "steps" / "a.kept")
    os.mkfifo(tmp_path / "cache" / "steps" / "c.kept")
    assert folder.read("b") is None
    assert folder.read("c") is None
    linked = tmp_path / "linked"
    linked.symlink_to(tmp_path / "cache" / "steps")
    assert PrivateFolder(linked, 1000).read("a") is None


def test_the_least_recently_used_go(folder: PrivateFolder, tmp_path: pathlib.Path) -> None:
    for number, name in enumerate("abc"):
        folder.write(name, b"x" * 200)
        os.utime(tmp_path / "cache" / "steps" / f"{name}.kept", (number, number))
    assert folder.read("a") is not None  # which is a use
    folder.write("d", b"x" * 400)
    assert files(tmp_path) == ["a.kept", "c.kept", "d.kept"]


def test_what_a_killed_process_left_is_removed_later(folder: PrivateFolder, tmp_path: pathlib.Path) -> None:
    folder.write("a", b"content")
    left = tmp_path / "cache" / "steps" / "b.123.456.unfinished"
    left.write_bytes(b"half")
    assert folder.read("b") is None
    folder.write("b", b"whole")
    assert left.exists()  # another process may still be writing it
    os.utime(left, (time.time() - 7200, time.time() - 7200))
    folder.write("c", b"whole")
    assert files(tmp_path) == ["a.kept", "b.kept", "c.kept"]


def test_a_full_disk_leaves_things_as_they_were(
    folder: PrivateFolder, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("a", b"content")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    folder.write("a", b"other")
    assert folder.read("a") == b"content"
    assert files(tmp_path) == ["a.kept"]
    PrivateFolder(pathlib.Path("/proc/nowhere"), 1000).write("a", b"content")
