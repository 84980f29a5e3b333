"""Layers and whole models under a mesh: what one process computes, with DDP and FSDP2 beside, and through checkpoints."""

from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint
from torch.distributed.checkpoint.state_dict_saver import save as save_checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from fastmax.distributed import parallelize
from fastmax.models import FastmaxLM, LMConfig
from fastmax.nn import FastmaxAttention
from tests.distributed.pool import Pool
from tests.distributed.test_exchange import refused
from tests.support import NoSumOverKeys

VOCABULARY = 11


def language_model(conv: int = 3, dtype: torch.dtype = torch.float64) -> FastmaxLM:
    torch.manual_seed(3)
    config = LMConfig(VOCABULARY, layers=2, width=8, heads=2, conv=conv, memory=(1.0, 3.0))
    model = FastmaxLM(config).to(dtype)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def text(batch: int = 2, tokens: int = 12) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(5)
    whole = torch.randint(VOCABULARY, (batch, tokens + 1), generator=chance)
    return whole[:, :-1], whole[:, 1:]


def layer_of(kind: str) -> FastmaxAttention:
    torch.manual_seed(2)
    kinds: dict[str, dict[str, Any]] = {
        "rotary": {"rotary": True, "decay": "gated", "memory": (1.0, 3.0)},
        "learned": {"learn_scale": True, "decay": "learned", "num_kv_heads": 1},
        "not first": {"batch_first": False, "rotary": True, "qk_head_dim": 2},
    }
    return FastmaxAttention(8, 2, **{"batch_first": True, **kinds[kind]}).double()


def run_layer(group: ProcessGroup | None, kind: str, is_causal: bool, lengths: tuple[int, ...]) -> list[Tensor]:
    """Output and gradient of the tokens here, and of the parameters."""
    layer = layer_of(kind)
    dim = 1 if layer.batch_first else 0
    chance = torch.Generator().manual_seed(1)
    x, do = (torch.randn(2, sum(lengths), 8, dtype=torch.float64, generator=chance) for _ in range(2))
    padding = torch.zeros(2, sum(lengths), dtype=torch.bool)
    padding[1, -3:] = True
    if group is not None:
        parallelize(layer, group)
        x, do, padding = (t.split(list(lengths), 1)[group.rank()] for t in (x, do, padding))
    x, do = ((t if dim == 1 else t.transpose(0, 1)).clone() for t in (x, do))
    x.requires_grad_()
    o, _ = layer(x, x, x, padding, need_weights=False, is_causal=is_causal)
    found = torch.autograd.grad(o, [x, *layer.parameters()], do)
    return [t if dim == 1 else t.transpose(0, 1) for t in (o.detach(), found[0])] + list(found[1:])


