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
    """The tables of a shape. A number of the public state, (F, Dv + 1), is counted row by row, and the next one is a zero."""

    m: Tensor  # of the pairs m <= l
    l: Tensor  # noqa: E741  (the name it has everywhere)
    diagonal: Tensor  # where m == l
    factor: Tensor  # (F, 1): sqrt(2) for squares, else 1
    pair_of_channels: Tensor  # (D * D,)
    public: Tensor  # the number of the public state at each place of the kernels'
    places: Tensor  # a place of each number of the public state


@lru_cache(maxsize=64)
def _index(shape: Shape, device: torch.device) -> _Index:
    dim, d, block, columns = shape.dim, shape.d, shape.block, shape.value_dim + 1
    pairs = shape.order == 2
    m, l = torch.triu_indices(dim, dim) if pairs else torch.empty(2, 0, dtype=torch.int64)  # noqa: E741
    features = 1 + dim + len(m)
    zero = features  # a row of zeros
    row_of = torch.full((d, d), zero)
    row_of[m, l] = row_of[l, m] = 1 + dim + torch.arange(len(m))
    blocks = [(i, j) for i in range(d // block) for j in range(i + 1)] if pairs else []
    parts = [row_of[i * block : (i + 1) * block, j * block : (j + 1) * block].flatten() for i, j in blocks]
    linear = torch.full((d,), zero)
    linear[:dim] = torch.arange(1, 1 + dim)
    # of each row and padded column, the last of which is Z's
    number = torch.full((features + 1, shape.dv + 1), features * columns)
    number[:features, [*range(columns - 1), shape.dv]] = torch.arange(features * columns).view(features, columns)
    rows = torch.cat([*parts, linear])
    column = [row_of.flatten()] if pairs else []
    z = [number[torch.cat([*column, linear]), -1], number[0]]
    public = torch.cat([number[rows, :-1].flatten(), *z])
    public = pad(public, (0, shape.size - len(public)), value=features * columns)
    # of two places with the same number, that of the lower channel first
    i, j = l // block, m // block
    pair = (i * (i + 1) // 2 + j) * block**2 + (l % block) * block + m % block
    row = torch.cat([torch.arange(dim) + shape.rows - d, pair])
    body = row.unsqueeze(-1) * shape.dv + torch.arange(columns - 1)
    last = shape.body + torch.cat([torch.arange(dim) + shape.square, m * d + l])
    first = shape.body + shape.square + d + torch.arange(shape.dv + 1)[[*range(columns - 1), shape.dv]]
    places = torch.cat([first.unsqueeze(0), torch.cat([body, last.unsqueeze(-1)], 1)]).flatten()
    factor = torch.ones(features, 1)
    factor[1 + dim :][m == l] = 2**0.5
    channels = (row_of[:dim, :dim] - 1 - dim).flatten()
    found = (m, l, (m == l).nonzero().flatten(), factor, channels, public, places)
    return _Index(*(x.to(device) for x in found))


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


def _about(state: Tensor, shape: Shape, centres: Centres, index: _Index, *, adjoint: bool) -> None:
    """Convert sums of powers of x and of [v, 1], in place, to those of x - c and [v - c, 1], or gradients of such sums."""
    values, last = state[..., :-1], state[..., -1:]
    c, cv = centres.x[..., : shape.dim].unsqueeze(-1), centres.v[..., : shape.value_dim].unsqueeze(-2)
    s0, s1, s2 = state[..., :1, :], state[..., 1 : 1 + shape.dim, :], state[..., 1 + shape.dim :, :]
    if adjoint:
        last.add_(values @ cv.mT)
        near: Tensor | float = 0.0
        if shape.order == 2:
            square = s2.index_select(-2, index.pair_of_channels).view(*s2.shape[:2], shape.dim, shape.dim, s2.shape[3])
            near = (square * c.unsqueeze(-3)).sum(-2)
        s0.add_((c * (s1 + near / 2)).sum(-2, keepdim=True))
        s1.add_(near)
        return
    values.addcmul_(last, cv, value=-1)
    s1l = s1.index_select(-2, index.l)
    s1.addcmul_(c, s0, value=-1)
    if shape.order == 2:
        cm, cl = (c.index_select(-2, i) for i in (index.m, index.l))
        s2.addcmul_(cm, s1l, value=-1).addcmul_(cl, s1.index_select(-2, index.m), value=-1)


def to_kernels(state: Tensor, shape: Shape, centres: Centres, *, adjoint: bool) -> Tensor:
    """Return the public state (sequences, Hkv, F, Dv + 1) about the centres; `adjoint`: the gradient of one."""
    index = _index(shape, state.device)
    state = state * index.factor
    _about(state, shape, centres, index, adjoint=adjoint)
    return pad(state.flatten(-2), (0, 1)).index_select(-1, index.public)


def from_kernels(state: Tensor, shape: Shape, centres: Centres, *, adjoint: bool) -> Tensor:
    """Return the public state: the inverse of `to_kernels`."""
    index = _index(shape, state.device)
    found = state.flatten(2).index_select(-1, index.places)
    found = found.view(*state.shape[:2], len(index.factor), shape.value_dim + 1)
    _about(found, shape, Centres(-centres.x, -centres.v), index, adjoint=adjoint)
    return found.div_(index.factor)
