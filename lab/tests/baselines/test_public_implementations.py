"""Against public implementations, where they are installed: performer-pytorch, reformer-pytorch, transformers."""

import warnings
from math import log
from types import ModuleType
from typing import Any

import pytest
import torch

from fastmax_lab.baselines import performer
from fastmax_lab.baselines.informer import Informer
from fastmax_lab.baselines.reformer import Reformer
from tests.support import randn


def public(name: str) -> ModuleType:
    with warnings.catch_warnings():  # theirs to fix
        warnings.simplefilter("ignore")
        module: ModuleType = pytest.importorskip(name)
    return module


def test_performer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without stabilizers both divide the same features; they shift by other amounts, which cancel."""
    theirs = public("performer_pytorch.performer_pytorch")
    monkeypatch.setattr(performer, "STABILIZER", 0.0)
    ours = performer.Performer(head_dim=8, num_features=32).double()
    q, k, v = (randn(2, 3, 20, 8) for _ in range(3))
    options: dict[str, Any] = {"projection_matrix": ours.projection, "eps": 0.0}
    phi_q = theirs.softmax_kernel(q, is_query=True, **options)
    phi_k = theirs.softmax_kernel(k, is_query=False, **options)
    for phi, x in ((phi_q, q), (phi_k, k)):
        ratio = phi.log() - performer.log_features(x, ours.projection)
        torch.testing.assert_close(ratio, ratio[..., :1].expand_as(ratio))
    torch.testing.assert_close(ours(q, k, v), theirs.linear_attention(phi_q, phi_k, v))


def test_reformer_where_both_see_everything() -> None:
    """Theirs with two chunks, of which each sees both and across buckets; ours with one bucket and one chunk.

    One round: in theirs the first chunk of a round looks back into the round before.
    """
    theirs = public("reformer_pytorch").LSHAttention(bucket_size=16, n_hashes=1).eval()
    ours = Reformer(head_dim=8, num_heads=1, max_length=32, rounds=1, chunk=32, buckets=1).eval()
    q, v = randn(3, 32, 8), randn(3, 32, 8)
    expected = theirs(q, v)[0]
    torch.testing.assert_close(ours(q[:, None], q[:, None], v[:, None]).squeeze(1), expected)


def test_reformer_within_buckets() -> None:
    """The same rotation, one round; theirs looks from the first chunk back to the last, which shares no bucket with it."""
    theirs = public("reformer_pytorch").LSHAttention(bucket_size=8, n_hashes=1, attend_across_buckets=False).eval()
    ours = Reformer(head_dim=8, num_heads=1, max_length=32, rounds=1, chunk=8, buckets=4)
    q, v = randn(3, 32, 8), randn(3, 32, 8)
    torch.manual_seed(5)
    bucket = ours._bucket(q[:, None], None)
    assert not (bucket[..., 0:1] == bucket).all(-1).any()
    torch.manual_seed(5)
    o = ours(q[:, None], q[:, None], v[:, None]).squeeze(1)
    torch.manual_seed(5)
    torch.testing.assert_close(o, theirs(q, v)[0])


def test_informer_with_every_key_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs samples every key here, in whatever order; the active queries then follow from the spread alone."""
    module = public("transformers.models.informer.modeling_informer")
    theirs = module.InformerProbSparseAttention(8, 2, sampling_factor=1, bias=False).double().eval()
    for projection in (theirs.q_proj, theirs.k_proj, theirs.v_proj, theirs.out_proj):
        torch.nn.init.eye_(projection.weight)
    monkeypatch.setattr(torch, "randint", lambda low, high, size: torch.arange(low, high)[: size[0]])
    x = randn(2, 20, 8)
    expected = theirs(x)[0]
    ours = Informer(max_length=20, factor=4 / log(20) - 1e-9).eval()  # four active queries, as theirs
    spread = Informer._spread

    def over_all_keys(self: Informer, q: Any, k: Any, mask: Any, _: Any) -> Any:
        monkeypatch.setattr(self, "_sample", lambda q, mask, keys: torch.arange(20).expand(2, 20))  # noqa: ARG005
        return spread(self, q, k, mask, torch.ones(2, 1, 20, dtype=torch.bool))

    monkeypatch.setattr(Informer, "_spread", over_all_keys)
    heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
    o = ours(heads, heads, heads).transpose(1, 2).flatten(2)
    torch.testing.assert_close(o, expected)