@pytest.mark.parametrize("kind", ["rotary", "learned", "not first"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_layer(pool: Pool, kind: str, is_causal: bool) -> None:
    lengths = (3, 0, 5, 4)
    ranks = pool.run(4, run_layer, kind, is_causal, lengths)
    for i, expected in enumerate(run_layer(None, kind, is_causal, lengths)):
        parts = [rank[i] for rank in ranks]
        found = torch.cat(parts, 1) if i < 2 else torch.stack(parts).sum(0)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def run_model(group: ProcessGroup | None, lengths: tuple[int, ...], conv: int) -> list[Tensor]:
    model, (tokens, targets) = language_model(conv), text()
    if group is not None:
        model = parallelize(model, group)
        tokens, targets = (x.split(list(lengths), 1)[group.rank()] for x in (tokens, targets))
    logits = model(tokens)
    loss = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    return [logits.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


@pytest.mark.parametrize(("lengths", "conv"), [((6, 6), 0), ((1, 0, 1, 10), 4), ((7, 1, 4), 3)])
def test_a_language_model(pool: Pool, lengths: tuple[int, ...], conv: int) -> None:
    """Its convolution reaches over shards that are shorter than it."""
    ranks = pool.run(len(lengths), run_model, lengths, conv)
    expected = run_model(None, lengths, conv)
    torch.testing.assert_close(torch.cat([rank[0] for rank in ranks], 1), expected[0], rtol=0, atol=1e-12)
    for i, grad in enumerate(expected[1:], 1):
        total = torch.stack([rank[i] for rank in ranks]).sum(0)
        torch.testing.assert_close(total, grad, rtol=1e-12, atol=1e-12)


def trained(group: ProcessGroup | None, how: str, steps: int = 3) -> list[Tensor]:
    """The parameters after a few steps on a 2-D mesh: two sequences, each over two processes."""
    model, (tokens, targets) = language_model(), text(batch=4)
    parallel: nn.Module = model
    if group is not None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
        parallelize(model, mesh["cp"], check=False)
        dp, cp = mesh.get_coordinate()
        tokens, targets = (x.chunk(2, 0)[dp].chunk(2, 1)[cp] for x in (tokens, targets))
        if how == "ddp":
            parallel = DistributedDataParallel(model)
        else:
            everybody = mesh._flatten("all") if how == "fsdp" else None
            for block in (*model.blocks, model):
                fully_shard(block, mesh=everybody)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(parallel(tokens).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
    return [(p.full_tensor() if isinstance(p, DTensor) else p).detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_two_dimensions_with_ddp_and_fsdp(pool: Pool, how: str) -> None:
    expected = trained(None, how)
    for rank in pool.run(4, trained, how):
        for actual, parameter in zip(rank, expected, strict=True):
            torch.testing.assert_close(actual, parameter, rtol=0, atol=1e-10)


def sharded_model(group: ProcessGroup) -> tuple[FastmaxLM, torch.optim.Optimizer]:
    mesh = init_device_mesh("cpu", (group.size(),)) if group.size() == distributed.get_world_size() else None
    model = language_model(dtype=torch.float32)
    if mesh is not None:
        parallelize(model, mesh)
        fully_shard(model, mesh=mesh)
    else:
        parallelize(model, group)
    return model, torch.optim.AdamW(model.parameters())


def save(group: ProcessGroup, folder: str) -> Tensor:
    model, _ = sharded_model(group)
    save_checkpoint({"model": get_model_state_dict(model)}, checkpoint_id=folder, process_group=group)
    tokens = text()[0].chunk(group.size(), 1)[group.rank()]
    return model(tokens).detach()


def load(group: ProcessGroup, folder: str) -> Tensor:
    model, _ = sharded_model(group)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    held = {"model": get_model_state_dict(model)}
    load_checkpoint(held, checkpoint_id=folder, process_group=group)
    set_model_state_dict(model, held["model"])
    tokens = text()[0].chunk(group.size(), 1)[group.rank()]
    return model(tokens).detach()


def test_a_checkpoint_of_four_processes_is_resumed_by_others(pool: Pool, tmp_path: Path) -> None:
    written = torch.cat(pool.run(4, save, str(tmp_path / "held")), 1)
    for size in (4, 2):
        found = torch.cat(pool.run(size, load, str(tmp_path / "held")), 1)
        torch.testing.assert_close(found, written, rtol=0, atol=1e-5)


def test_a_copy_is_for_the_same_processes_and_undone_it_decodes(pool: Pool) -> None:
    model = parallelize(language_model(), pool.groups[1])
    copy = deepcopy(model)
    attention: Any = copy.blocks[0]
    assert attention.attention.sequence is not None
    with pytest.raises(ValueError, match=r"does not decode: parallelize\(model, None\) undoes it"):
        model.generate(text()[0], 2)
    expected = language_model().generate(text()[0], 2, temperature=0)
    assert torch.equal(parallelize(model, None).generate(text()[0], 2, temperature=0), expected)


def other_layers(group: ProcessGroup, kind: str) -> None:
    makes = {
        "none": lambda: nn.Linear(2, 2),
        "bias": lambda: FastmaxAttention(8, 2, add_bias_kv=True),
        "softmax": lambda: NoSumOverKeys(8, 2),
        "unequal": lambda: FastmaxAttention(8, 2 + 2 * group.rank()),
    }
    parallelize(makes[kind](), group)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("none", "there is no FastmaxAttention in this model"),
        ("bias", "add_bias_kv and add_zero_attn have keys that are in no shard"),
        ("softmax", "NoSumOverKeys is no sum over keys"),
        ("unequal", "num_heads=4"),
    ],
)
def test_models_that_cannot_share_a_sequence(pool: Pool, kind: str, words: str) -> None:
    told = pool.run(2, refused, partial(other_layers, kind=kind))
    assert told[0] == told[1]
    assert words in told[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "need_weights must be False"),
        ({"need_weights": False, "attn_mask": torch.zeros(3, 3)}, "use is_causal and key_padding_mask"),
    ],
)
def test_calls_that_need_all_tokens(pool: Pool, options: dict[str, Any], words: str) -> None:
    layer, x = parallelize(FastmaxAttention(8, 2), pool.groups[1]), torch.ones(3, 1, 8)
    with pytest.raises(ValueError, match=words):
        layer(x, x, x, **options)
    nested = torch.nested.as_nested_tensor([torch.ones(2, 8), torch.ones(3, 8)], layout=torch.jagged)
    with pytest.raises(ValueError, match="a nested tensor has no shard"):
        layer(nested, nested, nested, need_weights=False)
