r"""Pictures of the plane as data p1, with the reference p0 = N(0, I) on R^2:

    log p1(x)/p0(x) = log p(x) + |x|^2/2 + log 2 pi,

p the density of the picture. Points have shape (N, 2), log densities are float64 of shape (N,), in
nats.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ebm_app.errors import UserError
from ebm_app.numerics import standard_normal_log_density
from ebm_app.ratios.data.pairs import KnownPair, Pair
from ebm_app.ratios.data.plane import PICTURES
from ebm_app.registry import choose

#: E||x||^2 / 2 of every picture; that of the checkerboard follows from the side of its squares
MOMENTS = {"moons": 1.0, "checkerboard": 49 / 48, "pinwheel": 1.0, "rings": 1.0}


@dataclass(frozen=True)
class PicturePair(Pair):
    """p0 = N(0, I) and p1 a picture.

    Args:
        name: a key of ``PICTURES``.

    Raises:
        UserError: for an unknown name.
    """

    name: str
    dim: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Refuse a name that is none."""
        choose("picture", self.name, PICTURES)

    def sample0(self, num: int, generator: torch.Generator) -> Tensor:
        return torch.randn(num, self.dim, generator=generator, device=generator.device)

    def sample1(self, num: int, generator: torch.Generator) -> Tensor:
        return PICTURES[self.name].sample(num, generator)

    def log_density0(self, x: Tensor) -> Tensor:
        """log p0(x) in nats: (N, 2) -> (N,), float64."""
        return standard_normal_log_density(x.double()).sum(1)

    def data_moment(self) -> float:
        return MOMENTS[self.name]

    def bridge_moment(self) -> float:
        return MOMENTS[self.name] + 1.0  # either side has mean 0


@dataclass(frozen=True)
class KnownPicturePair(PicturePair, KnownPair):
    """The same for a picture whose density has a closed form. Outside the support of the picture
    the log ratio is -inf.

    Raises:
        UserError: for a picture without one, and an unknown name.
    """

    def __post_init__(self) -> None:
        """Refuse a picture without a closed form."""
        super().__post_init__()
        if PICTURES[self.name].log_density is None:
            known = ", ".join(name for name, law in PICTURES.items() if law.log_density)
            raise UserError(f"{self.name} has no density in closed form: choose one of {known}")

    def log_density1(self, x: Tensor) -> Tensor:
        """log p1(x) in nats: (N, 2) -> (N,), float64."""
        return PICTURES[self.name].log_density(x)

    def log_ratio(self, x: Tensor) -> Tensor:
        return self.log_density1(x) - self.log_density0(x)


#: name -> pair, with its log ratio where there is a closed form
PICTURE_PAIRS: dict[str, PicturePair] = {
    name: KnownPicturePair(name) if law.log_density else PicturePair(name)
    for name, law in PICTURES.items()
}
