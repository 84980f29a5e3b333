"""`fastmax-lab data`: what it prints and returns; nothing is fetched from the web here."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
import urllib.error
from pathlib import Path
from unittest.mock import patch

import pytest
from lab.tests.lra.samples import tar, write

from fastmax_lab import cli
from fastmax_lab.commands import data as command
from fastmax_lab.data import download
from fastmax_lab.data.registry import Remote


def run(*arguments: str) -> int:
    return cli.main(["data", *arguments])


def test_list_says_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    write(tmp_path / "imdb/train.tsv.xz", b"")
    write(tmp_path / "lra_release/tsv_data/new_aan_pairs.train.tsv", b"")
    write(tmp_path / "mnist/train-images-idx3-ubyte.gz", b"")
    assert run("list", "--data", str(tmp_path)) == 0
    lines = {line.split()[1]: line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")}
    assert "imdb/train.tsv.xz" in lines["text"]
    assert "lra_release/tsv_data" in lines["retrieval"]
    assert "generated on first use" in lines["listops"]
    assert "absent: fastmax-lab data get image (170.1 MB)" in lines["image"]
    assert "absent" in lines["mnist"], "one of four files is not enough"


def test_list_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "tinyshakespeare.txt", b"")
    assert run("list", "--data", str(tmp_path), "--json") == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["tinyshakespeare"]["there"]
    assert found["tinyshakespeare"]["files"] == ["tinyshakespeare.txt"]
    assert not found["mnist"]["there"]
    assert "fastmax-lab data get mnist" in found["mnist"]["advice"]


def test_get_sees_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under any of the names that the readers know, not only that of the canonical file."""
    file = write(tmp_path / "tinyshakespeare/input.txt", b"brought by hand")
    assert run("get", "tinyshakespeare", "--data", str(tmp_path)) == 0
    assert capsys.readouterr().out == f"tinyshakespeare is there already: {file}\n"


@pytest.mark.parametrize(
    "reason",
    [
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
        OSError(errno.ENETUNREACH, "Network is unreachable"),
    ],
)
def test_no_network_says_so_and_how_to_do_without(
    reason: OSError, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with patch("urllib.request.urlopen", side_effect=urllib.error.URLError(reason)):
        assert run("get", "tinyshakespeare", "--data", str(tmp_path / "new")) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(
        "fastmax-lab data get: no network: raw.githubusercontent.com cannot be reached; to bring it by hand"
    )
    assert printed.endswith(f"input.txt (1.1 MB) at {tmp_path / 'new' / 'tinyshakespeare.txt'}\n")
    assert not (tmp_path / "new").exists()


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
    assert "fastmax-lab data unpack" in text


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
    with pytest.raises(SystemExit) as stop:
        run("unpack", str(tmp_path / "nothing"), "--data", str(tmp_path))
    assert stop.value.code == 2


def test_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("get", "imagenet")
    assert "tinyshakespeare" in capsys.readouterr().err


def test_what_cannot_be_unpacked_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    for body in (b"", b"this is no archive" * 99, bytes(2000)):
        assert run("unpack", str(write(tmp_path / "a.gz", body)), "--data", str(data)) in (0, 1)
        assert capsys.readouterr().err.count("\n") == (1 if body != bytes(2000) else 0)
    big = tar(tmp_path / "big.gz", {"one": bytes(600_000), "two": bytes(600_000)})
    assert run("unpack", str(big), "--data", str(data), "--max-size", "0.001") == 1
    assert "holds more than 0.001 GB, which is the limit" in capsys.readouterr().err
    assert not data.exists() or not list(data.iterdir())
    with pytest.raises(SystemExit) as stop:
        run("unpack", str(big), "--max-size", "0")
    assert stop.value.code == 2


@pytest.mark.slow
def test_unpacking_that_is_terminated_leaves_nothing(tmp_path: Path) -> None:
    path, data = tmp_path / "large.tar", tmp_path / "data"
    with tarfile.open(path, "w") as archive:
        for number in range(20_000):
            archive.addfile(tarfile.TarInfo(f"folder/{number}"))
    command = [sys.executable, "-m", "fastmax_lab", "data", "unpack", str(path), "--data", str(data)]
    process = subprocess.Popen(command, env=os.environ, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not list(data.glob(".draft-*/folder/*")):
        time.sleep(0.001)
    process.send_signal(signal.SIGTERM)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert printed == ""
    assert not list(data.iterdir())
