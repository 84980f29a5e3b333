"""Check that an installed fastmax has its kernel and that its results are right, on systems that CI builds wheels for."""

import torch

from fastmax import fastmax_attention, reference_attention
from fastmax.backends import native


def main() -> None:
    assert native.levels(), native.describe()
    q, k, v = (torch.randn(2, 3, 200, 16, dtype=torch.float64, requires_grad=True) for _ in range(3))
    for is_causal in (False, True):
        ours = fastmax_attention(q, k, v, is_causal=is_causal, backend="native")
        right = reference_attention(q, k, v, is_causal=is_causal)
        torch.testing.assert_close(ours, right)
        grads = [torch.autograd.grad(o.square().sum(), (q, k, v)) for o in (ours, right)]
        torch.testing.assert_close(*grads)
    print(f"right, with {native.describe()}")


if __name__ == "__main__":
    main()
