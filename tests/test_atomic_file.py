"""Files written in one step: where they go, what they refuse to replace, and what an error names."""

import errno
import os
import stat
from pathlib import Path

import pytest

from fastmax._atomic_file import remove_partial, write_whole

needs_linux = pytest.mark.skipif(not Path("/proc/self/comm").exists(), reason="there is no /proc")


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    for content in (b"first", b"second"):
        write_whole(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path], "no partial file is left"


@pytest.mark.parametrize("there", [True, False], ids=["target", "dangling"])
def test_a_link_stays_and_its_target_is_written(tmp_path: Path, there: bool) -> None:
    target, link = tmp_path / "data" / "target.json", tmp_path / "link.json"
    target.parent.mkdir()
    if there:
        target.write_bytes(b"old")
    link.symlink_to("data/target.json")
    write_whole(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert sorted(tmp_path.rglob("*")) == sorted([target.parent, target, link])


def test_a_pipe_is_written_through(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(path, b"through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    link = tmp_path / "nothing"
    link.symlink_to(os.devnull)
    write_whole(link, b"gone")
    assert link.is_symlink()
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_device_is_named() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_whole(Path("/dev/full"), b"x")


def test_a_full_disk_names_the_file_and_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_whole(path, b"new")
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_errors_name_the_path_that_was_given(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for path, kind in {
        tmp_path: IsADirectoryError,
        tmp_path / "absent" / "result.json": FileNotFoundError,
        tmp_path / "file" / "result.json": NotADirectoryError,
        tmp_path / "loop": OSError,
    }.items():
        with pytest.raises(kind) as caught:
            write_whole(path, b"x")
        assert caught.value.filename == str(path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "loop"]


@needs_linux
@pytest.mark.parametrize("name", ["comm", "absent"])
def test_a_file_of_proc_is_refused(name: str, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(f"/proc/self/{name}")
    for path in (Path(f"/proc/self/{name}"), link):
        with pytest.raises(PermissionError, match="/proc") as caught:
            write_whole(path, b"x")
        assert caught.value.filename == str(path)


@needs_linux
def test_a_pipe_under_dev_fd_is_written_through() -> None:
    """As `--out /dev/stdout` in a pipeline, whose links lead through /proc."""
    reading, writing = os.pipe()
    write_whole(Path(f"/dev/fd/{writing}"), b"through")
    os.close(writing)
    with os.fdopen(reading, "rb") as reader:
        assert reader.read() == b"through"


def test_a_long_name_leaves_room_for_the_partial_file(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    write_whole(path, b"x")
    assert path.read_bytes() == b"x"


def test_partial_files_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".0f.partial").touch()
    (tmp_path / "kept").touch()
    remove_partial(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
