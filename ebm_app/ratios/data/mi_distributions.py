r"""Pairs (X, Y) of random vectors whose mutual information is known.

    I(X; Y) = E log p(x, y) / (p(x) p(y)),  in nats,

does not change under a bijection of X alone or of Y alone. Besides the Gaussian of the paper
(arXiv:2502.02300, section 6.3) these are the laws of the benchmark of Czyz et al.
(arXiv:2306.11078) that have a closed form, without its wiggly, spiral and Swiss-roll maps.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from scipy import special
from torch import Generator, Tensor

from ebm_app.errors import UserError

Pair = tuple[Tensor, Tensor]


class MITask(ABC):
    """A law of X (dim_x) and Y (dim_y) that can be sampled and whose mutual information is known.

    A subclass has the two dimensions as fields or properties.
    """

    dim_x: int
    dim_y: int

    @property
    @abstractmethod
    def mutual_information(self) -> float:
        """I(X; Y) in nats."""

    @abstractmethod
    def draw(self, num: int, generator: Generator) -> Pair:
        """N independent x (N, dim_x) and y (N, dim_y) in float64, on the generator's device."""

    def sample(self, num: int, generator: Generator) -> Pair:
        """N = ``num`` independent pairs x (N, dim_x), y (N, dim_y) on the generator's device.

        They are drawn in float64 and rounded once, to torch's default dtype.

        Raises:
            UserError: for fewer than one pair.
        """
        _check_counts(num=num)
        dtype = torch.get_default_dtype()
        x, y = self.draw(num, generator)
        return x.to(dtype), y.to(dtype)


@dataclass(frozen=True)
class CorrelatedNormal(MITask):
    r"""Gaussian in canonical form: all coordinates N(0, 1), corr(X_i, Y_i) = rho_i, 0 elsewhere.

        I = -1/2 sum_i log(1 - rho_i^2)

    Linear bijections of X and of Y bring every Gaussian to this form, with the rho_i its canonical
    correlations. With few of them it is the sparse task of arXiv:2306.11078.

    Args:
        correlations: rho_i in (-1, 1), at most min(dim_x, dim_y) of them.
        dim_x, dim_y: Dimensions of X and Y.

    Raises:
        UserError: for dimensions below 1, a rho_i outside (-1, 1) and too many of them.
    """

    correlations: tuple[float, ...]
    dim_x: int
    dim_y: int

    def __post_init__(self) -> None:
        _check_counts(dim_x=self.dim_x, dim_y=self.dim_y)
        for rho in self.correlations:
            if not -1 < rho < 1:
                raise UserError(f"a correlation is {rho}: give a number between -1 and 1")
        if len(self.correlations) > min(self.dim_x, self.dim_y):
            raise UserError(
                f"there are {len(self.correlations)} canonical correlations for {self.dim_x} and "
                f"{self.dim_y} dimensions: give at most as many as the smaller one"
            )

    @property
    def mutual_information(self) -> float:
        """-1/2 sum_i log(1 - rho_i^2), in nats."""
        return -0.5 * sum(math.log1p(-(rho**2)) for rho in self.correlations)

    def draw(self, num: int, generator: Generator) -> Pair:
        """y_i = rho_i x_i + sqrt(1 - rho_i^2) noise_i."""
        x = _normal(num, self.dim_x, generator)
        y = _normal(num, self.dim_y, generator)
        rho = torch.tensor(self.correlations, dtype=x.dtype, device=x.device)
        y[:, : len(rho)] *= (1 - rho.square()).sqrt()
        y[:, : len(rho)] += rho * x[:, : len(rho)]
        return x, y


@dataclass(frozen=True)
class DenseNormal(MITask):
    r"""Gaussian with variances 1 and the same correlation rho between any two coordinates.

    The dense task of arXiv:2306.11078. With |R_k| = (1 - rho)^(k - 1) (1 + (k - 1) rho) the
    determinant for k coordinates, m = dim_x and n = dim_y, I = 1/2 log |R_m| |R_n| / |R_{m + n}|.

    Raises:
        UserError: for dimensions below 1 and rho outside [0, 1).
    """

    rho: float
    dim_x: int
    dim_y: int

    def __post_init__(self) -> None:
        _check_counts(dim_x=self.dim_x, dim_y=self.dim_y)
        if not 0 <= self.rho < 1:
            raise UserError(f"the common correlation is {self.rho}: give a number in [0, 1)")

    @property
    def mutual_information(self) -> float:
        """1/2 log |R_m| |R_n| / |R_{m + n}|, in nats."""
        logs = (math.log1p((k - 1) * self.rho) for k in (self.dim_x, self.dim_y))
        both = math.log1p((self.dim_x + self.dim_y - 1) * self.rho) + math.log1p(-self.rho)
        return 0.5 * (sum(logs) - both)

    def draw(self, num: int, generator: Generator) -> Pair:
        """Each coordinate is sqrt(rho) shared + sqrt(1 - rho) noise."""
        shared = math.sqrt(self.rho) * _normal(num, 1, generator)
        noise = math.sqrt(1 - self.rho) * _normal(num, self.dim_x + self.dim_y, generator)
        x, y = (shared + noise).split([self.dim_x, self.dim_y], 1)
        return x, y


