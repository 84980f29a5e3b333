"""`fastmax data`: what it prints and returns; nothing is fetched from the web here."""

import argparse
from pathlib import Path
from unittest.mock import patch

import pytest

from fastmax.data import command, download
from fastmax.data.registry import Remote
from tests.lra.samples import tar, write


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers(dest="command"))
    return command.run(parser.parse_args(["data", *arguments]))


def test_list_says_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "imdb/train.tsv.xz", b"")
    write(tmp_path / "lra_release/tsv_data/new_aan_pairs.train.tsv", b"")
    write(tmp_path / "mnist/train-images-idx3-ubyte.gz", b"")
    assert run("list", "--data", str(tmp_path)) == 0
    lines = {line.split()[1]: line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")}
    assert "imdb/train.tsv.xz" in lines["text"]
    assert "lra_release/tsv_data" in lines["retrieval"]
    assert "generated on first use" in lines["listops"]
    assert "absent: fastmax data get image (170.1 MB)" in lines["image"]
    assert "absent" in lines["mnist"], "one of four files is not enough"


def test_get(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fetch(remote: Remote, data: Path) -> Path:
        return write(data / remote.path, b"x")

    with patch.object(download, "fetch", fetch):
        assert run("get", "mnist", "--data", str(tmp_path)) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert "absent" not in next(line for line in command.overview(tmp_path).splitlines() if "mnist" in line)


@pytest.mark.parametrize(("name", "code"), [("listops", 0), ("pathfinder", 0), ("retrieval", 1)])
def test_get_what_cannot_be_fetched_says_why(name: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("get", name) == code
    printed = capsys.readouterr()
    text = printed.err if code else printed.out
    assert "lra_release.gz" in text
    assert "fastmax data unpack" in text


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (OSError("the server is gone"), 1, "the server is gone"),
        (ValueError("expected sha256"), 1, "sha256"),
        (KeyboardInterrupt(), 130, "run the same again"),
    ],
)
def test_failures_are_told(
    error: BaseException, code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fetch(*_: object) -> Path:
        raise error

    with patch.object(download, "fetch", fetch):
        assert run("get", "text", "--data", str(tmp_path)) == code
    assert message in capsys.readouterr().err


def test_unpack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = tar(tmp_path / "lra_release.gz", {"lra_release/listops-1000/basic_train.tsv": b"[MAX 1 2 ]\t2\n"})
    assert run("unpack", str(archive), "--data", str(tmp_path / "data")) == 0
    assert "lra_release" in capsys.readouterr().out
    assert "listops-1000" in command.overview(tmp_path / "data")
    assert run("unpack", str(tmp_path / "nothing"), "--data", str(tmp_path)) == 1


def test_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("get", "imagenet")
    assert "tinyshakespeare" in capsys.readouterr().err
