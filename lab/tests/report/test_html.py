"""The page as HTML: links, ids, names that come from the results, and what was there before."""

import re
from collections import Counter
from dataclasses import replace
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest
from lab.tests.experiments import miniature
from lab.tests.records import MACHINE, record

from fastmax_lab.report.page import build, html
from fastmax_lab.report.page.parts import AGREES, Chart, Claim, PageBlock, Section, Series, Table

NAME = 'a "quoted" & <name>'
RECORD = record({}, {}, "n")

CLAIM = Claim("Figure 9", "Says.", AGREES, "found")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("html")
    items = [one for one in miniature.items() if one.experiment in ("scaling", "dropout", "exactness", "lra-speed")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(miniature, "items", lambda: items)
        results = miniature.measured(folder, patch)
    return build.build(results, folder / "report").page.parent


def chart(name: str) -> Chart:
    return Chart(name, name, "x", "y", (Series(name, (1.0,), (2.0,)),))


def made_up(*names: str) -> Section:
    tables = tuple(Table(name, name, ("a",), ((1,),)) for name in names)
    return Section("s", "Title (Figure 9)", "", (PageBlock("", tuple(map(chart, names)), (), tables),), (CLAIM,))


def drawn(tmp_path: Path, patch: pytest.MonkeyPatch, *sections: Section) -> str:
    """The page of these sections in the folder."""
    patch.setattr(build, "load", lambda _folder: {"lra": [RECORD]})
    patch.setattr(build, "sections", lambda _results: list(sections))
    return build.build(tmp_path, tmp_path).page.read_text()


def files(page: str) -> set[str]:
    links = re.findall(r'<a href="([^"]*)"', page)
    return {unquote(unescape(link)) for link in links if not link.startswith("#")}


def test_every_link_leads_somewhere(report: Path) -> None:
    page = (report / "index.html").read_text()
    linked = files(page)
    assert "tables/runs.csv" in linked
    assert [name for name in linked if not (report / name).is_file()] == []
    anchors = set(re.findall(r'<a href="#([^"]*)"', page))
    assert {"conclusions", "names", "scaling", "runs"} <= anchors
    assert anchors <= set(re.findall(r'\sid="([^"]*)"', page))


def test_ids_are_unique_and_charts_refer_to_their_own(report: Path) -> None:
    page = (report / "index.html").read_text()
    ids = Counter(re.findall(r'\sid="([^"]*)"', page))
    assert [name for name, count in ids.items() if count > 1] == []
    referred = set(re.findall(r"url\(#([^)]*)\)", page)) | set(re.findall(r'xlink:href="#([^"]*)"', page))
    assert len(referred) > 20
    assert referred <= ids.keys()


def test_names_from_the_results_are_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = drawn(tmp_path, monkeypatch, made_up(NAME))
    assert "<name>" not in page
    assert unescape(page).count(f'data-name="{NAME}"') == 1
    linked = files(page)
    assert {f"tables/{NAME}.csv", f"figures/{NAME}.svg"} <= linked
    assert all((tmp_path / name).is_file() for name in linked)


@pytest.mark.parametrize("name", ["../up", "a/b", "a\\b", ".hidden", ""])
def test_names_that_leave_their_folder_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a file"):
        drawn(tmp_path, monkeypatch, made_up("good", name))
    assert list(tmp_path.iterdir()) == [], "before anything is written"


def test_what_an_earlier_report_had_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn(tmp_path, monkeypatch, made_up("old", "kept"))
    mine = ("figures/notes.txt", "tables/old.json", "old.csv", "figures/more/old.png")
    for name in mine:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    drawn(tmp_path, monkeypatch, made_up("kept"))
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    figures = {f"figures/kept.{kind}" for kind in build.KINDS}
    tables = {f"tables/{name}.csv" for name in ("kept", "conclusions", "runs")}
    assert found == {"index.html", *mine, *figures, *tables}


def test_a_folder_without_an_earlier_report_keeps_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "own.png").write_text("")
    drawn(tmp_path, monkeypatch, made_up("new"))
    assert (tmp_path / "figures" / "own.png").exists()


@pytest.mark.parametrize(
    ("rows", "folded", "expected"), [(13, None, False), (14, None, True), (14, False, False), (1, True, True)]
)
def test_long_tables_are_folded_unless_told_otherwise(rows: int, folded: bool | None, expected: bool) -> None:
    shown = html._table(Table("t", "T", ("a",), ((1,),) * rows, folded=folded))
    assert shown.startswith("<details>") is expected
    assert shown.count('href="tables/t.csv"') == 1


def test_titles_stand_outside_of_what_scrolls() -> None:
    shown = html._table(Table("t", "Title", ("name", "n"), (("a", 1), ("b", None))))
    assert shown.index("Title") < shown.index('href="tables/t.csv"') < shown.index('<div class="table"')
    assert "tabindex" not in shown
    assert re.findall(r"<th [^>]*>", shown)[1].endswith("class=number>")


def test_claims_lead_to_their_sections() -> None:
    said = html._conclusions([made_up("a")])
    assert '<a href="#s">Title</a>' in said
    assert "by a rule in the code of the report" in said
    assert "href" not in html._conclusions([Section("s", "Title", claims=(CLAIM,))]), "a section that is not shown"


def test_labels_are_explained_before_the_first_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = drawn(tmp_path, monkeypatch, made_up("a"))
    names = page[page.index('<section id="names">') : page.index('<section id="s">')]
    for label in ("softmax", "vanilla", "fastmax1", "fastmax2", "fastmax2, paper&#x27;s scale", "±", "best by dev"):
        assert f"<dt>{label}</dt>" in names
    assert "RTX A6000 and A5000" in names


@pytest.mark.parametrize(
    ("dates", "end"), [((), "torch 2."), (("d1", "d1"), "torch 2, d1."), (("d2", "d1"), "torch 2, d1 to d2.")]
)
def test_the_header_ends_with_the_dates_that_are_known(dates: tuple[str, ...], end: str) -> None:
    found = [replace(RECORD, machine=MACHINE | {"date": date}) for date in dates] or [RECORD]
    assert html._provenance({"lra": found}).endswith(end)