class BlockGaussian(CorrelatedNormal):
    r"""The task of the paper (arXiv:2502.02300, section 6.3; D = 40, 80, 160, 320).

    z ~ N(0, Sigma) in D dimensions, Sigma block-diagonal with D/2 blocks [[1, rho], [rho, 1]]; X
    is the even coordinates of z and Y the odd ones. Both are standard normal, so that
    p(x) p(y) = N(z; 0, I) and

        I = -1/2 log det Sigma = -D/4 log(1 - rho^2) = D/4,   rho = sqrt(1 - exp(-1)) = 0.795.

    The paper's text rounds rho to 0.8, for which I would be 0.2554 D.

    Raises:
        UserError: for ``dim`` = D that is odd or below 2.
    """

    rho: ClassVar[float] = math.sqrt(-math.expm1(-1))

    def __init__(self, dim: int) -> None:
        _check_counts(dim=dim)
        if dim % 2:
            raise UserError(f"dim is {dim}: give an even number, X and Y take half each")
        super().__init__((self.rho,) * (dim // 2), dim // 2, dim // 2)

    def covariance(self) -> Tensor:
        """Sigma (D, D) in float64, in the order of z: x_1, y_1, x_2, y_2, ..."""
        block = torch.tensor([[1, self.rho], [self.rho, 1]], dtype=torch.float64)
        return torch.kron(torch.eye(self.dim_x, dtype=torch.float64), block)

    def joint(self, num: int, generator: Generator) -> Tensor:
        """z (N, D) in torch's default dtype; ``sample`` draws the same x and y."""
        return torch.stack(self.sample(num, generator), 2).flatten(1)

    def log_ratio(self, z: Tensor) -> Tensor:
        r"""log N(z; 0, Sigma) / N(z; 0, I) for z (N, D): (N,) in float64, nats.

            D/4 - sum_i (rho^2 (x_i^2 + y_i^2) - 2 rho x_i y_i) / (2 (1 - rho^2))

        Raises:
            ValueError: for another shape.
        """
        if z.ndim != 2 or z.shape[1] != 2 * self.dim_x:
            raise ValueError(f"z has shape (N, {2 * self.dim_x}), not {tuple(z.shape)}")
        x, y = z[:, 0::2].double(), z[:, 1::2].double()
        squares = self.rho**2 * (x.square() + y.square()) - 2 * self.rho * x * y
        return self.mutual_information - squares.sum(1) / (2 * (1 - self.rho**2))


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
        g_m, g_n, g_mn = ((a + k) * (special.psi(a + k) - special.psi(a)) for k in (m, n, m + n))
        # log Gamma(a) - log Gamma(a + m) - log Gamma(a + n) + log Gamma(a + m + n)
        log_gammas = special.betaln(a, m) - special.betaln(a + n, m)
        return self.normal.mutual_information + max(0.0, float(log_gammas + g_m + g_n - g_mn))

    def draw(self, num: int, generator: Generator) -> Pair:
        """x and y of a pair share their w, a quantile of chi^2 at a uniform number."""
        x, y = self.normal.draw(num, generator)
        u = torch.rand(num, 1, generator=generator, device=generator.device, dtype=x.dtype)
        # 1 - u is never 0, where w would be 0 too
        half_w = special.gammaincinv(self.df / 2, (1 - u).cpu().numpy())
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

    def draw(self, num: int, generator: Generator) -> Pair:
        """x and x + b (2 u - 1)."""
        shape, device = (2, num, 1), generator.device
        x, u = torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
        return x, x + self.noise * (2 * u - 1)


def _check_counts(**counts: int) -> None:
    for name, number in counts.items():
        if not isinstance(number, int) or number < 1:
            raise UserError(f"{name} is {number}: give a whole number of 1 or more")


def _normal(num: int, dim: int, generator: Generator) -> Tensor:
    """N(0, I) in float64: (num, dim)."""
    device = generator.device
    return torch.randn(num, dim, generator=generator, device=device, dtype=torch.float64)
