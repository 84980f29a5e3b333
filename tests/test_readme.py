"""What the README shows is what happens."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_the_examples_run(block: str) -> None:
    exec(compile(block, "README.md", "exec"), {})


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 2


def test_every_linked_file_exists() -> None:
    root = Path(__file__).parent.parent
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (root / target).exists(), target
