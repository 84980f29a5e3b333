"""The lock on the folder of a run: one holder at a time, nothing left of a refused run or of a dead holder."""

from pathlib import Path

import pytest

from fastmax_lab.lra.run_folder import LOCK, exclusive


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    busy = pytest.raises(ValueError, match=r"in use by another run \(process \d+\)")
    with exclusive(tmp_path), busy, exclusive(tmp_path):
        pass
    with exclusive(tmp_path):
        assert (tmp_path / LOCK).exists()
    assert not list(tmp_path.iterdir())


def test_a_lock_that_nobody_holds_does_not_block(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("999999")
    with exclusive(tmp_path):
        pass


def test_folders_made_for_nothing_are_removed(tmp_path: Path) -> None:
    with exclusive(tmp_path / "a" / "b"):
        pass
    assert not list(tmp_path.iterdir())
    with exclusive(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "kept").touch()
    with pytest.raises(KeyError), exclusive(tmp_path / "a" / "c"):
        raise KeyError
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "b", "kept"]
