"""Recall (MQAR, Arora 2023): pairs of a key and a value, then the keys in another order, each a question for its value."""

from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, elu, gelu, pad, scaled_dot_product_attention

from fastmax.api import fastmax_attention
from fastmax.nn import ForgetGate
from fastmax.nn.options import layer_scale
from fastmax_lab.baselines.performer import STABILIZER, log_features, orthogonal_gaussian
from fastmax_lab.experiments.training import Watch, reaches, train

SOLVED = 0.995
FEATURES = 128
"""Features of Performer."""


@dataclass(frozen=True)
class RecallRun:
    """A run with `names` of keys and as many of values.

    `filler` tokens, 0, stand between the pairs and the questions: the answer is that far away.
    """

    attention: str
    names: int = 128
    pairs: int = 64
    filler: int = 0
    lr: float = 3e-3
    seed: int = 0
    steps: int = 800
    batch: int = 16
    width: int = 64
    heads: int = 2
    scale: float | None = None
    memory: tuple[float, float] = (2.0, 12.0)


class RecallLayer(nn.Module):
    """Attention after a short causal convolution of queries, keys and values, as recall models have, then a perceptron."""

    projection: Tensor | None

    def __init__(self, run: RecallRun) -> None:
        super().__init__()
        self.attention, self.heads, self.scale = run.attention, run.heads, run.scale
        self.norms = nn.ModuleList(nn.LayerNorm(run.width) for _ in range(2))
        self.project, self.out = nn.Linear(run.width, 3 * run.width), nn.Linear(run.width, run.width)
        self.conv = nn.Parameter(torch.stack((torch.ones(3 * run.width), torch.zeros(3 * run.width))))
        self.gate = ForgetGate(run.width, run.heads, run.memory) if run.attention.endswith("gated") else None
        self.rise, self.fall = nn.Linear(run.width, 2 * run.width), nn.Linear(2 * run.width, run.width)
        features = orthogonal_gaussian(FEATURES, run.width // run.heads) if run.attention == "performer" else None
        self.register_buffer("projection", features)

    def reset(self) -> None:
        """Start additions to the residual stream at half the size."""
        for linear, gain in ((self.project, 1.0), (self.out, 0.5), (self.rise, 1.0), (self.fall, 0.5)):
            nn.init.normal_(linear.weight, std=gain / sqrt(linear.in_features))
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        qkv = self.project(y)
        qkv = qkv * self.conv[0] + pad(qkv, (0, 0, 1, -1)) * self.conv[1]
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in qkv.chunk(3, -1))
        decay = None if self.gate is None else self.gate(y)
        o = attend(self.attention, q, k, v, self.scale, decay, self.projection)
        x = x + self.out(o.transpose(1, 2).flatten(2))
        result: Tensor = x + self.fall(gelu(self.rise(self.norms[1](x))))
        return result


def attend(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None,
    log_decay: Tensor | None,
    projection: Tensor | None = None,
) -> Tensor:
    """Run causal attention by its name; `scale` replaces a layer's, `projection` is that of Performer's features."""
    if name == "softmax":
        return scaled_dot_product_attention(q, k, v, is_causal=True)
    if name == "linear":
        return _by_features(elu(q) + 1, elu(k) + 1, v)
    if name == "performer":
        assert projection is not None
        log_q, log_k = log_features(q, projection), log_features(k, projection)
        # the shifts cancel in the division: per query, and one for all keys of a head
        phi_q, phi_k = (log_q - log_q.amax(-1, keepdim=True)).exp(), (log_k - log_k.amax((-2, -1), keepdim=True)).exp()
        return _by_features(phi_q + STABILIZER, phi_k + STABILIZER, v)
    order = int(name.removeprefix("fastmax")[0])
    scale = layer_scale(order, q.shape[-1]) if scale is None else scale
    return fastmax_attention(q, k, v, is_causal=True, order=order, scale=scale, log_decay=log_decay)


def _by_features(phi_q: Tensor, phi_k: Tensor, v: Tensor) -> Tensor:
    weights = (phi_q @ phi_k.mT).tril()
    return weights @ v / weights.sum(-1, keepdim=True)


class Model(nn.Module):
    """Two layers, learned positions."""

    def __init__(self, run: RecallRun) -> None:
        super().__init__()
        torch.manual_seed(run.seed)
        length = 3 * run.pairs + run.filler
        self.tokens = nn.Embedding(2 * run.names + 1, run.width)
        self.positions = nn.Parameter(torch.randn(length, run.width) * 0.02)
        layers = [RecallLayer(run) for _ in range(2)]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.LayerNorm(run.width), nn.Linear(run.width, 2 * run.names + 1))
        nn.init.normal_(self.tokens.weight, std=0.02)
        for layer in layers:
            layer.reset()

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.head(self.layers(self.tokens(tokens) + self.positions))
        return result


def examples(run: RecallRun, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return tokens (count, N), and the right answers at questions, -100 elsewhere."""
    pairs = run.pairs
    keys = torch.rand(count, run.names, generator=generator).argsort(1)[:, :pairs] + 1
    values = torch.randint(1, run.names + 1, (count, pairs), generator=generator) + run.names
    order = torch.rand(count, pairs, generator=generator).argsort(1)
    tokens = torch.zeros(count, 3 * pairs + run.filler, dtype=torch.long)
    tokens[:, 0 : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2] = keys, values
    tokens[:, 2 * pairs + run.filler :] = keys.gather(1, order)
    answers = torch.full_like(tokens, -100)
    answers[:, 2 * pairs + run.filler :] = values.gather(1, order)
    return tokens, answers


def recall(run: RecallRun, show: Watch = lambda _step, _loss: False) -> dict[str, Any]:
    """Return the accuracy on examples that were not trained on; training stops once it is solved."""
    model = Model(run)
    generator = torch.Generator().manual_seed(run.seed)
    questions, answers = examples(run, 128, torch.Generator().manual_seed(12345))
    curve: list[tuple[int, float]] = []

    def loss_of() -> Tensor:
        tokens, labels = examples(run, run.batch, generator)
        return cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), ignore_index=-100)

    def accuracy() -> float:
        model.eval()
        with torch.no_grad():
            guesses = torch.cat([model(part).argmax(-1) for part in torch.split(questions, 32)])
        model.train()
        asked = answers != -100
        return (guesses[asked] == answers[asked]).float().mean().item()

    def watch(step: int, loss: float) -> bool:
        show(step, loss)
        if step % 100:
            return False
        curve.append((step, round(accuracy(), 4)))
        return curve[-1][1] >= SOLVED

    decayed = [
        p for name, p in model.named_parameters() if p.dim() == 2 and ".gate." not in name and "conv" not in name
    ]
    rest = [p for p in model.parameters() if all(p is not q for q in decayed)]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    result = train(model, groups, loss_of, lr=run.lr, steps=run.steps, warmup=60, watch=watch)
    return {**result, "accuracy": accuracy(), "curve": curve, "reach": reaches(model, questions[:4])}
