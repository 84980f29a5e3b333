"""cost: against sizes of real states, operations counted by hand, and the table of the docs."""

import re
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
import torch

from fastmax import FastmaxState, cost

MODELS: dict[str, dict[str, int]] = {
    "Llama-3-8B": {"num_heads": 32, "head_dim": 128, "num_kv_heads": 8, "num_layers": 32},
    "Llama-2-7B": {"num_heads": 32, "head_dim": 128, "num_kv_heads": 32, "num_layers": 32},
    "Mistral-7B": {"num_heads": 32, "head_dim": 128, "num_kv_heads": 8, "num_layers": 32},
    "Qwen2.5-7B": {"num_heads": 28, "head_dim": 128, "num_kv_heads": 4, "num_layers": 28},
    "Qwen2.5-0.5B": {"num_heads": 14, "head_dim": 64, "num_kv_heads": 2, "num_layers": 24},
    "SmolLM2-135M": {"num_heads": 9, "head_dim": 64, "num_kv_heads": 3, "num_layers": 30},
    "GPT-2": {"num_heads": 12, "head_dim": 64, "num_kv_heads": 12, "num_layers": 12},
}
"""Shapes from the public configs of these models."""


def test_sizes_are_those_of_states() -> None:
    found = cost(8, 64, 4096, qk_head_dim=32, num_kv_heads=2, num_layers=3, dtype=torch.bfloat16)
    state = FastmaxState.empty(1, 2, 32, 64, 2)
    assert found.state_bytes == 3 * state.nbytes
    assert found.head_state_bytes == state.nbytes // 2
    assert found.cache_bytes == 3 * 2 * 4096 * (64 + 64) * 2
    wide = FastmaxState.empty(1, 8, 64, order=2, dtype=torch.float64)
    assert cost(8, 64, 4096, dtype=torch.float64).state_bytes == wide.nbytes
    assert found.features == 1 + 32 + 32 * 33 // 2
    assert cost(1, 8, 1, order=3).features == 165


def test_operations_by_hand() -> None:
    found = cost(4, 6, 10, qk_head_dim=2, num_kv_heads=2, num_layers=5)
    assert found.softmax_flops == 5 * 4 * 10 * 10 * (6 + 6 + 1)
    assert found.dense_flops == 5 * 4 * 10 * 10 * (2 + 6 + 1)
    assert found.factorized_flops == 5 * 2 * (4 * 10 + 2 * 10) * 6 * 7
    assert found.speedup == 13 / 9  # of the dense form
    long = cost(4, 6, 1000, qk_head_dim=2, num_kv_heads=2, num_layers=5)
    assert long.speedup == long.softmax_flops / long.factorized_flops


@pytest.mark.parametrize("shape", [(8, 128, 32, 2), (4, 64, 64, 4)], ids=str)
def test_from_the_break_even_on_fastmax_costs_less(shape: tuple[int, int, int, int]) -> None:
    heads, head_dim, qk_head_dim, kv_heads = shape

    def at(tokens: int) -> Any:
        return cost(heads, head_dim, tokens, qk_head_dim=qk_head_dim, num_kv_heads=kv_heads)

    cut = at(1000).break_even
    assert at(cut).factorized_flops < at(cut).softmax_flops
    assert at(cut - 1).factorized_flops >= at(cut - 1).softmax_flops
    cut = at(1000).memory_break_even
    assert at(cut).state_bytes < at(cut).cache_bytes
    assert at(cut - 1).state_bytes >= at(cut - 1).cache_bytes
    assert at(1).break_even == at(10_000).break_even
    assert cost(1, 64, 1).memory_break_even == FastmaxState.break_even(64)


def test_a_cost_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        cost(1, 8, 8).features = 3


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_heads": 0}, "num_heads must be a positive int, got 0"),
        ({"head_dim": 8.0}, r"head_dim must be a positive int, got 8\.0"),
        ({"seq_len": -1}, "seq_len must be a positive int, got -1"),
        ({"qk_head_dim": 0}, "qk_head_dim must be a positive int, got 0"),
        ({"num_layers": 0}, "num_layers must be a positive int, got 0"),
        ({"num_kv_heads": 3}, "num_kv_heads must divide num_heads = 4, got 3"),
        ({"order": 5}, "order must be from 1 to 4, got 5"),
    ],
)
def test_sizes_are_checked(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cost(**{"num_heads": 4, "head_dim": 8, "seq_len": 8, **sizes})


def row(name: str, qk_head_dim: int) -> list[str]:
    """A row of the table: state and cache in MB, memory break-even, break-even, ratio of operations."""
    found = cost(**MODELS[name], seq_len=16_384, qk_head_dim=qk_head_dim, dtype=torch.bfloat16)
    return [
        f"{found.state_bytes / 1e6:,.0f}",
        f"{found.cache_bytes / 1e6:,.0f}",
        f"{found.memory_break_even:,}",
        f"{found.break_even:,}",
        f"{found.speedup:.2g}",
    ]


PAGE = (Path(__file__).parent.parent / "docs" / "choosing.md").read_text()


def test_the_words_of_the_docs() -> None:
    wide, narrow = (cost(**MODELS["Llama-3-8B"], seq_len=16_384, qk_head_dim=d) for d in (128, 32))
    words = " ".join(PAGE.split())
    for cost_of in (wide, narrow):
        assert f"takes {cost_of.head_state_bytes / 1e6:.2g} MB" in words
    assert f"about {round(wide.break_even, -4):,} tokens to {round(narrow.break_even, -2)}" in words


@pytest.mark.parametrize("name", MODELS)
def test_the_table_of_the_docs(name: str) -> None:
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in PAGE.splitlines() if line[:2] == "| "]
    rows = [cells for cells in rows if re.match(rf"{re.escape(name)}, \d+$", cells[0])]
    assert [int(cells[0].split(", ")[1]) for cells in rows] == [MODELS[name]["head_dim"], 32]
    for cells in rows:
        assert cells[1:] == row(name, int(cells[0].split(", ")[1]))
