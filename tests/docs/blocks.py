"""The code blocks of README and docs: what each is, and whether it is run.

A Python block is run, after those before it on its page. `<!-- not run: why -->` on the line before one says why it cannot
be. Of shell blocks `<!-- run -->` marks those that a newcomer's first session has; the others are checked word by word.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "lab/README.md", *(ROOT / "docs").rglob("*.md")])

_BLOCK = re.compile(
    r"(?:<!-- (?P<mark>[^\n]*?) -->\n)?^(?P<indent> *)```(?P<language>\w+)\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """`mark` is what the comment before it says, if there is one."""

    page: str
    line: int
    language: str
    code: str
    mark: str

    @property
    def runs(self) -> bool:
        return self.language == "python" and not self.mark.startswith("not run: ")


def blocks_of(path: Path) -> list[Block]:
    text, page = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
    return [
        Block(
            page,
            text.count("\n", 0, found.start("code")),
            found["language"],
            dedent(found["code"]),
            found["mark"] or "",
        )
        for found in _BLOCK.finditer(text)
    ]


BLOCKS = [block for path in PAGES for block in blocks_of(path)]
