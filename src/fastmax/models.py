"""FastmaxLM: a whole causal language model to read and to start from.

Pre-norm blocks, rotary positions, a forget gate per token and head, tied embeddings. It trains in time linear in the length
of the text, and generates with a memory that does not grow.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from fastmax.nn import FastmaxAttention
from fastmax.nn.sharded import SharesSequence
from fastmax.state import FastmaxState, WindowState

PIECE = 1024
"""Tokens of a prompt that are read at once, so that long prompts need no more memory than this."""


@dataclass(frozen=True)
class LMConfig:
    """The sizes of a `FastmaxLM`, and the options of its attention.

        >>> LMConfig(vocabulary=256, layers=2, width=64, heads=4).order
        2

    Attributes:
        vocabulary: how many different tokens there are.
        layers: blocks of attention and perceptron.
        width: channels of a token; `heads` must divide it.
        heads: of each attention.
        mlp_ratio: the width of the perceptrons over that of the model.
        order: as in `FastmaxAttention`, like `scale`, `learn_scale`, `normalize`, `rotary` and `decay`.
        memory: the reach of the heads at the start, from 2^memory[0] to 2^memory[1] tokens.
        conv: the number of tokens that a short causal convolution before each attention sees, 0 for none: it helps recall.
        dropout: of the attention, and after each perceptron.
        window: softmax over this many of the last tokens instead of Fastmax, in the `window_layers`. Of the options above,
            `rotary`, `conv`, `dropout` and `qk_head_dim` hold there too.
        window_layers: numbers of these layers, the first being 0.
        qk_head_dim: channels of each head's queries and keys, default width / heads, as values have.
    """

    vocabulary: int
    layers: int = 4
    width: int = 256
    heads: int = 8
    mlp_ratio: int = 4
    order: int = 2
    scale: float | None = None
    learn_scale: bool = False
    normalize: bool | str = True
    rotary: bool = True
    decay: str | None = "gated"
    memory: tuple[float, float] = (2.0, 12.0)
    conv: int = 0
    dropout: float = 0.0
    window: int | None = None
    window_layers: tuple[int, ...] = ()
    qk_head_dim: int | None = None

    def __post_init__(self) -> None:
        if (self.window is None) != (len(self.window_layers) == 0):
            raise ValueError(
                f"window and window_layers must be given together, got {self.window} and {self.window_layers}"
            )
        unknown = [i for i in self.window_layers if i not in range(self.layers)]
        if unknown:
            raise ValueError(f"window_layers must be numbers from 0 to {self.layers - 1}, got {unknown[0]}")


class ShortConv(nn.Module, SharesSequence):
    """Each channel of a token mixed with that of the few tokens before it; starts as the identity."""

    def __init__(self, width: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(taps, width))
        with torch.no_grad():
            self.weight[0] = 1

    def forward(self, x: Tensor, before: Tensor | None = None) -> Tensor:
        """Mix (B, N, E) -> (B, N, E). `before`, (B, taps - 1, E), are the last inputs of the tokens before."""
        taps, tokens = len(self.weight), x.shape[1]
        if before is None and self.sequence is not None:
            before = self.sequence.before(x, taps - 1)
        x = pad(x, (0, 0, taps - 1, 0)) if before is None else torch.cat((before, x), 1)
        parts = [x[:, taps - 1 - i : taps - 1 - i + tokens] * self.weight[i] for i in range(taps)]
        return torch.stack(parts).sum(0)


@dataclass
class BlockState:
    """The memory of a block: of constant size at any number of tokens."""

    attention: FastmaxState | WindowState
    before: Tensor | None  # the last inputs of the convolution, (B, taps - 1, E)


class DecoderBlock(nn.Module):
    """Attention, then a two-layer perceptron, each after a LayerNorm and added to its input."""

    def __init__(self, c: LMConfig, attention: type[FastmaxAttention], window: int | None) -> None:
        super().__init__()
        fastmax: dict[str, Any] = {
            "order": c.order,
            "scale": c.scale,
            "learn_scale": c.learn_scale,
            "normalize": c.normalize,
            "decay": c.decay,
            "memory": c.memory,
        }
        self.attention_norm = nn.LayerNorm(c.width)
        self.conv = ShortConv(c.width, c.conv) if c.conv else None
        self.attention = attention(
            c.width,
            c.heads,
            dropout=c.dropout,
            batch_first=True,
            rotary=c.rotary,
            qk_head_dim=c.qk_head_dim,
            **(fastmax if window is None else {"window": window}),
        )
        self.mlp = nn.Sequential(
            nn.LayerNorm(c.width),
            nn.Linear(c.width, c.mlp_ratio * c.width),
            nn.GELU(),
            nn.Linear(c.mlp_ratio * c.width, c.width),
            nn.Dropout(c.dropout),
        )

    def forward(self, x: Tensor, state: BlockState | None = None) -> Tensor:
        """Run the block, (B, N, E) -> (B, N, E). With a state, which is changed, the tokens continue those before."""
        y = self.attention_norm(x)
        if self.conv is not None:
            before = None if state is None else state.before
            if state is not None and before is not None:
                state.before = torch.cat((before, y), 1)[:, y.shape[1] :]
            y = self.conv(y, before)
        # only a layer that is a sum over keys takes a state
        options = {} if state is None else {"state": state.attention}
        x = x + self.attention(y, y, y, is_causal=True, need_weights=False, **options)[0]
        result: Tensor = x + self.mlp(x)
        return result

    def new_state(self, batch: int) -> BlockState:
        weight = self.attention_norm.weight
        before = None if self.conv is None else weight.new_zeros(batch, len(self.conv.weight) - 1, len(weight))
        return BlockState(self.attention.new_state(batch), before)


class FastmaxLM(nn.Module):
    """A causal language model: tokens (B, N) -> logits of the next token at every place, (B, N, vocabulary).

    >>> model = FastmaxLM(LMConfig(vocabulary=256, layers=2, width=64, heads=4)).eval()
    >>> model.generate(torch.randint(256, (1, 20)), count=5).shape
    torch.Size([1, 25])
    """

    def __init__(self, config: LMConfig, attention: type[FastmaxAttention] = FastmaxAttention) -> None:
        """Make the model. `attention` may be another layer of the same interface, for comparisons."""
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        windows = [config.window if i in config.window_layers else None for i in range(config.layers)]
        self.blocks = nn.ModuleList(DecoderBlock(config, attention, window) for window in windows)
        self.norm = nn.LayerNorm(config.width)
        nn.init.normal_(self.tokens.weight, std=1 / sqrt(config.width))

    def forward(self, tokens: Tensor, states: list[BlockState] | None = None) -> Tensor:
        """Return logits. With `states`, which are changed, the tokens continue those before: pieces equal the whole."""
        x = self.tokens(tokens)
        for i, block in enumerate(self.blocks):
            x = block(x, None if states is None else states[i])
        return nn.functional.linear(self.norm(x), self.tokens.weight)

    def new_states(self, batch: int) -> list[BlockState]:
        """Return empty states for `batch` sequences, one per block."""
        return [block.new_state(batch) for block in self.blocks]  # type: ignore[operator]

    @torch.no_grad()
    def generate(
        self,
        tokens: Tensor,
        count: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Continue (B, N) by `count` tokens each: (B, N + count). Time and memory per token do not grow with N.

        Call it in evaluation mode, or dropout is applied.

        Args:
            tokens: the prompts, of at least one token.
            count: how many tokens to add to each.
            temperature: divides the logits: below 1 the likely tokens become likelier, at 0 the likeliest is taken.
            top_k: choose among this many of the likeliest only.
            generator: the source of random numbers; default torch's.
        """
        if tokens.dim() != 2 or tokens.shape[1] < 1:
            raise ValueError(f"tokens must be of shape (B, N) with N >= 1, got {tuple(tokens.shape)}")
        if not temperature >= 0:
            raise ValueError(f"temperature must be at least 0, got {temperature}")
        if top_k is not None and not 1 <= top_k <= self.config.vocabulary:
            raise ValueError(f"top_k must be from 1 to the vocabulary of {self.config.vocabulary}, got {top_k}")
        states, found = self.new_states(len(tokens)), [tokens]
        pieces = list(torch.split(tokens, PIECE, 1))
        for _ in range(count):
            for piece in pieces:
                logits = self(piece, states)[:, -1]
            pieces = [_choose(logits.float(), temperature, top_k, generator)]
            found += pieces
        return torch.cat(found, 1)

    def parameter_groups(self, weight_decay: float) -> list[dict[str, object]]:
        """Return groups for an optimizer: matrices decay; norms, biases, gates, convolutions and scales do not."""
        decayed: list[nn.Parameter] = []
        rest: list[nn.Parameter] = []
        for name, parameter in self.named_parameters():
            small = parameter.dim() < 2 or ".gate." in name or ".conv." in name
            (rest if small else decayed).append(parameter)
        return [{"params": decayed, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]


def _choose(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> Tensor:
    """Choose a token per row of the logits: (B, vocabulary) to (B, 1)."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    if top_k is not None:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
    return torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
