"""A pair (X, Y) of a discrete and a continuous variable (Gao et al., arXiv:1709.06212)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from ebm_app.ratios.mi_task import MITask, check_counts


@dataclass(frozen=True)
class DiscreteUniform(MITask):
    r"""X uniform on {0, ..., m - 1}, Y | X ~ U(X, X + 2), one-dimensional, m = ``num_values``.

    A y in (k, k + 1) with k = 1, ..., m - 1 is as likely from x = k - 1 as from x = k, and each
    such interval has probability 1 / m. A y outside them tells x, so that

        I = H(X) - H(X | Y) = log m - (m - 1) / m log 2

    (Gao, Kannan, Oh and Viswanath, NeurIPS 2017, arXiv:1709.06212).

    Raises:
        UserError: for fewer than one value.
    """

    num_values: int
    dim_x: ClassVar[int] = 1
    dim_y: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_counts(num_values=self.num_values)

    @property
    def mutual_information(self) -> float:
        """log m - (m - 1) / m log 2, in nats."""
        m = self.num_values
        return math.log(m) - (m - 1) / m * math.log(2)

    def draw(self, num: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """x and x + 2 u."""
        shape, device = (num, 1), generator.device
        x = torch.randint(self.num_values, shape, generator=generator, device=device).double()
        u = torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
        return x, x + 2 * u
