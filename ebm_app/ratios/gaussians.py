"""Log ratio of Gaussians fitted to two samples."""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import scipy
import torch
from torch import Tensor
from torch.nn import functional

#: Candidate weights of the diagonal in the covariance of each Gaussian
SHRINKAGES = (0.0, 0.01, 0.1, 0.3, 0.6, 1.0)


class GaussianRatio(NamedTuple):
    """Log ratio of two Gaussians along the axes where they differ most.

    In the coordinates u = (x - centre) V both covariances are diagonal and average to I. ``means``
    and ``variances`` (2, D) are those of the two samples in these coordinates. Axes are sorted by
    decreasing KL divergence along them. The ratio is the sum over the first ``num_axes`` axes,
    times ``scale``. All tensors are float64.
    """

    centre: Tensor
    axes: Tensor
    means: Tensor
    variances: Tensor
    num_axes: int
    scale: float = 1.0

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
        ridge = 1e-9 * pooled.diag().mean() * torch.eye(len(pooled))
        values, axes = scipy.linalg.eigh(covariances[1].numpy(), (pooled + ridge).numpy())
        axes, values = torch.from_numpy(axes), torch.from_numpy(values).clamp(1e-4, 2 - 1e-4)
        centre = (x0.double().mean(0) + x1.double().mean(0)) / 2
        m0, m1 = ((x.double().mean(0) - centre) @ axes for x in (x0, x1))
        v0, v1 = 2 - values, values
        divergence = v1 / v0 - 1 - (v1 / v0).log() + (m1 - m0).square() / v0
        order = divergence.argsort(descending=True)
        means, variances = torch.stack([m0, m1]), torch.stack([v0, v1])
        return cls(centre, axes[:, order], means[:, order], variances[:, order], len(order))

    @classmethod
    def fit_shrunk(cls, train: Sequence[Tensor], validation: Sequence[Tensor]) -> "GaussianRatio":
        """Fit to all rows of (p_0, p_1), with the shrinkage of the highest likelihood of
        ``validation`` if fitted to ``train``."""
        best = max(SHRINKAGES, key=lambda value: cls.fit(*train, value).log_likelihood(validation))
        return cls.fit(*(torch.cat(rows) for rows in zip(train, validation, strict=True)), best)

    @classmethod
    def select(cls, train: Sequence[Tensor], validation: Sequence[Tensor]) -> "GaussianRatio":
        """Select shrinkage, ``num_axes`` and ``scale`` of the ratio fitted to ``train`` by the
        loss on ``validation``. Both arguments are samples of (p_0, p_1)."""
        dim = train[0].shape[1]
        numbers = sorted({min(2**k, dim) for k in range(8)} | {dim})
        candidates = []
        for shrinkage in SHRINKAGES if dim > 1 else SHRINKAGES[:1]:
            ratio = cls.fit(*train, shrinkage)
            sums = [ratio.along_axes(x).cumsum(1) for x in validation]
            for num, scale in product(numbers, (1.0, 0.7, 0.4)):
                losses = logistic_losses(*(scale * part[:, num - 1] for part in sums))
                settings = {"num_axes": num, "scale": scale}
                candidates.append((mean_loss(losses), ratio._replace(**settings)))
        return min(candidates, key=lambda candidate: candidate[0])[1]

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

    def along_axes(self, x: Tensor) -> Tensor:
        """Return the log ratio along each axis, in nats: (N, D) -> (N, D), float64."""
        (m0, m1), (v0, v1) = self.means, self.variances
        u = self.coordinates(x)
        return ((u - m0).square() / v0 - (u - m1).square() / v1 + (v0 / v1).log()) / 2

    def __call__(self, x: Tensor) -> Tensor:
        """Return the log ratio in nats: (N, D) -> (N,), float64."""
        return self.scale * self.along_axes(x)[:, : self.num_axes].sum(1)


def logistic_losses(logits0: Tensor, logits1: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logistic losses of the rows of p_0 (N0,) and of p_1 (N1,), in nats."""
    return functional.softplus(logits0), functional.softplus(-logits1)


def mean_loss(losses: Sequence[Tensor]) -> float:
    """Return the sum of the mean losses of both samples."""
    return sum(part.mean().item() for part in losses)
