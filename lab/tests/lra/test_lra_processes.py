"""The encoder of the Long Range Arena on shards: logits and gradients of one process."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn.functional import cross_entropy

from fastmax.distributed import parallelize
from fastmax_lab.lra.batches import Batch
from fastmax_lab.lra.config import ModelPreset
from fastmax_lab.lra.model import classifier
from fastmax_lab.lra.processes import Share
from fastmax_lab.lra.quirks import Quirks
from fastmax_lab.lra.tasks import Task
from tests.distributed.pool import Pool

pytestmark = pytest.mark.slow
TASK = Task(name="made up", length=11, vocabulary=7, classes=3, pair=False, pads=True)


def run(group: ProcessGroup | None, pool: str, pair: bool, padded: bool, historical: bool) -> list[Tensor]:
    torch.manual_seed(0)
    preset = ModelPreset(dim=8, qkv=8, heads=2, mlp=8, dropout=0.0, attention_dropout=0.0, pool=pool)
    quirks = Quirks(full_length_mean=historical, zero_is_padding=historical)
    task = replace(TASK, pair=pair)
    model = classifier(task, preset, "fastmax2", quirks=quirks).double()
    shape = (4, 2) if pair else (4,)
    tokens = torch.randint(1, 7, (*shape, 11))
    lengths = torch.randint(3, 12, shape) if padded else None
    batch = Batch(tokens, lengths, torch.randint(3, (4,)))
    if group is not None:
        parallelize(model, group)
        batch = Share(0, 1, group.rank(), group.size()).of(batch)
    logits = model(batch.tokens, batch.lengths)
    loss = cross_entropy(logits, batch.labels)
    grads = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
    return [logits.detach(), *grads]


@pytest.mark.parametrize(
    ("kind", "pair", "padded", "historical"),
    [
        ("mean", False, True, False),
        ("mean", True, False, False),
        ("cls", False, True, False),
        ("mean", False, True, True),
    ],
)
def test_shards_of_a_batch(pool: Pool, kind: str, pair: bool, padded: bool, historical: bool) -> None:
    """Every rank has the loss of all; the mean of their gradients, which DDP takes, is that of one process."""
    expected = run(None, kind, pair, padded, historical)
    ranks = pool.run(3, run, kind, pair, padded, historical)
    for i, x in enumerate(expected):
        parts = torch.stack([rank[i] for rank in ranks])
        if i == 0:
            assert all(torch.equal(parts[0], part) for part in parts)
        torch.testing.assert_close(parts.mean(0), x, rtol=0, atol=1e-12)
