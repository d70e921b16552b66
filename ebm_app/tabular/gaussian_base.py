r"""The log ratio of two Gaussians, to start from.

With means mu_i, the covariances of both samples by Ledoit and Wolf, C_i, and their mean C,

    S_i = (1 - s) C + s C_i,   b(x) = log N(x; mu_1, S_1) - log N(x; mu_0, S_0):

linear in x for s = 0, the quadratic one for s = 1.

Source: Friedman, J. Am. Stat. Assoc. 84, 1989 (regularised discriminant analysis).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ebm_app.numerics.tensors import sum_except_batch

#: shares s of a sample's own covariance that are tried
SHARES = (0.0, 0.5, 1.0)


@dataclass(frozen=True)
class GaussianRatio:
    """b by the means (D,), whitening matrices W (D, D), S^-1 = W W^T, and log determinants of S of
    both samples; float64.

    >>> x0 = torch.randn(4_000, 2, generator=torch.Generator().manual_seed(0)).double()
    >>> base = GaussianRatio.fit(x0, x0 + 1, share=0.0)  # x_1 + x_2 - 1
    >>> round(base(torch.tensor([[1.0, 1.0]], dtype=torch.float64)).item())
    1
    """

    means: tuple[Tensor, Tensor]
    whitening: tuple[Tensor, Tensor]
    log_dets: tuple[float, float]

    @classmethod
    def fit(cls, x0: Tensor, x1: Tensor, share: float) -> "GaussianRatio":
        """From samples (N0, D) and (N1, D), float64, by the share s."""
        # a second to import, only for this
        from sklearn.covariance import ledoit_wolf

        own = [torch.from_numpy(ledoit_wolf(x.numpy())[0]) for x in (x0, x1)]
        pooled = (own[0] + own[1]) / 2
        factors = [torch.linalg.cholesky((1 - share) * pooled + share * part) for part in own]
        eye = torch.eye(x0.shape[1], dtype=torch.float64)
        whitening = [
            torch.linalg.solve_triangular(factor, eye, upper=False).T for factor in factors
        ]
        log_dets = [2 * factor.diagonal().log().sum().item() for factor in factors]
        return cls((x0.mean(0), x1.mean(0)), tuple(whitening), tuple(log_dets))

    def __call__(self, x: Tensor) -> Tensor:
        """b (B,) at x (B, D), float64, in nats."""
        of0, of1 = (
            sum_except_batch(((x - mean) @ whitening).square()) + log_det
            for mean, whitening, log_det in zip(
                self.means, self.whitening, self.log_dets, strict=True
            )
        )
        return (of0 - of1) / 2

    def doubt(self, x: Tensor) -> Tensor:
        """0 (B,) at x (B, D)."""
        return x.new_zeros(len(x))


@dataclass(frozen=True)
class NoRatio:
    """b = 0, where held-out rows contradict the linear ratio ``turned_down``."""

    turned_down: GaussianRatio

    def __call__(self, x: Tensor) -> Tensor:
        """0 (B,) at x (B, D)."""
        return x.new_zeros(len(x))

    def doubt(self, x: Tensor) -> Tensor:
        """What the rows did not tell from 0, (B,) at x (B, D), in nats."""
        return self.turned_down(x)


Base = GaussianRatio | NoRatio


def best_base(train: Sequence[Tensor], validation: Sequence[Tensor]) -> Base:
    """Of b = 0 and a ratio for each of ``SHARES``, the one of least logistic loss.

    Args:
        train, validation: draws of p_0 and p_1, (N, D) each, float64.
    """
    ratios = [GaussianRatio.fit(*train, share) for share in SHARES]
    softplus = torch.nn.functional.softplus

    def loss(base: Base) -> float:
        of0, of1 = (base(x) for x in validation)
        return (softplus(of0).mean() + softplus(-of1).mean()).item()

    return min([NoRatio(ratios[0]), *ratios], key=loss)
