r"""Pairs of known densities: a reference p0 (t = 0) and data p1 (t = 1) on R^D.

Points have shape (N, D), log densities are float64 of shape (N,), in nats.

Source: Yu, Klami, Hyvarinen, Korba, Chehab (ICML 2025), section 6 and appendix F
(arXiv:2502.02300).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.autograd.functional import jvp

from ebm_app.paths import GaussianPath, OneSidedPath
from ebm_app.utils.tensors import standard_normal_log_density


class GaussianMixture:
    """p(x) = mean_j N(x; m_j, diag(s_j^2)).

    >>> GaussianMixture([[0.0, 1.0], [0.0, 3.0]], 0.5).mean
    tensor([0., 2.], dtype=torch.float64)

    Args:
        means: m (J, D).
        std: s, broadcast to (J, D).
    """

    def __init__(self, means: Sequence[Sequence[float]] | Tensor, std: float | Tensor) -> None:
        self.means, std = (torch.as_tensor(value, dtype=torch.float64) for value in (means, std))
        self.std = std.expand_as(self.means)

    @property
    def dim(self) -> int:
        """Dimension D."""
        return self.means.shape[1]

    @property
    def second_moment(self) -> float:
        """Second moment E||x||^2 / D."""
        return (self.means.square() + self.std.square()).mean().item()

    @property
    def mean(self) -> Tensor:
        """Mean E x, (D,) float64."""
        return self.means.mean(0)

    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        """Return independent draws (N, D), in torch's default dtype on the generator's device."""
        options = {"generator": generator, "device": generator.device}
        mode = (len(self.means) * torch.rand(num, dtype=torch.float64, **options)).long()
        noise = torch.randn(num, self.dim, **options)
        return self.means.to(noise)[mode] + self.std.to(noise)[mode] * noise

    def log_density(self, x: Tensor) -> Tensor:
        """Return log p(x) in nats: (N, D) -> (N,), float64."""
        means, std = self.means.to(x.device), self.std.to(x.device)
        by_axis = standard_normal_log_density((x.double()[:, None] - means) / std) - std.log()
        return torch.logsumexp(by_axis.sum(2), 1) - math.log(len(means))


@dataclass(frozen=True)
class BlockGaussian:
    r"""N(0, Sigma) in D dimensions, Sigma block-diagonal with D/2 blocks [[1, rho], [rho, 1]].

    X are the even coordinates of z and Y the odd ones. Both are standard normal, so that
    p(x) p(y) = N(0, I), and the mutual information is

        I = -1/2 log det Sigma = -D/4 log(1 - rho^2) = D/4,   rho = sqrt(1 - exp(-1)) = 0.795.

    The paper's text rounds rho to 0.8, for which I would be 0.2554 D. The methods are those of
    ``GaussianMixture``.
    """

    dim: int
    rho: ClassVar[float] = math.sqrt(-math.expm1(-1))
    second_moment: ClassVar[float] = 1.0

    def sample(self, num: int, generator: torch.Generator) -> Tensor:
        options = {"generator": generator, "device": generator.device, "dtype": torch.float64}
        x, noise = (torch.randn(num, self.dim // 2, **options) for _ in range(2))
        y = self.rho * x + math.sqrt(1 - self.rho**2) * noise
        return torch.stack([x, y], 2).flatten(1).to(torch.get_default_dtype())

    def log_density(self, x: Tensor) -> Tensor:
        r"""Return log N(z; 0, I) + D/4 - sum_i (rho^2 (x_i^2 + y_i^2) - 2 rho x_i y_i)
        / 2 (1 - rho^2), summed over the pairs i."""
        x, y = x[:, 0::2].double(), x[:, 1::2].double()
        squares = self.rho**2 * (x.square() + y.square()) - 2 * self.rho * x * y
        alone = (standard_normal_log_density(x) + standard_normal_log_density(y)).sum(1)
        return alone + self.dim / 4 - squares.sum(1) / (2 * (1 - self.rho**2))


@dataclass(frozen=True)
class DensityPair:
    """Reference p0 and data p1 with the same dimension."""

    p0: GaussianMixture
    p1: GaussianMixture | BlockGaussian

    @property
    def dim(self) -> int:
        """Dimension D."""
        return self.p0.dim

    def log_ratio(self, x: Tensor) -> Tensor:
        """Return log p1(x)/p0(x) in nats: (N, D) -> (N,), float64."""
        return self.p1.log_density(x) - self.p0.log_density(x)

    def marginal(self, path: GaussianPath, t: Tensor) -> GaussianMixture:
        """Return p_t of a path at the time t () between two mixtures."""
        a0 = torch.zeros_like(t) if isinstance(path, OneSidedPath) else 1 - path.alpha(t)
        a1, v = path.alpha(t), path.variance(t)
        means = a0 * self.p0.means[:, None] + a1 * self.p1.means
        squares = a0**2 * self.p0.std[:, None].square() + a1**2 * self.p1.std.square() + v
        return GaussianMixture(means.flatten(0, 1), squares.sqrt().flatten(0, 1))

    def time_score(self, path: GaussianPath, x: Tensor, t: Tensor) -> Tensor:
        """Return d/dt log p_t(x) of two mixtures at points x (N, D) and the time t () float64:
        (N,) float64."""
        log_density = partial(GaussianMixture.log_density, x=x)
        return jvp(lambda t: log_density(self.marginal(path, t)), t, torch.ones_like(t))[1]

    def bridge_moment(self) -> float:
        """Return E||x1 - x0||^2 / D for independent x0 and x1, the constant c of a path."""
        product = (self.p0.mean @ self.p1.mean).item() / self.dim
        return self.p0.second_moment + self.p1.second_moment - 2 * product


def standard_normal(dim: int) -> GaussianMixture:
    """Return N(0, I)."""
    return GaussianMixture([[0.0] * dim], 1.0)


def gaussian_pair(dim: int, shift: float = 4.0) -> DensityPair:
    """Return p0 = N(0, I) and p1 = N(shift 1, I), which have little overlap.

    The log ratio is shift sum_i x_i - D shift^2 / 2, and KL(p1 || p0) = D shift^2 / 2 nats.
    """
    return DensityPair(standard_normal(dim), GaussianMixture([[shift] * dim], 1.0))


def mixture_pair(k: float, dim: int = 20) -> DensityPair:
    """Return two mixtures of two modes. The modes of p0 have entries 2 -+ k sigma / 2, those of p1
    -2 -+ k sigma / 2, and sigma = sqrt(4 / (4 + k^2)) gives every coordinate variance 1."""
    sigma = 2 / math.hypot(2, k)
    half = k * sigma / 2
    ends = [(m - half, m + half) for m in (2.0, -2.0)]
    return DensityPair(*(GaussianMixture([[x] * dim for x in pair], sigma) for pair in ends))


def information_pair(dim: int) -> DensityPair:
    """Return p0 = p(x) p(y) = N(0, I) and p1 = p(x, y), a ``BlockGaussian``. The mean log ratio
    over p1 is the mutual information, D/4 nats."""
    return DensityPair(standard_normal(dim), BlockGaussian(dim))
