"""One file from the web: resumed where it was interrupted, and put in place only when its checksum is right."""

import errno
import hashlib
import http.client
import os
import shutil
import socket
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from fastmax_lab._progress import Progress, waiting
from fastmax_lab.data.registry import Remote

_PIECE = 1 << 20
_TIMEOUT = 60.0


def fetch(remote: Remote, data: Path) -> Path:
    """Return the file in the data folder, fetched if it is missing. An interrupted download is continued.

    OSError if the network, the server or the disk fails, with how to bring the file by hand; ValueError for a wrong checksum.
    """
    path = data / remote.path
    if path.exists():
        return path
    part = path.with_name(path.name + ".part")
    _check_free_space(next(parent for parent in path.absolute().parents if parent.exists()), remote.size - _size(part))
    if _size(part) < remote.size:
        try:
            _receive(remote, part)
        except urllib.error.HTTPError as error:
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                part.unlink()  # the server's file is shorter than this part of another one
            answered = f"the server answered {error.code} {error.reason}"
            raise OSError(f"{remote.url}: {answered}; {_by_hand(remote, path)}") from error
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            if _no_network(error):
                raise OSError(f"no network: {_host(remote)} cannot be reached; {_by_hand(remote, path)}") from error
            raise OSError(f"{remote.url}: interrupted ({error}); {_resume_hint(part, remote)}") from error
        except OSError as error:
            raise OSError(
                error.errno, f"{error.strerror} while writing {part}; {_resume_hint(part, remote)}"
            ) from error
    if _size(part) < remote.size:
        raise OSError(f"{remote.url}: the connection ended early; {_resume_hint(part, remote)}")
    digest = _sha256(part)
    if digest != remote.sha256:
        part.unlink()
        raise ValueError(
            f"{remote.url}: expected sha256 {remote.sha256}, got {digest}; what came was deleted, nothing else was touched"
        )
    os.replace(part, path)
    return path


def _receive(remote: Remote, part: Path) -> None:
    """Append what is missing. Start from the beginning if the server does not send parts."""
    have = _size(part)
    request = urllib.request.Request(remote.url, headers={"User-Agent": "fastmax"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with waiting(f"connecting to {_host(remote)}"):
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT)
    with answer:
        resumed = have > 0 and answer.status == http.HTTPStatus.PARTIAL_CONTENT
        part.parent.mkdir(parents=True, exist_ok=True)
        pieces = -(-remote.size // _PIECE)
        with part.open("ab" if resumed else "wb") as file, Progress(pieces, part.name.removesuffix(".part")) as bar:
            bar.done += have // _PIECE if resumed else 0
            left = remote.size - (have if resumed else 0)
            while left > 0:
                bar.step("MB")
                piece = answer.read(min(_PIECE, left))
                if not piece:
                    break
                file.write(piece)
                left -= len(piece)
            file.flush()
            os.fsync(file.fileno())


def _check_free_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(errno.ENOSPC, f"{folder} has {free / 1e6:,.0f} MB free, but {needed / 1e6:,.0f} MB are to come")


def _no_network(error: BaseException) -> bool:
    """Return True if names cannot be looked up or there is no route; False for a server that refuses or stalls."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    unreachable = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN)
    return isinstance(reason, socket.gaierror) or (isinstance(reason, OSError) and reason.errno in unreachable)


def _host(remote: Remote) -> str:
    return urllib.parse.urlsplit(remote.url).netloc


def _by_hand(remote: Remote, path: Path) -> str:
    return f"to bring it by hand, put {remote.url} ({remote.size / 1e6:,.1f} MB) at {path}"


def _resume_hint(part: Path, remote: Remote) -> str:
    return f"{_size(part):,} of {remote.size:,} bytes are kept, run the same again to go on"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
