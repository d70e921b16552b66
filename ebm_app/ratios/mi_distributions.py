"""Pairs (X, Y) that are not Gaussian, of the benchmark of Czyz et al. (arXiv:2306.11078)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import scipy
import torch
from torch import Generator, Tensor

from ebm_app.io.errors import UserError
from ebm_app.ratios.mi_gaussians import CorrelatedNormal
from ebm_app.ratios.mi_task import MITask


@dataclass(frozen=True)
class StudentT(MITask):
    r"""Multivariate Student-t: a ``CorrelatedNormal`` pair times sqrt(df / w), w ~ chi^2_df.

    With a = df / 2 and psi the digamma function, E log(1 + |t|^2 / df) = psi(a + k/2) - psi(a) for
    k coordinates of identity dispersion. Their entropy is hence

        h_k = log Gamma(a) - log Gamma(a + k/2) + k/2 log(pi df) + g(k),
        g(k) = (a + k/2) (psi(a + k/2) - psi(a))

    (Arellano-Valle, Contreras-Reyes and Genton, Scand. J. Statist. 40, 2013, eq. 7). A dispersion
    adds half its log-determinant, so that with m = dim_x and n = dim_y

        I = -1/2 sum_i log(1 - rho_i^2) + c,   c = h_m + h_n - h_{m + n}

    (arXiv:2306.11078). The shared w makes c > 0 even without correlation; c ~ m n / (2 df^2) for
    large df, where the pair becomes Gaussian.

    Args:
        correlations: As of ``CorrelatedNormal``; () for none.
        df: Degrees of freedom, 0.5 to 1e6: heavier tails leave the range of float32, and beyond
            1e6 rounding hides c.
        dim_x, dim_y: Dimensions of X and Y.

    Raises:
        UserError: for df outside this range, and as ``CorrelatedNormal``.
    """

    correlations: tuple[float, ...]
    df: float
    dim_x: int
    dim_y: int

    def __post_init__(self) -> None:
        if not 0.5 <= self.df <= 1e6:
            raise UserError(
                f"there are {self.df} degrees of freedom: give 0.5 to 1e6, or use the normal task"
            )
        _ = self.normal  # checks the other fields

    @property
    def normal(self) -> CorrelatedNormal:
        """The Gaussian pair that is scaled."""
        return CorrelatedNormal(self.correlations, self.dim_x, self.dim_y)

    @property
    def mutual_information(self) -> float:
        """That of the Gaussian pair plus c, in nats."""
        a, m, n = self.df / 2, self.dim_x / 2, self.dim_y / 2
        g_m, g_n, g_mn = (
            (a + k) * (scipy.special.psi(a + k) - scipy.special.psi(a)) for k in (m, n, m + n)
        )
        # log Gamma(a) - log Gamma(a + m) - log Gamma(a + n) + log Gamma(a + m + n)
        log_gammas = scipy.special.betaln(a, m) - scipy.special.betaln(a + n, m)
        return self.normal.mutual_information + max(0.0, float(log_gammas + g_m + g_n - g_mn))

    def draw(self, num: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """x and y of a pair share their w, a quantile of chi^2 at a uniform number."""
        x, y = self.normal.draw(num, generator)
        u = torch.rand(num, 1, generator=generator, device=generator.device, dtype=x.dtype)
        # 1 - u is never 0, where w would be 0 too
        half_w = scipy.special.gammaincinv(self.df / 2, (1 - u).cpu().numpy())
        scale = (self.df / 2 / torch.from_numpy(half_w).to(x.device)).sqrt()
        return x * scale, y * scale


@dataclass(frozen=True)
class AdditiveUniform(MITask):
    r"""X ~ U(0, 1), Y = X + U(-b, b) with b = ``noise``, one-dimensional.

        I = h(Y) - log(2 b) = b - log(2 b) for b <= 1/2,   1 / (4 b) for b > 1/2

    (arXiv:2306.11078; the density of Y is a trapezium).

    Raises:
        UserError: for a noise that is not positive and finite.
    """

    noise: float
    dim_x: ClassVar[int] = 1
    dim_y: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 0 < self.noise < math.inf:
            raise UserError(f"the noise is {self.noise}: give a positive, finite half-width")

    @property
    def mutual_information(self) -> float:
        """b - log(2 b) or 1 / (4 b), in nats."""
        b = self.noise
        return b - math.log(2 * b) if b <= 0.5 else 1 / (4 * b)

    def draw(self, num: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """x and x + b (2 u - 1)."""
        shape, device = (2, num, 1), generator.device
        x, u = torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
        return x, x + self.noise * (2 * u - 1)
