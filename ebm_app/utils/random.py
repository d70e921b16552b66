"""Random numbers as functions of seeds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

import numpy as np
import torch
from torch import Tensor

_GLOBAL_GENERATOR = Lock()


def derive_seed(*parts: int) -> int:
    """One 63-bit seed from several whole numbers, by numpy's SeedSequence."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))


def make_generator(device: str | torch.device, *parts: int) -> torch.Generator:
    """A generator whose stream is a function of these whole numbers."""
    return torch.Generator(device).manual_seed(derive_seed(*parts))


@contextmanager
def initial_weights(seed: int) -> Iterator[None]:
    """Let networks that are built inside get weights that are a function of the seed. torch draws
    them from the generator of the whole process: other threads wait, and it is left as it was.

    >>> with initial_weights(0):
    ...     first = torch.nn.Linear(2, 2).weight
    >>> with initial_weights(0):
    ...     bool((torch.nn.Linear(2, 2).weight == first).all())
    True
    """
    with _GLOBAL_GENERATOR, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


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
        self.generator = make_generator(device, seed, 0, step)

    def uniform(self, *shape: int) -> Tensor:
        """Uniform draws in [0, 1) of this shape, which begins with the number of rows."""
        return self._own(torch.rand, shape)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal draws, as ``uniform``."""
        return self._own(torch.randn, shape)

    def _own(self, draw: Callable[..., Tensor], shape: tuple[int, ...]) -> Tensor:
        device, generator = self.generator.device, self.generator
        return draw(self.num, *shape[1:], device=device, generator=generator)[self.rows.to(device)]
