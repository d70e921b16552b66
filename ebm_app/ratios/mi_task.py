r"""What a pair (X, Y) of random vectors of known mutual information is:

    I(X; Y) = E log p(x, y) / (p(x) p(y)),  in nats,

which does not change under a bijection of X alone or of Y alone.
"""

from abc import ABC, abstractmethod

import torch
from torch import Generator, Tensor

from ebm_app.io.errors import UserError


class MITask(ABC):
    """A distribution of X (dim_x) and Y (dim_y) to draw from, of known mutual information.

    A subclass has the two dimensions as fields or properties.
    """

    dim_x: int
    dim_y: int

    @property
    @abstractmethod
    def mutual_information(self) -> float:
        """I(X; Y) in nats."""

    @abstractmethod
    def draw(self, num: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """N independent x (N, dim_x) and y (N, dim_y) in float64, on the generator's device."""

    def sample(self, num: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """N = ``num`` independent pairs x (N, dim_x), y (N, dim_y) on the generator's device.

        They are drawn in float64 and rounded once, to torch's default dtype.

        Raises:
            UserError: for fewer than one pair.
        """
        check_counts(num=num)
        dtype = torch.get_default_dtype()
        x, y = self.draw(num, generator)
        return x.to(dtype), y.to(dtype)


def check_counts(**counts: int) -> None:
    for name, number in counts.items():
        if not isinstance(number, int) or number < 1:
            raise UserError(f"{name} is {number}: give a whole number of 1 or more")


def standard_normal(num: int, dim: int, generator: Generator) -> Tensor:
    """N(0, I) in float64: (num, dim)."""
    device = generator.device
    return torch.randn(num, dim, generator=generator, device=device, dtype=torch.float64)
