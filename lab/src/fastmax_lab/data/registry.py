"""The records of data sets: the files that their readers look for, the canonical sources, and checksums."""

from dataclasses import dataclass

from fastmax_lab.data.files import RELEASE


@dataclass(frozen=True)
class Remote:
    """A file to fetch; `path` is relative to the data folder."""

    url: str
    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class DataSet:
    """`patterns` are what the readers look for, any one of a group; without `remotes`, `hint` says what else to do."""

    name: str
    what: str
    patterns: tuple[tuple[str, ...], ...]
    remotes: tuple[Remote, ...] = ()
    generated: bool = False
    hint: str = ""


BY_HAND = (
    f"The files of LRA's release are in {RELEASE} (7.7 GB). No checksum of it is published, so it is not fetched here: "
    "download it, then run `fastmax-lab data unpack lra_release.gz`."
)
