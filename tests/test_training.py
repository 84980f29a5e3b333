"""Models with Fastmax inside learn, with every dropout mode; the curve is in the message if one does not."""

import pytest
import torch
from torch import Tensor, nn

from fastmax import FastmaxAttention, dropout, replace_attention

STEPS, WIDTH, SYMBOLS, LENGTH = 200, 32, 12, 10
MODES = pytest.mark.parametrize("mode", dropout.MODES)


class Decoder(nn.Module):
    """A decoder-only stack of two layers."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, WIDTH)
        self.attention = nn.ModuleList(
            FastmaxAttention(WIDTH, 4, 0.1, batch_first=True, rotary=True, dropout_mode=mode) for _ in range(2)
        )
        self.norm = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH)) for _ in range(2)
        )
        self.out = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for attention, norm, mlp in zip(self.attention, self.norm, self.mlp, strict=True):
            y = norm(x)
            x = x + attention(y, y, y, need_weights=False, is_causal=True)[0]
            x = x + mlp(x)
        logits: Tensor = self.out(x)
        return logits


class Reverser(nn.Module):
    """nn.Transformer of two layers, its attention replaced, to write a sequence backwards."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, WIDTH)
        self.position = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.3)
        self.model = nn.Transformer(WIDTH, 4, 2, 2, 64, dropout=0.1, batch_first=True)
        replacement = replace_attention(self.model, dropout_mode=mode)
        assert len(replacement.replaced) == 6
        self.out = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        x, y = (self.embed(t) + self.position for t in (source, target))
        logits: Tensor = self.out(self.model(x, y, tgt_mask=causal, tgt_is_causal=True))
        return logits


def train(model: nn.Module, batch: int, translate: bool) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    curve = []
    for _ in range(STEPS):
        if translate:
            source = torch.randint(1, SYMBOLS, (batch, LENGTH))
            target = source.flip(1)
            logits = model(source, torch.cat([torch.zeros(batch, 1, dtype=torch.long), target[:, :-1]], 1))
        else:  # the same few symbols again and again: to go on, look back
            period = torch.randint(SYMBOLS, (batch, LENGTH // 2))
            tokens = torch.cat([period, period], 1)
            logits, target = model(tokens[:, :-1])[:, LENGTH // 2 :], tokens[:, LENGTH // 2 + 1 :]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    return curve


def assert_learned(curve: list[float]) -> None:
    shown = ", ".join(f"{x:.3f}" for x in curve[:: STEPS // 20])
    start, end = sum(curve[:10]) / 10, sum(curve[-10:]) / 10
    assert end < 0.85 * start, f"the loss went from {start:.3f} to {end:.3f}: {shown}"


@MODES
def test_a_decoder_learns(mode: str) -> None:
    assert_learned(train(Decoder(mode), 32, translate=False))


@MODES
def test_a_transformer_learns(mode: str) -> None:
    assert_learned(train(Reverser(mode), 32, translate=True))


@MODES
def test_the_layer_drops_in_training_only(mode: str) -> None:
    layer = FastmaxAttention(16, 2, 0.5, batch_first=True, dropout_mode=mode)
    still = FastmaxAttention(16, 2, 0.0, batch_first=True, dropout_mode=mode)
    still.load_state_dict(layer.state_dict())
    x = torch.randn(2, 9, 16)
    expected = still(x, x, x, need_weights=False)[0]
    torch.manual_seed(1)
    first = layer(x, x, x, need_weights=False)[0]
    torch.manual_seed(1)
    assert torch.equal(layer(x, x, x, need_weights=False)[0], first)
    assert not torch.allclose(layer(x, x, x, need_weights=False)[0], first)
    assert not torch.allclose(first, expected)
    assert torch.equal(layer.eval()(x, x, x, need_weights=False)[0], expected)
