"""The report of the committed results: four figures first, few numbers in a sentence, nothing twice, the docs agree."""

import re
from collections import Counter
from pathlib import Path

import pytest

from fastmax_lab.report.page import build, html
from fastmax_lab.report.page.parts import AGREES, DIFFERS, OPEN, PARTLY, Section
from fastmax_lab.report.page.results import load

ROOT = Path(__file__).parents[3]
NUMBER = re.compile(r"(?<![\w.²√/])[-+]?\d[\d,.]*(?:e-?\d+)?(?![\w²])")
SENTENCE = re.compile(r"(?<=[.!?])\s+")
VERDICTS = {"holds": AGREES, "in part": PARTLY, "does not hold": DIFFERS, "open": OPEN}


@pytest.fixture(scope="module")
def stored() -> list[Section]:
    return build.sections(load(ROOT / "lab" / "results"))


def paragraphs(sections: list[Section]) -> list[str]:
    """Return what is written between figures and tables."""
    found = [one.intro for one in sections if one.intro]
    found += [lead.sentence for one in sections for lead in one.leads]
    found += [claim.number for one in sections for claim in one.claims]
    return found + [text.text for one in sections for block in one.blocks for text in block.findings if text.text]


def test_four_figures_come_first_under_names_of_their_own(stored: list[Section]) -> None:
    leads = [lead.chart.name for one in stored for lead in one.leads]
    assert len(leads) == 4
    names = Counter(chart.name for chart in build.charts(stored))
    assert set(names.values()) == {1}


def test_a_sentence_has_at_most_three_numbers(stored: list[Section]) -> None:
    sentences = [sentence for text in paragraphs(stored) for sentence in SENTENCE.split(text)]
    assert len(sentences) > 80
    assert not [sentence for sentence in sentences if len(NUMBER.findall(sentence)) > 3]


def test_no_sentence_is_printed_twice(stored: list[Section]) -> None:
    for one in stored:
        sentences = Counter(sentence for text in paragraphs([one]) for sentence in SENTENCE.split(text))
        twice = [sentence for sentence, count in sentences.items() if count > 1 and NUMBER.search(sentence)]
        assert not [sentence for sentence in twice if not sentence.startswith("faster than")], one.name


@pytest.mark.parametrize("experiment", ["lra-speed", "lra-pace"])
def test_the_rounds_of_a_timing_agree(experiment: str) -> None:
    """Else the machine was not quiet, and the median says little."""
    for one in load(ROOT / "lab" / "results")[experiment]:
        for attention, took in one.values["seconds"].items():
            assert attention == "data" or took["median"] <= 1.25 * took["best"], (one.name, attention)


def test_every_claim_links_to_its_numbers(stored: list[Section]) -> None:
    places = html._places(stored)
    assert {claim.rests_on for one in stored for claim in one.claims} <= places.keys()
    ids = list(places.values())
    assert len(set(ids)) == len(ids)


def test_the_docs_have_the_verdicts_and_numbers_of_the_report(stored: list[Section]) -> None:
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:2] == "| "]
    start = next(i for i, row in enumerate(rows) if row[0] == "claim")
    claims = [claim for one in stored for claim in one.claims]
    written = [(VERDICTS[row[1]], row[2], row[3]) for row in rows[start + 1 : start + 1 + len(claims)]]
    assert written == [(c.verdict, c.number, "-" if c.seeds is None else str(c.seeds)) for c in claims]


def test_the_docs_count_the_verdicts(stored: list[Section]) -> None:
    text = " ".join((ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8").split())
    counts = Counter(claim.verdict for one in stored for claim in one.claims)
    said = re.search(r"Of the paper's (\d+) claims (\d+) hold and (\d+) do not", text)
    assert said
    assert tuple(map(int, said.groups())) == (sum(counts.values()), counts[AGREES], counts[DIFFERS])
