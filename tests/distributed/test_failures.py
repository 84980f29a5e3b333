"""A rank that dies or is cut off: the others end with an error that says so, and the run goes on from its last checkpoint."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
WORDS = "lost the connection to another rank, which has died, is unreachable"
PATIENCE = 300  # seconds until a test gives up: the machine may be busy


def lonely(rank: int, store: str, timeout: float, *more: str, inside: str | None = None) -> "subprocess.Popen[str]":
    """Start a rank, in the network namespace `inside` if there is one."""
    prefix = [] if inside is None else ["ip", "netns", "exec", inside]
    arguments = ["-m", "tests.distributed.lonely", str(rank), store, str(timeout), *more]
    environment = os.environ | ({} if inside is None else {"GLOO_SOCKET_IFNAME": "cable"})
    return subprocess.Popen(
        [*prefix, sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_killed_rank_is_missed(tmp_path: Path) -> None:
    store = f"file://{tmp_path / 'store'}"
    survivor, victim = lonely(0, store, PATIENCE), lonely(1, store, PATIENCE, "3")
    _, said = survivor.communicate(timeout=2 * PATIENCE)
    victim.communicate()
    assert victim.returncode == -signal.SIGKILL
    assert survivor.returncode == 1
    assert "RuntimeError: rank 0 of the 2 that share a sequence" in said
    assert WORDS in said


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    """Two machines and a cable between them, as far as the network is concerned."""
    names = (f"fastmax{os.getpid()}a", f"fastmax{os.getpid()}b")
    if shutil.which("ip") is None or os.geteuid() != 0 or not _ran("ip", "netns", "add", names[0]):
        pytest.skip("network namespaces cannot be made here")
    try:
        made = _ran("ip", "netns", "add", names[1]) and _ran(
            "ip",
            "link",
            "add",
            "name",
            "cable",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "name",
            "cable",
            "netns",
            names[1],
        )
        for i, name in enumerate(names, 1):
            made = made and _ran("ip", "-n", name, "addr", "add", f"10.77.0.{i}/24", "dev", "cable")
            made = made and _ran("ip", "-n", name, "link", "set", "cable", "up")
            made = made and _ran("ip", "-n", name, "link", "set", "lo", "up")
        if not made:
            pytest.skip("network namespaces cannot be made here")
        yield names
    finally:
        for name in names:
            _ran("ip", "netns", "del", name)


def _ran(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_ranks_that_are_cut_off_end_at_the_timeout(namespaces: tuple[str, str]) -> None:
    """A dropped link sends nothing, not even an error: only the timeout of the process group ends the wait, on both sides."""
    store, timeout = "tcp://10.77.0.1:29731", 5.0
    ranks = [lonely(i, store, timeout, inside=name) for i, name in enumerate(namespaces)]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            for _ in range(3):  # they are at work
                assert rank.stdout.readline().strip().isdigit(), rank.communicate()[1]
        assert _ran("ip", "-n", namespaces[0], "link", "set", "cable", "down")
        said = [rank.communicate(timeout=PATIENCE)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [1, 1]
    assert all(WORDS in text for text in said)


TINY = (
    "--steps",
    "60",
    "--batch",
    "4",
    "--length",
    "32",
    "--layers",
    "1",
    "--width",
    "16",
    "--heads",
    "2",
    "--sample",
    "4",
)


def example(*more: str, processes: int = 1) -> "subprocess.Popen[str]":
    start = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)] if processes > 1 else []
    return subprocess.Popen(
        [sys.executable, *start, str(ROOT / "examples" / "char_lm.py"), *TINY, *more],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def losses(path: Path) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in (line.split() for line in path.read_text().splitlines())}


def test_two_processes_train_as_one_and_one_resumes_what_two_began(tmp_path: Path) -> None:
    """The same loss at every step, though one of the two is killed on the way, and one process goes on alone."""
    alone = example("--losses", str(tmp_path / "alone"))
    run = ("--checkpoint", str(tmp_path / "run"), "--checkpoint-every", "6", "--losses", str(tmp_path / "shared"))
    both = example("--context-parallel", "2", *run, processes=2)
    try:
        while both.poll() is None and not list(tmp_path.glob("run/step-*")):
            time.sleep(0.01)
        workers = Path(f"/proc/{both.pid}/task/{both.pid}/children").read_text().split()
        with suppress(ProcessLookupError, IndexError):
            os.kill(int(workers[-1]), signal.SIGKILL)
        both.communicate(timeout=PATIENCE)
        assert both.returncode != 0
        resumed = example(*run)
        said, errors = resumed.communicate(timeout=PATIENCE)
        assert resumed.returncode == 0, errors
        assert alone.communicate(timeout=PATIENCE)[0].splitlines()[-1] == said.splitlines()[-1], "one model, one text"
    finally:
        for process in (alone, both):
            process.kill()
    expected, found = losses(tmp_path / "alone"), losses(tmp_path / "shared")
    assert found.keys() == expected.keys() == set(range(60))
    for step, loss in expected.items():
        assert found[step] == pytest.approx(loss, abs=2e-5)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["step-60"]
