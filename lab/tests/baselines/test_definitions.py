"""Definitions of the attentions, each against the formula of its paper at small sizes."""

from math import sqrt

import pytest
import torch
from torch import Tensor
from torch.nn.functional import elu, normalize

from fastmax import reference_attention
from fastmax.core import normalized
from fastmax_lab.baselines import BaselineOptions
from fastmax_lab.baselines.fastmax import Fastmax, Released
from fastmax_lab.baselines.informer import Informer, count
from fastmax_lab.baselines.linear import Linear
from fastmax_lab.baselines.performer import Performer, log_features, orthogonal_gaussian
from fastmax_lab.baselines.reformer import Reformer
from fastmax_lab.baselines.registry import attention
from fastmax_lab.baselines.softmax import Softmax, Vanilla
from tests.support import randn


def softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / sqrt(q.shape[-1])).softmax(-1) @ v


def qkv(length: int = 24, head_dim: int = 8) -> list[Tensor]:
    return [randn(2, 3, length, head_dim) for _ in range(3)]


@pytest.mark.parametrize("layer", [Softmax(), Vanilla()])
def test_softmax(layer: torch.nn.Module) -> None:
    q, k, v = qkv()
    torch.testing.assert_close(layer(q, k, v), softmax(q, k, v))


@pytest.mark.parametrize(
    ("order", "scale", "value"),
    [(1, "paper", 1 / 8), (1, "sqrt", 1 / 8), (2, "paper", 1.0), (2, "sqrt", 1 / sqrt(8)), (4, "learned", 1 / sqrt(8))],
)
def test_fastmax(order: int, scale: str, value: float) -> None:
    q, k, v = qkv()
    layer = Fastmax(head_dim=8, num_heads=3, order=order, scale=scale).double()
    torch.testing.assert_close(layer(q, k, v), reference_attention(q, k, v, order=order, scale=value))


def test_a_learned_scale_has_a_gradient_per_head() -> None:
    layer = Fastmax(head_dim=8, num_heads=3, scale="learned").double()
    layer(*qkv()).square().sum().backward()
    assert layer.head_scale is not None
    assert layer.head_scale.grad is not None
    assert layer.head_scale.grad.abs().min() > 0
    with pytest.raises(ValueError, match="scale must be one of paper, sqrt, learned, got 'big'"):
        Fastmax(head_dim=8, num_heads=3, scale="big")


def test_the_released_fastmax_divides_by_the_largest_norm() -> None:
    q, k, v = qkv()
    largest = [x.norm(dim=-1).amax(-1)[..., None, None] for x in (q, k)]
    s = (q / largest[0]) @ (k / largest[1]).mT
    assert s.abs().max() <= 1
    weights = 1 + s + s**2 / 2
    torch.testing.assert_close(Released()(q, k, v), weights @ v / weights.sum(-1, keepdim=True))


def test_linear_equals_its_quadratic_form() -> None:
    q, k, v = qkv()
    weights = (elu(q) + 1) @ (elu(k) + 1).mT
    torch.testing.assert_close(Linear()(q, k, v), weights / weights.sum(-1, keepdim=True) @ v)


def test_performer_features_estimate_the_softmax_kernel_without_bias() -> None:
    """The mean over many draws lies within four standard errors."""
    q, k = randn(5, 4) / 2, randn(6, 4) / 2
    exact = (q @ k.mT / sqrt(4)).exp()
    draws = []
    for _ in range(3000):
        projection = orthogonal_gaussian(8, 4).double()
        draws.append(log_features(q, projection).exp() @ log_features(k, projection).exp().mT)
    estimates = torch.stack(draws)
    error = (estimates.mean(0) - exact).abs()
    allowed = 4 * estimates.std(0) / sqrt(len(draws))
    assert (error < allowed).all()
    assert (allowed < 0.1 * exact).all(), "a bias of a tenth would be seen"


def test_performer_approaches_softmax() -> None:
    q, k, v = (x / 2 for x in qkv(head_dim=4))
    expected = softmax(q, k, v)
    errors = []
    for features in (16, 4096):
        torch.manual_seed(0)
        layer = Performer(head_dim=4, num_features=features).double()
        errors.append((layer(q, k, v) - expected).square().mean().sqrt().item())
    assert errors[1] < errors[0] / 5, "sixteen times the features, a quarter of the error, twice over"
    assert errors[1] < 0.01


