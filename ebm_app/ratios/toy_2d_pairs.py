r"""Two-dimensional toy data p1, with the reference p0 = N(0, I) on R^2:

    log p1(x)/p0(x) = log p(x) + |x|^2/2 + log 2 pi,

p the density of the data. Points have shape (N, 2), log densities are float64 of shape (N,), in
nats.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ebm_app.numerics.tensors import standard_normal_log_density
from ebm_app.ratios.pairs import DensityPair, KnownPair
from ebm_app.ratios.toy_2d import TOY_2D


@dataclass(frozen=True)
class Toy2DPair(DensityPair):
    """p0 = N(0, I) and p1 a two-dimensional toy distribution.

    Args:
        name: a key of ``TOY_2D``.
    """

    name: str
    dim: ClassVar[int] = 2

    def sample0(self, num: int, generator: torch.Generator) -> Tensor:
        return torch.randn(num, self.dim, generator=generator, device=generator.device)

    def sample1(self, num: int, generator: torch.Generator) -> Tensor:
        return TOY_2D[self.name].sample(num, generator)

    def log_density0(self, x: Tensor) -> Tensor:
        """log p0(x) in nats: (N, 2) -> (N,), float64."""
        return standard_normal_log_density(x.double()).sum(1)

    def data_moment(self) -> float:
        return TOY_2D[self.name].moment

    def bridge_moment(self) -> float:
        return self.data_moment() + 1.0  # either side has mean 0


@dataclass(frozen=True)
class KnownToy2DPair(Toy2DPair, KnownPair):
    """The same for data whose density has a closed form. Outside the support of the data
    the log ratio is -inf.
    """

    def log_density1(self, x: Tensor) -> Tensor:
        """log p1(x) in nats: (N, 2) -> (N,), float64."""
        return TOY_2D[self.name].log_density(x)

    def log_ratio(self, x: Tensor) -> Tensor:
        return self.log_density1(x) - self.log_density0(x)


#: name -> pair, with its log ratio where there is a closed form
TOY_2D_PAIRS: dict[str, Toy2DPair] = {
    name: KnownToy2DPair(name) if data.log_density else Toy2DPair(name)
    for name, data in TOY_2D.items()
}
