"""Gaussian pairs (X, Y): the task of the paper (arXiv:2502.02300, section 6.3), and the sparse and
dense tasks of Czyz et al. (arXiv:2306.11078)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from ebm_app.io.errors import UserError
from ebm_app.ratios.mi_task import MITask, check_counts, standard_normal


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
        check_counts(dim_x=self.dim_x, dim_y=self.dim_y)
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

    def draw(self, num: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """y_i = rho_i x_i + sqrt(1 - rho_i^2) noise_i."""
        x = standard_normal(num, self.dim_x, generator)
        y = standard_normal(num, self.dim_y, generator)
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
        check_counts(dim_x=self.dim_x, dim_y=self.dim_y)
        if not 0 <= self.rho < 1:
            raise UserError(f"the common correlation is {self.rho}: give a number in [0, 1)")

    @property
    def mutual_information(self) -> float:
        """1/2 log |R_m| |R_n| / |R_{m + n}|, in nats."""
        logs = (math.log1p((k - 1) * self.rho) for k in (self.dim_x, self.dim_y))
        both = math.log1p((self.dim_x + self.dim_y - 1) * self.rho) + math.log1p(-self.rho)
        return 0.5 * (sum(logs) - both)

    def draw(self, num: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Each coordinate is sqrt(rho) shared + sqrt(1 - rho) noise."""
        shared = math.sqrt(self.rho) * standard_normal(num, 1, generator)
        noise = math.sqrt(1 - self.rho) * standard_normal(num, self.dim_x + self.dim_y, generator)
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
        check_counts(dim=dim)
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