def test_performer_rows_are_orthogonal_gaussians() -> None:
    projection = orthogonal_gaussian(20, 8).double()
    for block in projection.split(8):
        gram = block @ block.mT
        assert (gram - gram.diagonal().diag()).abs().max() < 1e-4
    lengths = orthogonal_gaussian(4000, 8).square().sum(-1)
    assert lengths.mean() == pytest.approx(8, rel=0.05), "as long as Gaussian rows are"
    assert lengths.var() == pytest.approx(16, rel=0.2)


def test_informer_with_every_query_active_is_softmax() -> None:
    q, k, v = qkv()
    torch.testing.assert_close(Informer(max_length=24, factor=100.0)(q, k, v), softmax(q, k, v))


def test_informer_gives_the_mean_value_to_the_queries_closest_to_uniform() -> None:
    """With the sampled keys known, the active queries are those with the largest spread over them."""
    q, k, v = qkv(length=16)
    layer = Informer(max_length=16, factor=2.0).eval()
    active = count(2.0, 16)
    assert active == 6
    scores = q @ k.mT / sqrt(8)
    layer._sample = lambda q, mask, keys: torch.arange(16).expand(2, 16)[:, :keys]  # type: ignore[method-assign]  # noqa: ARG005
    expected = v.mean(2, keepdim=True).expand_as(v).clone()
    sampled = scores[..., :active]
    spread = sampled.amax(-1) - sampled.mean(-1)
    rows = spread.topk(active, -1).indices.unsqueeze(-1).expand(-1, -1, -1, 8)
    expected.scatter_(2, rows, softmax(q, k, v).gather(2, rows))
    torch.testing.assert_close(layer(q, k, v), expected)


def test_informer_samples_anew_in_training() -> None:
    layer = Informer(max_length=64, factor=1.0)
    q = randn(1, 1, 64, 4)
    assert not torch.equal(layer._sample(q, None, 4), layer._sample(q, None, 4))
    layer.eval()
    assert torch.equal(layer._sample(q, None, 4), layer._sample(q, None, 4))
    with pytest.raises(ValueError, match="at most 64 tokens, got 65"):
        layer(*(randn(1, 1, 65, 4) for _ in range(3)))


