"""Log ratio of Gaussians fitted to two samples, in nats."""

from collections.abc import Sequence
from typing import NamedTuple

import scipy
import torch
from torch import Tensor

#: Candidate weights of the diagonal in the covariance of each Gaussian
SHRINKAGES = (0.0, 0.01, 0.1, 0.3, 0.6, 1.0)
#: Variance added to each axis of both Gaussians, as a fraction of the mean variance
RIDGE = 1e-9


class GaussianRatio(NamedTuple):
    """Log ratio of two Gaussians.

    In the coordinates u = (x - centre) V both covariances are diagonal and average to I. ``means``
    and ``variances`` (2, D) are those of the two samples in these coordinates. Axes are sorted by
    decreasing KL divergence along them. All tensors are float64.
    """

    centre: Tensor
    axes: Tensor
    means: Tensor
    variances: Tensor

    @classmethod
    def fit(cls, x0: Tensor, x1: Tensor, shrinkage: float) -> "GaussianRatio":
        """Fit to samples (N0, D) and (N1, D) by a generalised eigenvalue decomposition.

        Args:
            shrinkage: weight of the diagonal in each covariance, between 0 and 1.
        """
        covariances = []
        for x in (x0, x1):
            covariance = torch.cov(x.double().T).reshape(x.shape[1], -1)
            diagonal = covariance.diag().diag()
            covariances.append(covariance.lerp(diagonal, shrinkage))
        pooled = (covariances[0] + covariances[1]) / 2
        ridge = RIDGE * pooled.diag().mean() * torch.eye(len(pooled))
        matrices = (covariances[1] + ridge).numpy(), (pooled + ridge).numpy()
        values, axes = scipy.linalg.eigh(*matrices)
        axes, values = torch.from_numpy(axes), torch.from_numpy(values).clamp(RIDGE, 2 - RIDGE)
        centre = (x0.double().mean(0) + x1.double().mean(0)) / 2
        m0, m1 = ((x.double().mean(0) - centre) @ axes for x in (x0, x1))
        v0, v1 = 2 - values, values
        divergence = v1 / v0 - 1 - (v1 / v0).log() + (m1 - m0).square() / v0
        order = divergence.argsort(descending=True)
        means, variances = torch.stack([m0, m1]), torch.stack([v0, v1])
        return cls(centre, axes[:, order], means[:, order], variances[:, order])

    def log_likelihood(self, samples: Sequence[Tensor]) -> float:
        """Return the sum of the mean log densities of both samples, up to a constant."""
        total = 2 * self.axes.slogdet().logabsdet
        for x, mean, variance in zip(samples, self.means, self.variances, strict=True):
            squares = (self.coordinates(x) - mean).square() / variance
            total = total - (squares.mean(0) + variance.log()).sum() / 2
        return total.item()

    def coordinates(self, x: Tensor) -> Tensor:
        """Return the coordinates u of points x: (N, D) -> (N, D), float64."""
        return (x.double() - self.centre) @ self.axes

    def __call__(self, x: Tensor) -> Tensor:
        """Return the log ratio in nats: (N, D) -> (N,), float64."""
        (m0, m1), (v0, v1) = self.means, self.variances
        u = self.coordinates(x)
        return ((u - m0).square() / v0 - (u - m1).square() / v1 + (v0 / v1).log()).sum(1) / 2


def select_shrinkage(train: Sequence[Tensor], validation: Sequence[Tensor]) -> float:
    """Return the shrinkage of the Gaussians fitted to ``train`` that has the highest likelihood on
    ``validation``. Both arguments are samples of (p_0, p_1)."""

    def quality(shrinkage: float) -> float:
        return GaussianRatio.fit(*train, shrinkage).log_likelihood(validation)

    return max(SHRINKAGES, key=quality)
