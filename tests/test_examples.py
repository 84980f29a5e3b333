"""The examples run as a user runs them, at a tiny size."""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from tests.support import EXAMPLES, example

TINY = ("--steps", "3", "--batch", "2", "--length", "16", "--layers", "1", "--width", "16", "--heads", "2")


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def char_lm() -> ModuleType:
    return example("char_lm")


@pytest.mark.slow
def test_the_text_is_made_up_and_softmax_is_compared_with() -> None:
    pytest.importorskip("fastmax_lab")
    done = run("char_lm.py", *TINY, "--compare", "--sample", "40")
    assert done.returncode == 0, done.stderr
    assert "100,000 characters, 33 of them different" in done.stdout
    losses = re.findall(r"^(\w+): validation loss (\d\.\d+) nats", done.stdout, re.MULTILINE)
    assert [name for name, _ in losses] == ["fastmax", "softmax"]
    assert 0 < float(losses[0][1]) < 6
    assert losses[0][1] != losses[1][1]
    again = run("char_lm.py", *TINY, "--sample", "40")
    assert again.stdout.splitlines()[-1] == done.stdout.splitlines()[-1], "one seed, one text"


@pytest.mark.slow
def test_a_text_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("äbc " * 100 + "only here: xyz", encoding="utf-8")
    done = run("char_lm.py", *TINY, "--text", str(path), "--sample", "10")
    assert done.returncode == 0, done.stderr
    assert "softmax" not in done.stdout
    path.write_text("too short")
    done = run("char_lm.py", *TINY, "--text", str(path))
    assert done.returncode == 1
    assert done.stderr == "the text must have more than 160 characters, it has 9\n"


def test_the_made_up_text(char_lm: ModuleType) -> None:
    text = char_lm.made_up_text(5000)
    assert len(text) == 5000
    assert text == char_lm.made_up_text(5000) != char_lm.made_up_text(5000, seed=1)
    assert "{" not in text
    assert "}" not in text


def test_progress_without_rich(
    char_lm: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(char_lm, "find_spec", lambda _: None)
    assert list(char_lm.progress(20, "training")) == list(range(20))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["training: step 0 of 20", "training: step 2 of 20"]
    assert len(lines) == 10


def test_spoken_digits_are_heard_by_every_attention(tmp_path: Path) -> None:
    """Train on made-up sounds, which need no espeak-ng."""
    spoken = example("spoken_digits")
    chance = torch.Generator().manual_seed(0)
    sounds = torch.randn(4, spoken.RATE, generator=chance)
    np.savez(tmp_path / "spoken_digits.npz", **{
        f"{split}_{name}": of
        for split in ("train", "test")
        for name, of in (("sounds", (1000 * sounds).to(torch.int16).numpy()), ("digits", np.arange(4)))
    })  # fmt: skip
    kept, digits = spoken.clips(tmp_path)["test"]
    assert (kept.shape, digits.tolist()) == ((4, spoken.RATE), [0, 1, 2, 3])
    at_1000 = spoken.heard(kept, 1000, chance)
    assert at_1000.shape == (4, 1000)
    for name in ("fastmax1", "gated", "softmax"):
        model = spoken.Listener(name, 1000, width=8, heads=2, layers=1)
        assert model(at_1000).shape == (4, len(spoken.DIGITS))


def test_spoken_digits_begin_later_and_stay_whole() -> None:
    spoken = example("spoken_digits")
    sounds = torch.zeros(8, spoken.RATE)
    sounds[:, 0] = 1.0
    moved = spoken.heard(sounds, spoken.RATE, torch.Generator().manual_seed(0))
    starts = moved.argmax(1)
    assert len(set(starts.tolist())) > 4
    assert int(starts.max()) < spoken.RATE // 5
    assert (moved.amax(1) > 0.25).all()