def shared_attention(q: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    """Softmax over the allowed keys, the token itself only where there is no other."""
    scores = q @ normalize(q, dim=-1).mT / sqrt(q.shape[-1])
    itself = torch.eye(q.shape[-2], dtype=torch.bool)
    others = allowed & ~itself
    seen = torch.where(others.any(-1, keepdim=True), others, itself)
    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("rounds", [1, 3])
def test_reformer_with_one_bucket_is_full_attention(rounds: int) -> None:
    q, k, v = qkv()
    layer = Reformer(head_dim=8, num_heads=3, max_length=24, rounds=rounds, chunk=24, buckets=1)
    everything = torch.ones(24, 24, dtype=torch.bool)
    torch.testing.assert_close(layer(q, k, v), shared_attention(q, v, everything))


def test_reformer_with_enough_hashes_is_full_attention() -> None:
    """Two buckets and chunks that hold all: after many rounds every pair has met at least once, and counts once."""
    q, k, v = qkv(length=12, head_dim=8)
    layer = Reformer(head_dim=8, num_heads=3, max_length=12, rounds=60, chunk=12, buckets=2).eval()
    everything = torch.ones(12, 12, dtype=torch.bool)
    torch.testing.assert_close(layer(q, k, v), shared_attention(q, v, everything))


@pytest.mark.parametrize("chunk", [3, 5, 24])
@pytest.mark.parametrize("rounds", [1, 2])
def test_reformer_by_its_definition(chunk: int, rounds: int) -> None:
    """Find by loops over tokens the pairs that meet. A token sees their union."""
    q, k, v = qkv()
    layer = Reformer(head_dim=8, num_heads=3, max_length=24, rounds=rounds, chunk=chunk, buckets=4).eval()
    bucket = layer._bucket(q, None)
    assert bucket.unique().tolist() == [0, 1, 2, 3]
    allowed = torch.zeros(2, 3, 24, 24, dtype=torch.bool)
    for b in range(2):
        for h in range(3):
            for r in range(rounds):
                buckets = bucket[b, h, r].tolist()
                order = sorted(range(24), key=lambda i, buckets=buckets: (buckets[i], i))
                place = {token: s // chunk for s, token in enumerate(order)}
                for i in range(24):
                    for j in range(24):
                        meet = buckets[i] == buckets[j] and place[i] - place[j] in (0, 1)
                        allowed[b, h, i, j] |= meet
    torch.testing.assert_close(layer(q, k, v), shared_attention(q, v, allowed))


def test_reformer_hashes_near_tokens_alike() -> None:
    q = randn(1, 1, 400, 16)
    layer = Reformer(head_dim=16, num_heads=1, max_length=400, rounds=8, buckets=8).eval()
    near = layer._bucket(q, None) == layer._bucket(q + 0.1 * randn(1, 1, 400, 16), None)
    far = layer._bucket(q, None) == layer._bucket(randn(1, 1, 400, 16), None)
    assert near.double().mean() > 0.7
    assert far.double().mean() == pytest.approx(1 / 8, abs=0.05)


def test_reformer_counts_its_buckets() -> None:
    made = [Reformer(head_dim=4, num_heads=1, max_length=n).buckets for n in (1, 64, 65, 2000, 4096)]
    assert made == [1, 1, 2, 32, 64]
    with pytest.raises(ValueError, match="buckets must be 1 or even, got 3"):
        Reformer(head_dim=4, num_heads=1, max_length=64, buckets=3)


def test_the_registry_passes_options_on() -> None:
    options = BaselineOptions(
        scale="learned", performer_features=7, reformer_rounds=3, reformer_chunk=16, informer_factor=9.0
    )
    made = {
        name: attention(name, head_dim=4, num_heads=2, max_length=64, options=options)
        for name in ("fastmax3", "performer", "reformer", "informer")
    }
    assert made["fastmax3"].order == 3
    assert made["fastmax3"].head_scale.shape == (2,)
    assert made["performer"].projection.shape == (7, 4)
    assert made["reformer"].rotations_shape == (2, 3, 4, 2)
    assert made["informer"].factor == 9.0


@pytest.mark.parametrize("decay", ["learned", "gated"])
def test_fastmax_that_forgets_fades_in_both_directions(decay: str) -> None:
    q, k, v = (torch.randn(2, 2, 9, 4, dtype=torch.float64) for _ in range(3))
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    options = BaselineOptions(decay=decay)
    layer = attention("fastmax2", head_dim=4, num_heads=2, max_length=9, embed_dim=6, options=options).double()
    assert layer.gate is not None
    log_decay = layer.gate(x)
    assert (log_decay < 0).all()
    expected = reference_attention(q, k, v, scale=0.5, log_decay=log_decay)
    torch.testing.assert_close(layer(q, k, v, log_decay=log_decay), expected)
    assert not torch.allclose(expected, reference_attention(q, k, v, scale=0.5))
    with pytest.raises(ValueError, match="decay must be one of none, learned, gated, got 'half'"):
        attention("fastmax2", head_dim=4, num_heads=2, max_length=9, options=BaselineOptions(decay="half"))


@pytest.mark.parametrize("decay", ["none", "learned", "gated"])
@pytest.mark.parametrize("standardized", [False, True])
def test_softmax_standardized_and_fading_in_both_directions(decay: str, standardized: bool) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 9, 4, dtype=torch.float64) for _ in range(3))
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    options = BaselineOptions(decay=decay, standardized=standardized)
    layer = attention("softmax", head_dim=4, num_heads=2, max_length=9, options=options).double()
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 6:] = False
    mask[0, :] = False
    log_decay = None if layer.gate is None else layer.gate(x)
    a, b = (normalized(t, "standardize") if standardized else t for t in (q, k))
    scores = a @ b.mT / 2
    if log_decay is not None:
        c = log_decay.expand(*log_decay.shape[:-1], 9).cumsum(-1)
        scores = scores - (c.unsqueeze(-1) - c.unsqueeze(-2)).abs()
    for hidden in (None, mask):
        seen = scores if hidden is None else scores.masked_fill(~hidden[:, None, None], -torch.inf)
        expected = seen.softmax(-1).nan_to_num() @ v
        given = {} if log_decay is None else {"log_decay": log_decay}
        torch.testing.assert_close(layer(q, k, v, hidden, **given), expected)
