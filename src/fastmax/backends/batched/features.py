"""Monomials of degree 1 and 2 in blocks of channels, so that the features of all tokens are never stored at once.

The first block is the constant and the channels. The others have the products x_i x_l of 8 channels i with all l from the
first of these on, so products of two of the 8 channels occur twice and count half.

Sums in half precision are about a centre c, the mean of some keys: with b = q . c,

    f(q . k) = f(b) + f'(b) q . (k - c) + (q . (k - c))^2 / 2

so the first block is [1, k - c] for keys and [f(b), f'(b) q] for queries.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from fastmax import dropout
from fastmax.backends.batched.products import add_product
from fastmax.core import similarity


class Block(NamedTuple):
    """The products of channels start:stop with later ones, 8 channels at a time; the first block has none."""

    start: int
    stop: int

    def pieces(self, head_dim: int) -> Iterator[tuple[slice, int, int]]:
        """Yield where the products of channels a:b with those from a on are among the features, a and b."""
        begin = 0
        for a in range(self.start, self.stop, ROWS):
            b = min(a + ROWS, self.stop)
            end = begin + (b - a) * (head_dim - a)
            yield slice(begin, end), a, b
            begin = end


ROWS = 8
"""Channels whose products with each other are computed twice: with 64 channels a ninth more than there are monomials."""

MOST_FEATURES = 1408
"""Features of a block. Its sums over tokens, and those over features, are one product each."""


@lru_cache(maxsize=64)
def blocks(head_dim: int, order: int) -> list[Block]:
    found = [Block(0, 0)]
    start = 0
    for stop in range(ROWS, head_dim + ROWS, ROWS) if order == 2 else ():
        following = Block(start, min(stop + ROWS, head_dim))
        if stop >= head_dim or width(following, head_dim) > MOST_FEATURES:
            found.append(Block(start, min(stop, head_dim)))
            start = stop
    return found


def width(block: Block, head_dim: int) -> int:
    """Return the number of features of a block."""
    return max((at.stop for at, _, _ in block.pieces(head_dim)), default=head_dim + 1)


@lru_cache(maxsize=256)
def _weights(head_dim: int, block: Block, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return what each product counts, (f, 1)."""
    result = []
    for _, a, b in block.pieces(head_dim):
        piece = torch.ones(b - a, head_dim - a, device=device, dtype=dtype)
        piece[:, : b - a] = 0.5
        result.append(piece.flatten())
    return torch.cat(result).unsqueeze(-1)


def weigh(sums: Tensor, block: Block, head_dim: int, out: Tensor) -> Tensor:
    """Store sums of a block, (..., f, J), as they are read: by their weights, in the dtype of the products."""
    if block.stop == 0:
        return out.copy_(sums)
    return torch.mul(sums, _weights(head_dim, block, sums.device, sums.dtype), out=out)


def weighed(x: Tensor, block: Block, head_dim: int) -> Tensor:
    """Return x, (..., f), times what each product counts."""
    return x if block.stop == 0 else x * _weights(head_dim, block, x.device, x.dtype).mT


