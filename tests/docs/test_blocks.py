"""Every Python block of README and docs runs."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.docs.blocks import BLOCKS, PAGES, ROOT

NOT_RUN: dict[str, int] = {}
"""Pages with blocks that cannot run here, and how many; each block says why."""
PROCESSES = "docs/distributed.md"
"""Its blocks are for two processes."""
SLOW = ("docs/tutorial.md", "docs/transformers.md", "docs/convert.md", "docs/exporting.md")
"""Their blocks train, compile or export for more than a few seconds."""


def blocks_that_run(page: str) -> list[str]:
    """As one reads them: with the lines that are before them left empty, so that errors name the right one."""
    return ["\n" * block.line + block.code for block in BLOCKS if block.page == page and block.runs]


def tiny_language_model(folder: Path) -> dict[str, Any]:
    """Return what the reader brings to the pages on Hugging Face: a model, a prompt, text to learn from."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        pad_token_id=0,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "model")
    prompt = torch.randint(1, 32, (1, 5))
    return {
        "path": folder / "model",
        "inputs": {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)},
        "batches": [{"input_ids": torch.randint(1, 32, (2, 8))} for _ in range(4)],
    }


GIVEN = {"docs/transformers.md": tiny_language_model, "docs/convert.md": tiny_language_model}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page in SLOW else ())
        for page in sorted({block.page for block in BLOCKS if block.runs} - {"README.md", PROCESSES})
    ],
)
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's own compiler
@pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning")
def test_the_blocks_of_a_page_run_in_order(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = GIVEN[page](tmp_path) if page in GIVEN else {}
    monkeypatch.chdir(tmp_path)
    for block in blocks_that_run(page):
        exec(compile(block, page, "exec"), names)


@pytest.mark.parametrize("block", blocks_that_run("README.md"))
def test_each_block_of_the_readme_runs_alone(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})


@pytest.mark.slow
def test_the_blocks_for_two_processes(tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text("\n".join(block.code for block in BLOCKS if block.page == PROCESSES and block.runs))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr


def test_what_is_not_run_is_known_and_says_why() -> None:
    left_out = [block for block in BLOCKS if block.language == "python" and not block.runs]
    assert Counter(block.page for block in left_out) == NOT_RUN
    assert all(len(block.mark) > len("not run: ") + 10 for block in left_out)


def test_every_block_is_found() -> None:
    """A fence without a language would not be run."""
    fences = sum(line.lstrip().startswith("```") for path in PAGES for line in path.read_text().splitlines())
    assert fences == 2 * len(BLOCKS)
    assert {block.language for block in BLOCKS} <= {"python", "bash", "sh", "console", "text", "bibtex"}
    assert (ROOT / "docs" / "tutorial.md") in PAGES
