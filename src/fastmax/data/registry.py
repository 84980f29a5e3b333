"""Which data sets there are, where their canonical files are, and the checksums of these."""

from dataclasses import dataclass

from fastmax.data.files import RELEASE


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


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_BY_HAND = (
    f"The files of LRA's release are in {RELEASE} (7.7 GB). No checksum of it is published, so it is not fetched here: "
    "download it, then run `fastmax data unpack lra_release.gz`."
)


def _mnist(name: str, size: int, sha256: str) -> Remote:
    return Remote(f"{_MNIST}{name}-ubyte.gz", f"mnist/{name}-ubyte.gz", size, sha256)


def data_sets() -> dict[str, DataSet]:
    """By name: the five tasks of the Long Range Arena, MNIST and Tiny Shakespeare."""
    sets = (
        DataSet(
            "listops",
            "nested lists of digits",
            (("listops-1000",),),
            generated=True,
            hint=f"ListOps is generated on first use: nothing to fetch. {_BY_HAND}",
        ),
        DataSet(
            "text",
            "IMDb reviews, bytes",
            (("aclImdb", "aclImdb_v1.tar.gz", "imdb/train.tsv.xz"),),
            (
                Remote(
                    "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
                    "aclImdb_v1.tar.gz",
                    84_125_825,
                    "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
                ),
            ),
        ),
        DataSet(
            "retrieval",
            "pairs of ACL papers, bytes",
            (("tsv_data/new_aan_pairs.train.tsv", "aan/pairs.tsv.xz"),),
            hint=_BY_HAND,
        ),
        DataSet(
            "image",
            "CIFAR-10, grey pixels",
            (("cifar-10-batches-bin", "cifar-10-binary.tar.gz", "cifar10_grey/train.bin.xz"),),
            (
                Remote(
                    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                    "cifar-10-binary.tar.gz",
                    170_052_171,
                    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                ),
            ),
        ),
        DataSet(
            "pathfinder",
            "dashed contours, pixels",
            (("pathfinder32/curv_contour_length_14",),),
            generated=True,
            hint=f"Pathfinder is generated on first use: nothing to fetch. {_BY_HAND}",
        ),
        DataSet(
            "mnist",
            "handwritten digits",
            tuple(
                (f"mnist/{name}-ubyte.gz",)
                for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
            ),
            (
                _mnist(
                    "train-images-idx3", 9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
                ),
                _mnist("train-labels-idx1", 28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
                _mnist(
                    "t10k-images-idx3", 1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
                ),
                _mnist("t10k-labels-idx1", 4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
            ),
        ),
        DataSet(
            "tinyshakespeare",
            "Shakespeare's plays, characters",
            (("tinyshakespeare.txt", "tinyshakespeare/input.txt", "input.txt"),),
            (
                Remote(
                    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
                    "tinyshakespeare.txt",
                    1_115_394,
                    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
                ),
            ),
        ),
    )
    return {one.name: one for one in sets}
