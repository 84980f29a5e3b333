"""Hooks of the site: formulas without scripts, links to files of the repository that are not pages, and the report.

Formulas become MathML while the site is built. A link that leaves docs/ goes to a copy of that file under repository/ in the
site, or to a list of what is in that folder. The report is drawn from lab/results into the site.
"""

import html
import re
from pathlib import Path, PurePosixPath

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
OUTSIDE = "repository"
PAGES = ("CONTRIBUTING.md", "CHANGELOG.md")
"""Pages that are in the site though nothing links to them."""

RESULTS = ROOT / "lab" / "results"
REPORT = "report/index.html"
"""The page of the report inside the site. Where a page names `site/report/index.html` it links to it."""

LINK = re.compile(r"(\]\()([^)\s:#]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to outside of docs/, and what that links to."""
    waiting = [ROOT / name for name in PAGES]
    for file in files.documentation_pages():
        waiting += targets(ROOT / "docs" / file.src_uri)
    done: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in done:
            continue
        done.add(path)
        where = place(path)
        if path.is_dir():
            file = File.generated(config, where, content=listing(path))
            waiting += visible(path)
        elif path.suffix == ".md":
            file = File.generated(config, where, content=path.read_text(encoding="utf-8"))
            waiting += targets(path)
        else:
            file = File.generated(config, where, abs_src_path=str(path))
        if path.name not in PAGES:
            file.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Point links that leave docs/ to the copies."""
    source = origin(page.file.src_uri)
    if source.is_dir():
        return markdown
    here = PurePosixPath(page.file.src_uri).parent

    def moved(match: re.Match[str]) -> str:
        path = (source.parent / match[2]).resolve()
        if source.is_relative_to(ROOT / "docs") and path.is_relative_to(ROOT / "docs"):
            return match[0]
        up = "../" * len(here.parts)
        return f"{match[1]}{up}{place(path)}{match[3]}" if path.exists() else match[0]

    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(moved, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    text = "".join([*parts, LINK.sub(moved, markdown[end:])])
    up = "../" * len(here.parts)
    return text.replace(f"`site/{REPORT}`", f'<a href="{up}{REPORT}"><code>site/{REPORT}</code></a>')


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Convert formulas to MathML."""
    return FORMULA.sub(formula, html)


def on_post_build(config: MkDocsConfig) -> None:
    """Draw the report of the stored results."""
    from fastmax_lab.report.page.build import build

    build(RESULTS, Path(config.site_dir) / REPORT.partition("/")[0])


def formula(match: re.Match[str]) -> str:
    block = match[1] == "div"
    text = html.unescape(match[2])
    for side, word in (("l", "left"), ("r", "right")):  # bars as high as what is between them
        for name, sign in (("vert", "|"), ("Vert", r"\|")):
            text = text.replace(rf"\{word}\{side}{name}", rf"\{word}{sign}").replace(
                rf"\{side}{name}", rf"\{word}{sign}"
            )
    found = convert(text, display="block" if block else "inline").replace(r"\_", "_")  # of \text{log\_decay}
    return f'<span class="formula">{found}</span>' if block else found


def targets(source: Path) -> list[Path]:
    """Return the files and folders outside of docs/ that a page links to."""
    text = FENCE.sub("", source.read_text(encoding="utf-8"))
    found = [(source.parent / match[2]).resolve() for match in LINK.finditer(text)]
    return [path for path in found if path.exists() and not path.is_relative_to(ROOT / "docs")]


def place(path: Path) -> str:
    """Return the path in the site of a file of the repository."""
    if path.is_relative_to(ROOT / "docs"):
        return path.relative_to(ROOT / "docs").as_posix()
    inside = f"{OUTSIDE}/{path.relative_to(ROOT).as_posix()}"
    return f"{inside}/index.md" if path.is_dir() else inside


def origin(src_uri: str) -> Path:
    """Return the file of a path in the site: the inverse of `place`."""
    if not src_uri.startswith(f"{OUTSIDE}/"):
        return ROOT / "docs" / src_uri
    path = ROOT / src_uri.removeprefix(f"{OUTSIDE}/")
    return path if path.is_file() else path.parent


def visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith((".", "_")))


def listing(folder: Path) -> str:
    """Return a page that lists the files in a folder."""
    inside = [(path.name, f"{path.name}/index.md" if path.is_dir() else path.name) for path in visible(folder)]
    lines = [f"- [{name}]({target})" for name, target in inside]
    return "\n".join([f"# {folder.relative_to(ROOT).as_posix()}", "", *lines, ""])
