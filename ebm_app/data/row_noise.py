"""Noise of some rows of a batch, the same however the rows are shared out."""

from collections.abc import Callable

import torch
from torch import Tensor


class RowNoise:
    """Draws for ``rows`` (b,) of a batch of ``num``, from the generator that all who hold a part
    of the batch have: each draws for the whole batch and keeps its rows.

    >>> generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    >>> whole, part = RowNoise(generators[0]), RowNoise(generators[1], torch.tensor([2]), 3)
    >>> bool((whole.normal(3, 4)[2] == part.normal(1, 4)).all())
    True
    """

    def __init__(
        self, generator: torch.Generator, rows: Tensor | None = None, num: int | None = None
    ) -> None:
        self.generator, self.rows, self.num = generator, rows, num

    def uniform(self, *shape: int) -> Tensor:
        """Uniform draws in [0, 1) of this shape, which begins with the number of rows."""
        return self._own(torch.rand, shape)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal draws, as ``uniform``."""
        return self._own(torch.randn, shape)

    def _own(self, draw: Callable[..., Tensor], shape: tuple[int, ...]) -> Tensor:
        generator, num = self.generator, shape[0] if self.num is None else self.num
        drawn = draw(num, *shape[1:], device=generator.device, generator=generator)
        return drawn if self.rows is None else drawn[self.rows.to(drawn.device)]
