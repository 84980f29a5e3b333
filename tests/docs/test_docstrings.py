"""Docstrings of public names have examples that run, and all words are plain English (ruff checks the form of docstrings)."""

import ast
import doctest
import importlib
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.docs.blocks import ROOT
from tests.docs.names import public_names
from tests.docs.test_blocks import tiny_language_model

HUGGING_FACE = ("fastmax.integrations.transformers", "fastmax_lab.conversion")

WORDS = re.compile(
    r"\b(anew|likewise|thereof|nobody|whoever|somebody|in the place of|to reckon with|at hand|as it were|so to speak"
    r"|(?:is|are|was|were) told|tells|ha(?:s|ve) (?:a|no) say|that are none|what is none|in vain|a guess|at home)\b",
    re.IGNORECASE,
)
"""Words for which there are plainer ones."""
FRAGMENTS = re.compile(r"(of|by|what|whether|where|which|how|from|to|whoever|nobody|who)\b|\W", re.IGNORECASE)
"""Words that no docstring begins with. That of a function does not begin with a formula either."""

CODE = ("src", "lab/src", "native", "tools")
PAGES = ("README.md", "CONTRIBUTING.md", "lab/README.md", "docs", *CODE)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The names that examples use without an import; `mesh` has one process."""
    from torch import distributed

    import fastmax
    from fastmax.models import FastmaxLM, LMConfig

    folder = tmp_path_factory.mktemp("group")
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    names = {name: getattr(fastmax, name) for name in fastmax.__all__}
    yield (
        names
        | {"torch": torch, "nn": torch.nn, "FastmaxLM": FastmaxLM, "LMConfig": LMConfig, "folder": folder}
        | {"mesh": distributed.group.WORLD}
    )
    distributed.destroy_process_group()


def add_models(given: dict[str, Any], folder: Path) -> None:
    """Add what examples for Hugging Face take from the reader."""
    transformers = pytest.importorskip("transformers")
    for module in map(importlib.import_module, HUGGING_FACE):
        given |= {name: getattr(module, name) for name in module.__all__}
    given |= tiny_language_model(folder)
    load = transformers.AutoModelForCausalLM.from_pretrained
    given["register"]()
    given |= {"teacher": load(given["path"]).eval(), "model": load(given["path"], attn_implementation="fastmax").eval()}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if "onnx" in name else ()) for name in sorted(public_names())],
)
@pytest.mark.filterwarnings("ignore")
def test_public_names_have_an_example_that_runs(name: str, given: dict[str, Any], tmp_path: Path) -> None:
    module, _, attribute = name.rpartition(".")
    if "onnx" in name:
        pytest.importorskip("onnxscript")
    names = dict(given)
    if name.startswith(HUGGING_FACE):
        add_models(names, tmp_path)
    found = getattr(importlib.import_module(module), attribute)
    names |= {attribute: found, "folder": tmp_path}
    tests = [test for test in doctest.DocTestFinder().find(found, name, globs=names) if test.examples]
    assert tests, f"{name} has no example"
    for test in tests:
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        printed: list[str] = []
        runner.run(test, out=printed.append)
        assert not runner.failures, "".join(printed)


def docstrings() -> Iterator[tuple[str, ast.AST, str]]:
    """Yield where each docstring stands, that of a constant too, its node and its text."""
    for folder in (*CODE, "tests", "lab/tests", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    text = ast.get_docstring(node)
                    if text:
                        yield f"{path.relative_to(ROOT)}: {getattr(node, 'name', '')}", node, text
                    for constant, after in pairwise(node.body):
                        match constant, after:
                            case ast.Assign() | ast.AnnAssign(), ast.Expr(ast.Constant(str(text))):
                                yield f"{path.relative_to(ROOT)}:{after.lineno}", constant, text


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    texts = list(docstrings())
    assert len(texts) > 500
    assert not [
        (where, text.partition("\n")[0])
        for where, node, text in texts
        if FRAGMENTS.match(text) and (isinstance(node, ast.FunctionDef) or text[0].isalpha())
    ]


def test_words_are_plain() -> None:
    """Search pages, docstrings, comments and error messages: whole sources."""
    paths = [path for name in PAGES for path in (sorted((ROOT / name).rglob("*")) or [ROOT / name])]
    assert len(paths) > 300
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in paths
        if path.suffix in (".md", ".py", ".h", ".cpp") and "__pycache__" not in path.parts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in WORDS.finditer(line)
        if not (path.name == "CONTRIBUTING.md" and line.startswith("|"))  # the words to avoid
    ]
    assert not found, "\n".join(found)
