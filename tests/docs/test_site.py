"""The site: every public name has its place in the reference, nothing is fetched by a reader, formulas need no script.

That it builds without a warning, with every link and anchor in place, is what `make docs` says in strict mode.
"""

import importlib
import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT
from tests.docs.names import public_names

yaml = pytest.importorskip("yaml")
pytest.importorskip("mkdocs")
pytest.importorskip("latex2mathml")


def reference() -> set[str]:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md"))
    return set(re.findall(r"^::: (\S+)$", pages, re.MULTILINE))


def test_every_public_name_is_in_the_reference() -> None:
    assert reference() == public_names()


def test_what_is_in_the_reference_says_what_it_is() -> None:
    for path in reference():
        module, _, name = path.rpartition(".")
        text = getattr(importlib.import_module(module), name).__doc__
        assert text, path
        assert len(text.split()) >= 5, path


def test_nothing_is_fetched() -> None:
    """No font, no polyfill and no script from elsewhere, and no diagrams, which the theme would fetch a program for."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    settings = yaml.load(text, Loader=yaml.BaseLoader)
    assert settings["theme"]["font"] == "false"
    assert settings["strict"] == "true"
    assert "http" not in re.sub(r"#.*", "", text)
    for path in (ROOT / "docs").rglob("*.md"):
        assert "```mermaid" not in path.read_text(encoding="utf-8"), path
    assert "http" not in (ROOT / "docs" / "stylesheets" / "site.css").read_text()


def test_links_to_other_sites_are_few_and_known() -> None:
    """Nothing fetches them in a test: whoever adds one has looked at it."""
    hosts = set()
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        hosts |= set(re.findall(r"\]\(https?://([^/)]+)", path.read_text(encoding="utf-8")))
    assert hosts == {"arxiv.org", "docs.pytorch.org", "github.com", "pytorch.org", "triton-lang.org"}


def test_the_figure_of_the_readme_has_its_measurements() -> None:
    pytest.importorskip("matplotlib")
    from tools import readme_figure

    for head_dim in (32, 64):
        for who in ("native", "sdpa"):
            tokens, times = readme_figure.by_length(head_dim, who)
            assert tokens == [128, 256, 512, 1024, 16384]
            assert all(time > 0 for time in times)
    assert readme_figure.by_context("fastmax")[0] == readme_figure.by_context("softmax")[0]


def test_formulas_become_mathml() -> None:
    from tools import site_hooks

    html = r'<div class="arithmatex">\[ \lvert s \rvert \le \frac{1}{2} \]</div>'
    html += r'<span class="arithmatex">\(a &lt; b_\text{x\_y}\)</span>'
    found = site_hooks.FORMULA.sub(site_hooks.formula, html)
    assert found.count("<math") == 2
    assert "<mfrac>" in found
    assert "arithmatex" not in found
    assert "lvert" not in found
    assert "x_y" in found


def test_every_formula_of_the_pages_is_understood() -> None:
    """Find no backslash in the output: latex2mathml writes commands that it does not know as text."""
    from latex2mathml.converter import convert

    for path in (ROOT / "docs").glob("*.md"):
        text = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for block, inline in re.findall(r"\$\$(.+?)\$\$|(?<![\w$])\$(\S(?:[^$\n]*\S)?)\$", text):
            assert "\\" not in convert(block or inline).replace("\\_", ""), (path.name, block or inline)


def test_links_that_leave_the_docs_go_to_copies(tmp_path: Path) -> None:
    from tools import site_hooks

    results = site_hooks.ROOT / "lab" / "results"
    assert site_hooks.place(results) == "repository/lab/results/index.md"
    assert site_hooks.place(results / "lra.jsonl") == "repository/lab/results/lra.jsonl"
    assert site_hooks.origin("repository/lab/results/index.md") == results
    assert site_hooks.origin("repository/CHANGELOG.md") == site_hooks.ROOT / "CHANGELOG.md"
    assert site_hooks.origin("gpu.md") == site_hooks.ROOT / "docs" / "gpu.md"
    page = tmp_path / "page.md"
    page.write_text(
        f"[a]({results}) [b](nowhere.md) [c](https://example.org)\n```text\n[d]({results}/lra.jsonl)\n```\n"
    )
    assert site_hooks.targets(page) == [results]
    assert "- [lra.jsonl](lra.jsonl)" in site_hooks.listing(results)
    assert "- [convert](convert/index.md)" in site_hooks.listing(results)


def test_the_report_is_linked_where_it_is_named() -> None:
    from tools import site_hooks

    class Page:
        file = type("File", (), {"src_uri": "reproduction.md"})

    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert f"`site/{site_hooks.REPORT}`" in text
    made: object = site_hooks.on_page_markdown(text, Page(), None, None)
    assert f'href="{site_hooks.REPORT}"' in str(made)
