r"""The time score of N(0, I) -> N(0, Sigma) on the path x_t = t x_1 + sqrt(1 - t^2) x_0, with one
matrix S = Sigma - I to learn.

p_t is N(0, I + t^2 S). With M_t = (I + t^2 S)^-1 and w = M_t x, the posterior mean of the
conditional components given x is

    E[d/dt log p_t(x_i | x_1) | x] = t ((S w)_i w_i - (S M_t)_ii),

which sum to d/dt log p_t(x) = t (w^T S w - tr(S M_t)). Written so, nothing is divided by 1 - t^2.

Source: paper, appendix F.4 (arXiv:2502.02300); the form above follows from its posterior moments.
"""

import torch
from torch import Tensor, nn


class GaussianNet(nn.Module):
    """The components above; S is the symmetric part of a free matrix (D, D) that starts at zero.

    An inverse is taken for each distinct time, not for each example: the times of a batch come in
    equal runs, of any length.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.free = nn.Parameter(torch.zeros(dim, dim))

    def covariance(self) -> Tensor:
        """Sigma = I + S, (D, D)."""
        return torch.eye(len(self.free)).to(self.free) + (self.free + self.free.mT) / 2

    @torch.no_grad()
    def mutual_information(self) -> float:
        """-1/2 log det Sigma, in nats, where the two marginals are N(0, I); NaN for a Sigma that
        is not positive."""
        return -0.5 * self.covariance().double().logdet().item()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """x (B, D), t (B,) -> components (B, D)."""
        times = len(t.detach().unique_consecutive())
        identity = torch.eye(len(self.free)).to(x)
        s = self.covariance() - identity
        t = t.unflatten(0, (times, -1)).mean(1)[:, None, None]
        inverse = torch.linalg.inv(identity + t.square() * s)  # (times, D, D)
        w = x.unflatten(0, (times, -1)) @ inverse
        trace = (s * inverse).sum(-1)[:, None]
        return (t * ((w @ s) * w - trace)).reshape(x.shape)
