"""Unpacking: what is there afterwards, and which archives are refused without a trace."""

import io
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lab.tests.lra.samples import tar, write

from fastmax_lab.data import archives


def test_unpack(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.gz", {"lra/x/one.tsv": b"1", "lra/two": b"2", "three": b"3"})
    added = archives.unpack(archive, tmp_path / "data")
    assert [path.name for path in added] == ["lra", "three"]
    assert (tmp_path / "data/lra/x/one.tsv").read_bytes() == b"1"
    with pytest.raises(FileExistsError, match="is there already"):
        archives.unpack(archive, tmp_path / "data")
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["lra", "three"]


@pytest.mark.parametrize("name", ["../evil", "/tmp/fastmax-evil", "a/../../evil"])
def test_members_outside_are_refused(name: str, tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar.gz", {"good": b"1", name: b"evil"})
    data = tmp_path / "inner/data"
    if name.startswith("/"):
        archives.unpack(archive, data)
        assert (data / name[1:]).exists(), "an absolute name becomes a relative one"
        assert not Path(name).exists()
    else:
        with pytest.raises(ValueError, match="not safe to unpack"):
            archives.unpack(archive, data)
        assert not list(data.iterdir())
        assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_outside_and_devices_are_refused(kind: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = kind, "../../outside"
        archive.addfile(info, io.BytesIO())
    with pytest.raises(ValueError, match="not safe to unpack"):
        archives.unpack(path, tmp_path / "data")
    assert not list((tmp_path / "data").iterdir())


@pytest.mark.parametrize("cut", [10, 60, -10])
def test_a_damaged_archive_leaves_nothing(cut: int, tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar.gz", {"one": bytes(range(256)) * 99, "two": b"2"})
    body = archive.read_bytes()
    archive.write_bytes(body[:cut])
    with pytest.raises(ValueError, match=r"a.tar.gz is damaged"):
        archives.unpack(archive, tmp_path / "data")
    assert not list((tmp_path / "data").iterdir())
    archive.write_bytes(body[:-5] + bytes([body[-5] ^ 1]) + body[-4:])
    with pytest.raises(ValueError, match=r"a.tar.gz is damaged, .*CRC"):
        list(archives.members(archive, lambda _: True))
    write(archive, b"this is no archive at all")
    with pytest.raises(ValueError, match=r"a.tar.gz is damaged"):
        list(archives.members(archive, lambda _: True))


def test_members_of_archive_and_folder_agree(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar.gz", {"top/a": b"1", "./top/b/c": b"2", "top/skip": b"3"})
    archives.unpack(archive, tmp_path / "data")
    read = [list(archives.members(p, lambda name: "skip" not in name)) for p in (archive, tmp_path / "data/top")]
    assert read[0] == read[1] == [("top/a", b"1"), ("top/b/c", b"2")]


def test_sizes_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse by the headers, before anything is written or read."""
    archive = tar(tmp_path / "a.tar.gz", {"one": bytes(600), "two": bytes(600)})
    with pytest.raises(ValueError, match=r"more than 1.2e-06 GB, which is the limit"):
        archives.unpack(archive, tmp_path / "data", max_bytes=1199)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(OSError, match=r"more than the 1e-06 GB that .* has free"):
        archives.unpack(archive, tmp_path / "data")
    assert not list((tmp_path / "data").iterdir())
    monkeypatch.undo()
    assert len(archives.unpack(archive, tmp_path / "data", max_bytes=1200)) == 2
    monkeypatch.setattr(archives, "MAX_MEMBER_BYTES", 599)
    with pytest.raises(ValueError, match="one has 600 bytes, more than any"):
        list(archives.members(archive, lambda _: True))


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_whatever_is_turned_in_an_archive_is_named_or_harmless(mode: Any, tmp_path: Path) -> None:
    """One bit at a time, in a sample of places: a ValueError or OSError of one line, never another exception."""
    path = tmp_path / "a.tar"
    with tarfile.open(path, mode) as archive:
        for name in ("folder/one", "folder/" + "long" * 30):
            info = tarfile.TarInfo(name)
            info.size = 300
            archive.addfile(info, io.BytesIO(bytes(range(150)) * 2))
        link = tarfile.TarInfo("folder/link")
        link.type, link.linkname = tarfile.LNKTYPE, "folder/one"
        archive.addfile(link)
    body = path.read_bytes()
    for at in range(0, len(body), max(1, len(body) // 60)):
        path.write_bytes(body[:at] + bytes([body[at] ^ 16]) + body[at + 1 :])
        message = f"{path}"
        try:
            archives.unpack(path, tmp_path / f"data{at}")
        except (ValueError, OSError) as error:
            message = str(error)
        assert "a.tar" in message
        assert "\n" not in message
