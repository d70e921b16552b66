"""Pairs of densities whose ratio is learned: a reference p0 (t = 0) and data p1 (t = 1) on R^D.

Points have shape (N, D), log densities are float64 of shape (N,), in nats.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


class DensityPair(ABC):
    """A reference p0 and data p1 of dimension ``dim``, of which draws can be had."""

    dim: int

    @abstractmethod
    def sample0(self, num: int, generator: torch.Generator) -> Tensor:
        """x0 ~ p0, (N, D), in torch's default dtype on the generator's device."""

    @abstractmethod
    def sample1(self, num: int, generator: torch.Generator) -> Tensor:
        """x1 ~ p1, (N, D), in torch's default dtype on the generator's device."""

    @abstractmethod
    def data_moment(self) -> float:
        """E||x1||^2 / D: the constant c of a path that conditions on x1 alone."""

    @abstractmethod
    def bridge_moment(self) -> float:
        """E||x1 - x0||^2 / D for independent x0 and x1: the constant c of a path between both."""

    @abstractmethod
    def log_ratio(self, x: Tensor) -> Tensor | None:
        """log p1(x)/p0(x) in nats: (N, D) -> (N,), float64; None where it has no closed form."""


@dataclass(frozen=True)
class BlockGaussianPair(DensityPair):
    r"""The task of mutual information of the paper (section 6.3; D = 40, 80, 160, 320).

    p1 = N(0, Sigma) in D dimensions, Sigma block-diagonal with D/2 blocks [[1, rho], [rho, 1]]; X
    is the even coordinates of z and Y the odd ones. Both are standard normal, so that p0 =
    p(x) p(y) = N(0, I), and the mean of the log ratio over p1 is

        I = -1/2 log det Sigma = -D/4 log(1 - rho^2) = D/4,   rho = sqrt(1 - exp(-1)) = 0.795.

    The paper's text rounds rho to 0.8, for which I would be 0.2554 D.
    """

    dim: int
    rho: ClassVar[float] = math.sqrt(-math.expm1(-1))

    @property
    def mutual_information(self) -> float:
        """D/4, in nats."""
        return self.dim / 4

    def covariance(self) -> Tensor:
        """Sigma (D, D) in float64, in the order of z: x_1, y_1, x_2, y_2, ..."""
        block = torch.tensor([[1, self.rho], [self.rho, 1]], dtype=torch.float64)
        return torch.kron(torch.eye(self.dim // 2, dtype=torch.float64), block)

    def sample0(self, num: int, generator: torch.Generator) -> Tensor:
        return torch.randn(num, self.dim, generator=generator, device=generator.device)

    def sample1(self, num: int, generator: torch.Generator) -> Tensor:
        options = {"generator": generator, "device": generator.device, "dtype": torch.float64}
        x, noise = (torch.randn(num, self.dim // 2, **options) for _ in range(2))
        y = self.rho * x + math.sqrt(1 - self.rho**2) * noise
        return torch.stack([x, y], 2).flatten(1).to(torch.get_default_dtype())

    def log_ratio(self, x: Tensor) -> Tensor:
        r"""D/4 - sum_i (rho^2 (x_i^2 + y_i^2) - 2 rho x_i y_i) / (2 (1 - rho^2))."""
        x, y = x[:, 0::2].double(), x[:, 1::2].double()
        squares = self.rho**2 * (x.square() + y.square()) - 2 * self.rho * x * y
        return self.mutual_information - squares.sum(1) / (2 * (1 - self.rho**2))

    def data_moment(self) -> float:
        return 1.0

    def bridge_moment(self) -> float:
        return 2.0
