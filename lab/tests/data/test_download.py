"""Downloads from a server of our own on this machine: resumed, interrupted, wrong, refused, disk full."""

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from lab.tests.lra.samples import largest_file

from fastmax_lab.commands.data import DATA_SETS
from fastmax_lab.data import download
from fastmax_lab.data.registry import Remote

BODY = np.random.default_rng(0).integers(0, 256, 3_000_000, np.uint8).tobytes()


class Server(ThreadingHTTPServer):
    plan: SimpleNamespace


class Handler(BaseHTTPRequestHandler):
    """Serves BODY, in parts on request; the server's plan says how it misbehaves."""

    def do_GET(self) -> None:
        assert isinstance(self.server, Server)
        plan = self.server.plan
        plan.ranges.append(self.headers["Range"])
        if plan.status:
            self.send_error(plan.status)
            return
        start = 0
        if self.headers["Range"] and plan.parts:
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(BODY) - 1}/{len(BODY)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(BODY) - start))
        self.end_headers()
        self.wfile.write(BODY[start : start + plan.cut] if plan.cut else BODY[start:])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[SimpleNamespace]:
    http = Server(("127.0.0.1", 0), Handler)
    http.plan = SimpleNamespace(ranges=[], status=0, parts=True, cut=0, port=http.server_address[1])
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield http.plan
    http.shutdown()
    thread.join()
    http.server_close()


def remote(server: SimpleNamespace, body: bytes = BODY) -> Remote:
    return Remote(f"http://127.0.0.1:{server.port}/x.bin", "sub/x.bin", len(BODY), hashlib.sha256(body).hexdigest())


def test_a_file_is_fetched_once(server: SimpleNamespace, tmp_path: Path) -> None:
    path = download.fetch(remote(server), tmp_path)
    assert path == tmp_path / "sub/x.bin"
    assert path.read_bytes() == BODY
    assert download.fetch(remote(server), tmp_path) == path
    assert server.ranges == [None]
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("parts", [True, False])
def test_an_interrupted_download_is_resumed(parts: bool, server: SimpleNamespace, tmp_path: Path) -> None:
    server.cut = 1_300_000
    with pytest.raises(OSError, match=r"1,300,000 of 3,000,000 bytes are kept"):
        download.fetch(remote(server), tmp_path)
    assert not (tmp_path / "sub/x.bin").exists()
    server.cut, server.parts = 0, parts
    assert download.fetch(remote(server), tmp_path).read_bytes() == BODY
    assert server.ranges == [None, "bytes=1300000-"]


def test_a_wrong_checksum_puts_nothing_in_place(server: SimpleNamespace, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected sha256 .*, got .*; what came was deleted"):
        download.fetch(remote(server, b"something else"), tmp_path)
    assert not list((tmp_path / "sub").iterdir())


def test_a_server_that_refuses(server: SimpleNamespace, tmp_path: Path) -> None:
    server.status = 404
    with pytest.raises(OSError, match="answered 404"):
        download.fetch(remote(server), tmp_path)
    part = tmp_path / "sub/x.bin.part"
    assert not part.parent.exists(), "nothing came, so nothing is made"
    part.parent.mkdir()
    part.write_bytes(b"from elsewhere")
    server.status = 416
    with pytest.raises(OSError, match="answered 416"):
        download.fetch(remote(server), tmp_path)
    assert not part.exists(), "the next run starts anew"


def test_no_server(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"interrupted .*; 0 of 5 bytes are kept"):
        download.fetch(Remote("http://127.0.0.1:9/x", "x", 5, "0"), tmp_path)


def test_a_disk_that_fills_up(server: SimpleNamespace, tmp_path: Path) -> None:
    with largest_file(1 << 20), pytest.raises(OSError, match=r"while writing .*1,048,576 of 3,000,000 bytes are kept"):
        download.fetch(remote(server), tmp_path)
    assert download.fetch(remote(server), tmp_path).read_bytes() == BODY
    assert server.ranges == [None, "bytes=1048576-"]


def test_a_disk_that_is_too_small_to_begin_with(server: SimpleNamespace, tmp_path: Path) -> None:
    with (
        patch("shutil.disk_usage", lambda _: SimpleNamespace(free=2_000_000)),
        pytest.raises(OSError, match="2 MB free, but 3 MB are to come"),
    ):
        download.fetch(remote(server), tmp_path)
    assert server.ranges == []


def test_the_registry_is_complete() -> None:
    """Every remote file has a checksum, a size and a safe place; every other set says what to do."""
    for name, one in DATA_SETS.items():
        assert one.name == name
        assert one.remotes or one.hint
        for file in one.remotes:
            assert file.url.startswith("https://")
            assert len(file.sha256) == 64
            assert file.size > 0
            assert ".." not in file.path
            assert any(file.path in group for group in one.patterns), "the readers look for what is fetched"
