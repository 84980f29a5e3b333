"""Sequences packed one after the other: each is attended to as if it were alone."""

from typing import Any

import pytest
import torch
from transformers import DataCollatorWithFlattening

from fastmax.integrations.transformers import configure
from tests.integrations.architectures import ARCHITECTURES
from tests.support import assert_within_budget

BY_NAME = {architecture.model_type: architecture for architecture in ARCHITECTURES}


@pytest.mark.parametrize("decay", [None, "gated", "learned"])
@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_packed_is_alone(name: str, decay: str | None) -> None:
    model: Any = BY_NAME[name].build("fastmax")
    if decay is not None:
        configure(model, decay=decay, memory=(1.0, 2.0))
    sequences = [torch.randint(3, 99, (length,)).tolist() for length in (4, 1, 7)]
    collator = DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    batch = dict(collator([{"input_ids": ids} for ids in sequences]))
    batch.pop("labels")
    with torch.no_grad():
        packed = model(**batch, use_cache=False).logits
        alone = torch.cat([model(torch.tensor([ids]), use_cache=False).logits for ids in sequences], 1)
    assert_within_budget(packed, alone, alone)
    with torch.no_grad():
        joined = model(torch.cat([torch.tensor(ids) for ids in sequences])[None], use_cache=False).logits
    assert (joined[:, 4:] - alone[:, 4:]).abs().max() > 1e-3


def test_packed_rows_are_one() -> None:
    model: Any = BY_NAME["llama"].build("fastmax")
    boundaries = torch.tensor([0, 4, 11], dtype=torch.int32)
    with pytest.raises(ValueError, match="the batch must be 1, all sequences in one row, got 2"):
        model(**BY_NAME["llama"].inputs(), cu_seq_lens_q=boundaries, cu_seq_lens_k=boundaries, use_cache=False)
