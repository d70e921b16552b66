"""Pairs of densities whose ratio is learned: a reference p0 (t = 0) and data p1 (t = 1) on R^D.

Points have shape (N, D), log densities are float64 of shape (N,), in nats.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from ebm_app.ratios.mi_gaussians import BlockGaussian


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


class KnownPair(DensityPair):
    """A pair whose log ratio is known."""

    @abstractmethod
    def log_ratio(self, x: Tensor) -> Tensor:
        """log p1(x)/p0(x) in nats: (N, D) -> (N,), float64."""


@dataclass(frozen=True)
class JointPair(KnownPair):
    """p1 the joint density of a block-Gaussian task, p0 = N(0, I) the product of its marginals:
    the mean of the log ratio over p1 is the mutual information."""

    task: BlockGaussian

    @property
    def dim(self) -> int:
        """D = dim_x + dim_y."""
        return self.task.dim_x + self.task.dim_y

    def sample0(self, num: int, generator: torch.Generator) -> Tensor:
        return torch.randn(num, self.dim, generator=generator, device=generator.device)

    def sample1(self, num: int, generator: torch.Generator) -> Tensor:
        return self.task.joint(num, generator)

    def log_ratio(self, x: Tensor) -> Tensor:
        return self.task.log_ratio(x)

    def data_moment(self) -> float:
        return 1.0

    def bridge_moment(self) -> float:
        return 2.0
