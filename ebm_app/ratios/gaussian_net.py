r"""Time score of N(0, I) -> N(0, Sigma) on the path x_t = t x_1 + sqrt(1 - t^2) x_0, with one
trainable matrix S = Sigma - I.

p_t is N(0, I + t^2 S). With M_t = (I + t^2 S)^-1 and w = M_t x, the posterior mean of the
conditional terms given x is

    E[d/dt log p_t(x_i | x_1) | x] = t ((S w)_i w_i - (S M_t)_ii),

which sum to d/dt log p_t(x) = t (w^T S w - tr(S M_t)). This form has no division by 1 - t^2.

Source: paper, appendix F.4 (arXiv:2502.02300); the form above follows from its posterior moments.
"""

import torch
from torch import Tensor, nn


class GaussianNet(nn.Module):
    """Per-dimension terms above. S is the symmetric part of a matrix (D, D) initialised to zero.

    One inverse is computed for each distinct time: a batch must consist of equally long runs of
    examples with the same time.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim, dim))

    def covariance(self) -> Tensor:
        """Sigma = I + S, (D, D)."""
        return torch.eye(len(self.weight)).to(self.weight) + (self.weight + self.weight.mT) / 2

    @torch.no_grad()
    def mutual_information(self) -> float:
        """-1/2 log det Sigma in nats, the mutual information of two sides with marginals N(0, I);
        NaN if Sigma is not positive definite."""
        return -0.5 * self.covariance().double().logdet().item()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Terms (B, D) at x (B, D), t (B,)."""
        times = len(t.detach().unique_consecutive())
        identity = torch.eye(len(self.weight)).to(x)
        s = self.covariance() - identity
        t = t.unflatten(0, (times, -1)).mean(1)[:, None, None]
        inverse = torch.linalg.inv(identity + t.square() * s)  # (times, D, D)
        w = x.unflatten(0, (times, -1)) @ inverse
        trace = (s * inverse).sum(-1)[:, None]
        return (t * ((w @ s) * w - trace)).reshape(x.shape)
