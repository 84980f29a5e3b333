"""Linear attention (Katharopoulos et al. 2020): similarity phi(q) . phi(k) with phi = elu + 1."""

from torch import Tensor
from torch.nn.functional import elu

from fastmax_lab.baselines.interface import Attention, without_padding


class Linear(Attention):
    """O(N) and without options: there is no matrix of weights, so there is nothing that attention dropout could drop."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        k, v = without_padding(mask, k, v)
        (phi_k,) = without_padding(mask, feature_map(k))
        return kernel_attention(feature_map(q), phi_k, v)


def feature_map(x: Tensor) -> Tensor:
    return elu(x) + 1


def kernel_attention(phi_q: Tensor, phi_k: Tensor, v: Tensor) -> Tensor:
    """Attend with the similarity phi(q) . phi(k) >= 0, keys summed first; zeros where that is 0 for every key."""
    numerator = phi_q @ (phi_k.mT @ v)
    denominator = phi_q @ phi_k.sum(-2).unsqueeze(-1)
    return numerator / denominator.masked_fill(denominator == 0, 1)
