"""The README as package indexes show it: links to files of the repository, which lead nowhere there, become plain words.

The build calls `dynamic_metadata` (pyproject.toml).
"""

import re
from pathlib import Path

PICTURE = re.compile(r"!\[[^]]*\]\((?!https?:)[^)]*\)\n+")
LINK = re.compile(r"\[([^]]+)\]\((?!https?:)[^)]*\)")
NOTE = "\nThe pages and examples that are named here are in the source distribution, in `docs` and `examples`.\n\n"


def readme(text: str) -> str:
    """Return a page without relative pictures and links."""
    first, heading, rest = LINK.sub(r"\1", PICTURE.sub("", text)).partition("## Install")
    return first.rstrip("\n") + "\n" + NOTE + heading + rest


def dynamic_metadata(field: str, settings: object) -> dict[str, str]:  # noqa: ARG001
    return {"content-type": "text/markdown", "text": readme(Path("README.md").read_text(encoding="utf-8"))}
