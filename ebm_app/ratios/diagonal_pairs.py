r"""Pairs of mixtures of Gaussians with a known ratio.

Every density here is a balanced mixture of J isotropic Gaussians with means on the diagonal of
R^D, the line of vectors with equal entries,

    p(x) = (1/J) sum_j N(x; m_j 1, s^2 I),     1 = (1, ..., 1),

so that every coordinate has the mean m = (1/J) sum_j m_j and the variance
s^2 + (1/J) sum_j (m_j - m)^2. The two densities of a pair hardly overlap, which is what makes
their ratio hard to estimate: log p1/p0 grows like D, and is far from 0 on samples of either.

Source: Yu, Klami, Hyvarinen, Korba, Chehab (ICML 2025), section 6.2 and appendix F.3,
distributions with high discrepancies (arXiv:2502.02300).
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from ebm_app.numerics.tensors import standard_normal_log_density
from ebm_app.ratios.pairs import DensityPair


@dataclass(frozen=True)
class DiagonalMixture:
    """p(x) = (1/J) sum_j N(x; m_j 1, s^2 I) on R^D.

    Args:
        dim: D. entries: m_1..m_J. std: s.
    """

    dim: int
    entries: tuple[float, ...]
    std: float

    @property
    def mean(self) -> float:
        """Mean of any coordinate."""
        return fmean(self.entries)

    @property
    def variance(self) -> float:
        """Variance of any coordinate."""
        return self.std**2 + fmean((entry - self.mean) ** 2 for entry in self.entries)

    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        """Independent draws (N, D), in torch's default dtype on the generator's device."""
        options = {"generator": generator, "device": generator.device}
        mode = torch.randint(len(self.entries), (num, 1), **options)
        noise = torch.randn(num, self.dim, **options)
        return torch.tensor(self.entries, device=generator.device)[mode] + self.std * noise

    def log_density(self, x: Tensor) -> Tensor:
        """log p(x) in nats: (N, D) -> (N,), float64.

        Raises:
            ValueError: for points of another dimension.
        """
        if x.ndim != 2 or x.shape[1] != self.dim:
            raise ValueError(f"points have shape (N, {self.dim}), not {tuple(x.shape)}")
        residuals = torch.stack([(x.double() - entry) / self.std for entry in self.entries])
        joint = standard_normal_log_density(residuals).sum(2) - self.dim * math.log(self.std)
        return torch.logsumexp(joint, 0) - math.log(len(self.entries))


class DiagonalPair(DensityPair):
    """Both densities are mixtures on the diagonal: a subclass states the two."""

    @property
    @abstractmethod
    def p0(self) -> DiagonalMixture:
        """The reference."""

    @property
    @abstractmethod
    def p1(self) -> DiagonalMixture:
        """The data."""

    def sample0(self, num: int, generator: torch.Generator) -> Tensor:
        return self.p0.sample(num, generator)

    def sample1(self, num: int, generator: torch.Generator) -> Tensor:
        return self.p1.sample(num, generator)

    def log_density0(self, x: Tensor) -> Tensor:
        """log p0(x) in nats: (N, D) -> (N,), float64."""
        return self.p0.log_density(x)

    def log_density1(self, x: Tensor) -> Tensor:
        """log p1(x) in nats: (N, D) -> (N,), float64."""
        return self.p1.log_density(x)

    def log_ratio(self, x: Tensor) -> Tensor:
        return self.log_density1(x) - self.log_density0(x)

    def data_moment(self) -> float:
        return self.p1.mean**2 + self.p1.variance

    def bridge_moment(self) -> float:
        return (self.p1.mean - self.p0.mean) ** 2 + self.p0.variance + self.p1.variance


@dataclass(frozen=True)
class GaussianPair(DiagonalPair):
    """p0 = N(0, I) and p1 = N(shift 1, I).

    The log ratio is shift sum_i x_i - D shift^2 / 2, and KL(p1 || p0) = D shift^2 / 2 nats.
    """

    dim: int
    shift: float = 4.0

    @property
    def p0(self) -> DiagonalMixture:
        return DiagonalMixture(self.dim, (0.0,), 1.0)

    @property
    def p1(self) -> DiagonalMixture:
        return DiagonalMixture(self.dim, (self.shift,), 1.0)


@dataclass(frozen=True)
class MixturePair(DiagonalPair):
    """Two modes on either side: those of p0 have the entries centre -+ k sigma / 2, those of p1
    -centre -+ k sigma / 2, and sigma = sqrt(4 / (4 + k^2)) gives every coordinate variance 1.

    Args:
        k: distance between the two modes in every coordinate, in units of sigma.
        dim: D.
        centre: the mean of p0 in every coordinate.
    """

    k: float
    dim: int = 20
    centre: float = 2.0

    @property
    def sigma(self) -> float:
        """Standard deviation of a mode."""
        return 2 / math.hypot(2, self.k)

    @property
    def p0(self) -> DiagonalMixture:
        return self._around(self.centre)

    @property
    def p1(self) -> DiagonalMixture:
        return self._around(-self.centre)

    def _around(self, middle: float) -> DiagonalMixture:
        half = self.k * self.sigma / 2
        return DiagonalMixture(self.dim, (middle - half, middle + half), self.sigma)