@lru_cache(maxsize=256)
def _rows(head_dim: int, block: Block, device: torch.device) -> Tensor:
    """Return the packed monomials (features.py of the library) of a block, (f,)."""
    if block.stop == 0:
        return torch.arange(head_dim + 1, device=device)
    pieces = [torch.cartesian_prod(torch.arange(a, b), torch.arange(a, head_dim)) for _, a, b in block.pieces(head_dim)]
    pairs = torch.cat(pieces)
    low, high = pairs.amin(1), pairs.amax(1)
    return (1 + head_dim + low * head_dim - low * (low - 1) // 2 + high - low).to(device)


@lru_cache(maxsize=64)
def _packing(head_dim: int, order: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return for each packed monomial a feature of all blocks that is it, and the factor 1 / sqrt(a!), (F, 1)."""
    cpu = torch.device("cpu")
    rows = torch.cat([_rows(head_dim, block, cpu) for block in blocks(head_dim, order)])
    features = int(rows.max()) + 1
    index = torch.empty(features, dtype=torch.int64).scatter_(0, rows, torch.arange(len(rows)))
    factors = torch.ones(features, 1, dtype=dtype)
    if order == 2:
        i = torch.arange(head_dim)
        factors[1 + head_dim + i * head_dim - i * (i - 1) // 2] = 0.5**0.5
    return index.to(device), factors.to(device)


def pack(sums: list[Tensor], head_dim: int, order: int) -> Tensor:
    """Convert the sums of all blocks, (states, H, f, J), to a state, (states, H, F, J)."""
    index, factors = _packing(head_dim, order, sums[0].device, sums[0].dtype)
    return torch.cat(sums, 2).index_select(2, index) * factors


def unpack(state: Tensor, block: Block, head_dim: int, order: int) -> Tensor:
    """Return the sums of a block of a state: the adjoint of `pack` too, by the weights of `weigh`."""
    _, factors = _packing(head_dim, order, state.device, state.dtype)
    return (state / factors).index_select(2, _rows(head_dim, block, state.device))


class Words(NamedTuple):
    """The words that decide which features dropout keeps: of the tokens, (B, H, slots, n), and of the features, (F,)."""

    add: Tensor
    multiply: Tensor
    whole: dropout.Dropout

    def factors(self, block: Block, head_dim: int, at: slice, dtype: torch.dtype) -> Tensor | None:
        """Return the factors on the features of a block, (B, H, slots, n, f), or None if it drops none."""
        if block.stop == 0 and self.whole.mode == "quadratic":
            return None
        words = self.whole.features[_rows(head_dim, block, self.add.device)]
        add, multiply = (x[:, :, at].unsqueeze(-1) for x in (self.add, self.multiply))
        kept = dropout.factors(words, add, multiply, self.whole.rate, dtype)
        if block.stop == 0:
            kept[..., 0] = 1
        return kept


@dataclass
class Tokens:
    """Normalized queries (times the scale) or keys of all heads in slots, and their features."""

    x: Tensor  # (B, Hkv, slots, n, D), in the dtype of sums; keys less their centre
    order: int
    half: torch.dtype  # of products
    words: Words | None = None
    centre: Tensor | None = None  # (B, Hkv, slots or 1, 1, D), of queries
    plain: Tensor | None = None  # keys with their centre

    @cached_property
    def narrow(self) -> Tensor:
        """The tokens in the dtype of products."""
        return self.x.to(self.half)

    @cached_property
    def dense(self) -> Tensor:
        """The tokens of the dense form, in the dtype of products; at order 2 with a channel that adds 1 to q . k."""
        x = self.narrow if self.plain is None else self.plain.to(self.half)
        if self.order != 2:
            return x
        more = x.new_zeros(*x.shape[:-1], 8 if self.half.itemsize == 2 else 1)
        more[..., 0] = 1
        return torch.cat([x, more], -1)

    def reversed(self) -> "Tokens":
        """Return the same in reverse order of slots."""
        words = self.words and self.words._replace(add=self.words.add.flip(2), multiply=self.words.multiply.flip(2))
        centre = self.centre if self.centre is None or self.centre.shape[2] == 1 else self.centre.flip(2)
        return Tokens(self.x.flip(2), self.order, self.half, words, centre)

    @cached_property
    def _low(self) -> Tensor:
        if self.centre is None:
            return torch.cat([torch.ones_like(self.x[..., :1]), self.x], -1)
        b = self.x @ self.centre.mT
        return torch.cat([similarity(b, self.order), self.x * similarity(b, self.order - 1)], -1)

    def features(self, block: Block, at: slice) -> Tensor:
        """Return the features of some slots, (B, Hkv, slots, n, f). Those of the first block are not rounded."""
        if block.stop == 0:
            found = self._low[:, :, at]
        else:
            x = self.narrow[:, :, at]
            found = x.new_empty(*x.shape[:-1], width(block, x.shape[-1]))
            for piece, a, b in block.pieces(x.shape[-1]):
                out = found[..., piece].view(*x.shape[:-1], b - a, x.shape[-1] - a)
                torch.mul(x[..., a:b, None], x[..., None, a:], out=out)
        kept = self._kept(block, at, found.dtype)
        return found if kept is None else found * kept

    def _kept(self, block: Block, at: slice, dtype: torch.dtype) -> Tensor | None:
        return None if self.words is None else self.words.factors(block, self.x.shape[-1], at, dtype)

    def add_vjp(self, block: Block, at: slice, d: Tensor, dx: Tensor) -> None:
        """Add the gradient of x[:, :, at], given that of its features, to dx."""
        kept = self._kept(block, at, d.dtype)
        if kept is not None:
            d = d * kept
        dx = dx[:, :, at]
        if block.stop == 0:
            if self.centre is None:
                dx.add_(d[..., 1:])
                return
            x, centre = self.x[:, :, at], self.centre if self.centre.shape[2] == 1 else self.centre[:, :, at]
            slope = similarity(x @ centre.mT, self.order - 1)
            bend = d[..., :1] * slope
            if self.order == 2:
                bend = bend + (x * d[..., 1:]).sum(-1, keepdim=True)
            dx.add_((bend * centre).addcmul_(d[..., 1:], slope))
            return
        x = self.narrow[:, :, at]
        for piece, a, b in block.pieces(x.shape[-1]):
            each = d[..., piece].view(*x.shape[:-1], b - a, -1)
            add_product(dx[..., a:b, None], each, x[..., a:, None])
            add_product(dx[..., a:, None], each.mT, x[..., a:b, None])
