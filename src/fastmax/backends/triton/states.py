"""The state as the kernels have it, about a centre, and back: linear maps, in fp32, where a call begins and ends.

Public (features.py): 1; x_m; x_m x_l for m <= l, squares over sqrt(2); columns [v, 1]. The kernels (kernels/accumulate.py):
pairs of blocks, then x_m, for the columns v; then Z: the last column, x_m x_l and x_m, the constant row, and the sum of ones.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad


class Centres(NamedTuple):
    """The centres of sums of keys and of values, (sequences, Hkv, channels), fp32."""

    x: Tensor  # (.., D)
    v: Tensor  # (.., Dv)


class Shape(NamedTuple):
    """The shape of a state: its channels, the padded ones, order and block."""

    dim: int
    value_dim: int
    d: int
    dv: int
    order: int
    block: int

    @property
    def rows(self) -> int:
        blocks = self.d // self.block
        return (blocks * (blocks + 1) // 2 * self.block**2 if self.order == 2 else 0) + self.d

    @property
    def square(self) -> int:
        return self.d**2 if self.order == 2 else 0

    @property
    def body(self) -> int:
        """Return the numbers of S; those of the column, Z, follow."""
        return self.rows * self.dv

    @property
    def size(self) -> int:
        """Return the numbers of a state, a multiple of 16, so that each begins aligned."""
        return self.body + -(-(self.square + self.d + self.dv + 1) // 16) * 16

    @property
    def constants(self) -> dict[str, int]:
        """Return the compile-time constants of the kernels that sum and read states."""
        sizes = {"ROWS": self.rows, "SQUARE": self.square, "SIZE": self.size}
        return {"D": self.d, "DV": self.dv, "ORDER": self.order, "B": self.block} | sizes


class _Index(NamedTuple):
    m: Tensor  # of the pairs m <= l
    l: Tensor  # noqa: E741  (the name it has everywhere)
    diagonal: Tensor  # where m == l
    factor: Tensor  # sqrt(2) there, else 1
    pair_of_row: Tensor  # of the rows of the pairs of blocks; the last is a row of zeros
    row_of_pair: Tensor
    pair_of_square: Tensor
    pair_of_channels: Tensor  # the same of the channels that there are


@lru_cache(maxsize=64)
def _index(shape: Shape, device: torch.device) -> _Index:
    dim, d, block = shape.dim, shape.d, shape.block
    m, l = torch.triu_indices(dim, dim)  # noqa: E741
    number = torch.full((d, d), len(m))
    number[m, l] = number[l, m] = torch.arange(len(m))
    blocks = [(i, j) for i in range(d // block) for j in range(i + 1)]
    parts = [number[i * block : (i + 1) * block, j * block : (j + 1) * block].flatten() for i, j in blocks]
    i, j = l // block, m // block
    row = (i * (i + 1) // 2 + j) * block**2 + (l % block) * block + m % block
    found = (m, l, (m == l).nonzero().flatten(), torch.where(m == l, 2**0.5, 1.0), torch.cat(parts), row)
    squares = (number.flatten(), number[:dim, :dim].flatten())
    return _Index(*(x.to(device) for x in (*found, *squares)))


def mean_of(state: Tensor, shape: Shape, dtype: torch.dtype) -> Centres:
    """Return the means of the keys and values of a state, rounded to `dtype` and padded; zeros for an empty state."""
    count = state[..., :1, -1:]
    safe = torch.where(count > 0, count, 1)
    x = torch.where(count > 0, state[..., 1 : 1 + shape.dim, -1:] / safe, 0).squeeze(-1)
    v = torch.where(count > 0, state[..., :1, :-1] / safe, 0).squeeze(-2)
    if shape.order == 2:  # no mean is beyond the root mean square, unless this is no state of keys
        squares = state[..., 1 + shape.dim :, -1].index_select(-1, _index(shape, state.device).diagonal)
        most = (2**0.5 * squares / safe.squeeze(-1)).clamp(min=0).sqrt()
        x = x.clamp(-most, most)
    x, v = (y.to(dtype).float() for y in (x, v))
    return Centres(pad(x, (0, shape.d - shape.dim)).contiguous(), pad(v, (0, shape.dv - shape.value_dim)).contiguous())


def _about(moments: list[Tensor], centre: Tensor, index: _Index | None, *, adjoint: bool) -> list[Tensor]:
    """Convert sums of powers of x (degrees 0, 1, and 2 if there is an index) to sums of powers of x - c, or adjoint."""
    s0, s1, *s2 = moments
    c = centre.unsqueeze(-1)
    if adjoint:
        if index is None:
            return [s0 + (c * s1).sum(-2, keepdim=True), s1]
        dim = centre.shape[-1]
        square = s2[0].index_select(-2, index.pair_of_channels)
        square = square.reshape(*square.shape[:-2], dim, dim, square.shape[-1])
        near = (square * c.unsqueeze(-3)).sum(-2)
        return [s0 + (c * (s1 + near / 2)).sum(-2, keepdim=True), s1 + near, s2[0]]
    found = [s0, s1 - c * s0]
    if index is not None:
        cm, cl, s1m, s1l = (x.index_select(-2, i) for x in (c, s1) for i in (index.m, index.l))
        found.append(s2[0] - cm * s1l - cl * s1m + cm * cl * s0)
    return found


def to_kernels(state: Tensor, shape: Shape, centres: Centres, *, adjoint: bool) -> Tensor:
    """Return the public state (sequences, Hkv, F, Dv + 1) about the centres; `adjoint`: the gradient of one."""
    index = _index(shape, state.device) if shape.order == 2 else None
    moments = [state[..., :1, :], state[..., 1 : 1 + shape.dim, :]]
    if index is not None:
        moments.append(state[..., 1 + shape.dim :, :] * index.factor.to(state.dtype).unsqueeze(-1))
    moments = _about(moments, centres.x[..., : shape.dim], index, adjoint=adjoint)
    moments = [_columns(x, centres.v[..., : shape.value_dim], adjoint) for x in moments]
    constant, linear = (pad(x, (0, 0, 0, (shape.d - shape.dim) * i)) for i, x in enumerate(moments[:2]))
    rows, column = [linear[..., :-1]], [linear[..., -1], constant[..., 0, :-1], constant[..., 0, -1:]]
    column[1] = pad(column[1], (0, shape.dv - shape.value_dim))
    if index is not None:
        pairs = pad(moments[2], (0, 0, 0, 1))
        rows.insert(0, pairs[..., :-1].index_select(-2, index.pair_of_row))
        column.insert(0, pairs[..., -1].index_select(-1, index.pair_of_square))
    body = pad(torch.cat(rows, -2), (0, shape.dv - shape.value_dim)).flatten(-2)
    found = torch.cat([body, *column], -1)
    return pad(found, (0, shape.size - found.shape[-1]))


def from_kernels(state: Tensor, shape: Shape, centres: Centres, *, adjoint: bool) -> Tensor:
    """Return the public state: the inverse of `to_kernels`."""
    dim, d, square = shape.dim, shape.d, shape.square
    s, z = state[..., : shape.body].reshape(*state.shape[:-1], shape.rows, shape.dv), state[..., shape.body :]
    index = _index(shape, s.device) if shape.order == 2 else None
    row, number = z[..., square + d :][..., : shape.value_dim], square + d + shape.dv
    constant = torch.cat([row, z[..., number : number + 1]], -1).unsqueeze(-2)
    linear = torch.cat([s[..., -d:, : shape.value_dim][..., :dim, :], z[..., square : square + dim].unsqueeze(-1)], -1)
    moments = [constant, linear]
    if index is not None:
        body = s.index_select(-2, index.row_of_pair)[..., : shape.value_dim]
        last = z.index_select(-1, index.m * d + index.l).unsqueeze(-1)
        moments.append(torch.cat([body, last], -1))
    moments = [_columns(x, -centres.v[..., : shape.value_dim], adjoint) for x in moments]
    moments = _about(moments, -centres.x[..., :dim], index, adjoint=adjoint)
    if index is not None:
        moments[2] = moments[2] / index.factor.to(s.dtype).unsqueeze(-1)
    return torch.cat(moments, -2)


def _columns(x: Tensor, centre: Tensor, adjoint: bool) -> Tensor:
    """Convert columns [v, 1] to [v - c, 1], or their gradients."""
    values, last = x[..., :-1], x[..., -1:]
    if adjoint:
        return torch.cat([values, last + values @ centre.unsqueeze(-1)], -1)
    return torch.cat([values - last * centre.unsqueeze(-2), last], -1)
