"""Two samples as two densities to draw from."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ebm_app.ratios.data.pairs import DensityPair


@dataclass(frozen=True, eq=False)
class TwoSamples(DensityPair):
    """Rows (N0, D) of p_0 and (N1, D) of p_1; a draw is a row of either, with replacement."""

    rows0: Tensor
    rows1: Tensor

    @property
    def dim(self) -> int:
        """D."""
        return self.rows0.shape[1]

    def sample0(self, num: int, generator: torch.Generator) -> Tensor:
        return _drawn(self.rows0, num, generator)

    def sample1(self, num: int, generator: torch.Generator) -> Tensor:
        return _drawn(self.rows1, num, generator)

    def data_moment(self) -> float:
        return self.rows1.double().square().mean().item()

    def bridge_moment(self) -> float:
        spreads = (part.double().var(0, unbiased=False) for part in (self.rows0, self.rows1))
        between = (self.rows1.double().mean(0) - self.rows0.double().mean(0)).square()
        return (sum(spreads) + between).mean().item()


def _drawn(rows: Tensor, num: int, generator: torch.Generator) -> Tensor:
    place = torch.randint(len(rows), (num,), device=generator.device, generator=generator)
    return rows[place]
