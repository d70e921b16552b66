"""Paired data as two densities: the joint one, and the product of the marginals."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ebm_app.errors import UserError
from ebm_app.ratios.data.pairs import DensityPair


@dataclass(frozen=True, eq=False)
class PairedRows(DensityPair):
    """Rows (N, dx) and (N, dy) of paired data: p_1 draws a row of both, p_0 a row of each."""

    x: Tensor
    y: Tensor

    @property
    def dim(self) -> int:
        """D = dx + dy."""
        return self.x.shape[1] + self.y.shape[1]

    def sample0(self, num: int, generator: torch.Generator) -> Tensor:
        rows = (self._rows(num, generator) for _ in range(2))
        return torch.cat([part[row] for part, row in zip((self.x, self.y), rows, strict=True)], 1)

    def sample1(self, num: int, generator: torch.Generator) -> Tensor:
        row = self._rows(num, generator)
        return torch.cat([self.x[row], self.y[row]], 1)

    def data_moment(self) -> float:
        return self.joint.double().square().mean().item()

    def bridge_moment(self) -> float:
        return 2 * self.joint.double().var(0, unbiased=False).mean().item()

    @property
    def joint(self) -> Tensor:
        """(N, D)."""
        return torch.cat([self.x, self.y], 1)

    def take(self, rows: Tensor) -> "PairedRows":
        """Some of the rows."""
        return PairedRows(self.x[rows], self.y[rows])

    def _rows(self, num: int, generator: torch.Generator) -> Tensor:
        return torch.randint(len(self.x), (num,), device=generator.device, generator=generator)


def whiten(x: Tensor) -> Tensor:
    """Rows (N, d) with mean 0 and covariance I by a linear bijection, in float64.

    Raises:
        UserError: where the columns are linearly dependent.
    """
    centred = x.double() - x.double().mean(0)
    values, vectors = torch.linalg.eigh(torch.cov(centred.T).reshape(x.shape[1], -1))
    if not values.min() > 1e-10 * values.max():
        raise UserError("the columns are linearly dependent: drop those that others determine")
    return centred @ vectors / values.sqrt()
