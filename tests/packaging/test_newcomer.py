"""A newcomer's path: a fresh environment, the wheel, and the commands of the tutorial as they stand on the page."""

import os
import re
from pathlib import Path

import pytest

from tests.packaging.bare import Bare

pytestmark = pytest.mark.packaged

TUTORIAL = Path(__file__).parents[2] / "docs/tutorial.md"
BLOCK = re.compile(r"(?P<run><!-- run -->\n)?```(?P<language>bash|python)\n(?P<text>.*?)```", re.DOTALL)


def test_the_tutorial(wheel: Path, tmp_path: Path) -> None:
    """Its python blocks are one session; a bash block that a reader is to run is marked."""
    newcomer = Bare(tmp_path / "venv", packages=("matplotlib",))
    newcomer.install(wheel)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    blocks = [block.groupdict() for block in BLOCK.finditer(TUTORIAL.read_text())]
    commands = [block["text"] for block in blocks if block["language"] == "bash" and block["run"]]
    session = [block["text"] for block in blocks if block["language"] == "python"]
    assert commands
    assert len(session) > 5
    for text in commands:
        assert newcomer.run(["bash", "-euc", text], folder)
    script = folder / "session.py"
    script.write_text(os.linesep.join(session))
    assert newcomer.run([newcomer.python, str(script)], folder)
