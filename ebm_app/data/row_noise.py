"""Noise of some rows of a batch, the same however the rows are shared out."""

from collections.abc import Callable

import torch
from torch import Tensor

from ebm_app.utils.tensors import seeded


class RowNoise:
    """Draws for ``rows`` (b,) of the batch of ``num`` of a step: all who hold a part of the batch
    draw for the whole batch, and keep their rows.

    >>> whole, part = (RowNoise("cpu", 0, 0, torch.tensor(rows), 3) for rows in ([0, 1, 2], [2]))
    >>> bool((whole.normal(3, 4)[2] == part.normal(1, 4)).all())
    True
    """

    def __init__(
        self, device: str | torch.device, seed: int, step: int, rows: Tensor, num: int
    ) -> None:
        self.step, self.rows, self.num = step, rows, num
        self.generator = seeded(device, seed, 0, step)

    def uniform(self, *shape: int) -> Tensor:
        """Uniform draws in [0, 1) of this shape, which begins with the number of rows."""
        return self._own(torch.rand, shape)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal draws, as ``uniform``."""
        return self._own(torch.randn, shape)

    def _own(self, draw: Callable[..., Tensor], shape: tuple[int, ...]) -> Tensor:
        device, generator = self.generator.device, self.generator
        return draw(self.num, *shape[1:], device=device, generator=generator)[self.rows.to(device)]
