"""Random numbers as functions of integer seeds."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from threading import Lock
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from ebm_app.utils.tensors import copy_to

_LOCK = Lock()
#: Rows of a batch that share a generator
BLOCK = 64
#: Streams of the noise of images: of likelihoods, of samples and of random labels
LIKELIHOODS, SAMPLES, LABELS = 10, 11, 12


def derive_seed(*integers: int) -> int:
    """Derive a 63-bit seed from several integers with numpy's SeedSequence."""
    return int(np.random.SeedSequence(integers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def make_generator(device: str | torch.device, *integers: int) -> torch.Generator:
    """Create a generator whose seed is derived from several integers."""
    return torch.Generator(device).manual_seed(derive_seed(*integers))


@contextmanager
def initial_weights(seed: int) -> Iterator[None]:
    """Seed the initial weights of networks built in this context.

    torch draws them from its global generator, which is locked here and restored afterwards.

    >>> with initial_weights(0):
    ...     first = torch.nn.Linear(2, 2).weight
    >>> with initial_weights(0):
    ...     bool((torch.nn.Linear(2, 2).weight == first).all())
    True
    """
    with _LOCK, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


class Noise(Protocol):
    """Source of random numbers for a batch of points x (B, *)."""

    def normal_like(self, x: Tensor) -> Tensor:
        """Draw standard normal numbers (B, *), with the dtype and on the device of ``x``."""

    def uniform_like(self, x: Tensor) -> Tensor:
        """Draw uniform numbers in [0, 1) of shape (B, *), with the dtype and on the device of
        ``x``."""


class BatchNoise:
    """Random numbers of a whole batch from one generator, on the device of the points; None for
    the global generator."""

    def __init__(self, generator: torch.Generator | None) -> None:
        self.generator = generator

    def normal_like(self, x: Tensor) -> Tensor:
        return torch.empty_like(x).normal_(generator=self.generator)

    def uniform_like(self, x: Tensor) -> Tensor:
        return torch.empty_like(x).uniform_(generator=self.generator)


class ImageNoise:
    """Random numbers of images, from one generator per image.

    The generator of an image is seeded by ``seed``, ``stream``, the index of the image and
    ``repeat``. Its numbers therefore do not depend on the other images, on the device or on the
    dtype.

    Args:
        indices: indices (B,) of the images.
        stream: what the numbers are for, such as ``SAMPLES``.
        repeat: number of an independent repetition.

    >>> one, two = (ImageNoise(0, range(num), SAMPLES).normal(3, 3) for num in (1, 2))
    >>> bool((one == two[:1]).all())
    True
    """

    def __init__(self, seed: int, indices: Iterable[int], stream: int, repeat: int = 0) -> None:
        numbers = ((seed, stream, index, repeat) for index in indices)
        self.generators = [make_generator("cpu", *each) for each in numbers]

    def __getitem__(self, rows: slice | Sequence[int]) -> Self:
        """Return the source for some of the images, which shares their generators."""
        other = copy(self)
        if isinstance(rows, slice):
            other.generators = self.generators[rows]
        else:
            other.generators = [self.generators[row] for row in rows]
        return other

    def normal(self, *shape: int) -> Tensor:
        """Draw standard normal numbers (B, *shape) float32 on the CPU."""
        return self._draw(torch.randn, shape)

    def uniform(self, *shape: int) -> Tensor:
        """Draw uniform numbers in [0, 1) of shape (B, *shape), float32 on the CPU."""
        return self._draw(torch.rand, shape)

    def normal_draws(self, num: int, x: Tensor) -> Tensor:
        """Draw standard normal numbers (num, B, *), with the dtype and on the device of ``x`` (B,
        *)."""
        draws = self._draw(torch.randn, (num, *x.shape[1:]))
        return copy_to(draws.transpose(0, 1).to(x.dtype), x.device)

    def sign_draws(self, num: int, x: Tensor) -> Tensor:
        """Draw -1 or 1 with equal probabilities, (num, B, *), as ``normal_draws``."""
        bits = self._draw(partial(torch.randint, 2), (num, *x.shape[1:]))
        return copy_to((2 * bits - 1).transpose(0, 1).to(x.dtype), x.device)

    def normal_like(self, x: Tensor) -> Tensor:
        return copy_to(self.normal(*x.shape[1:]).to(x.dtype), x.device)

    def uniform_like(self, x: Tensor) -> Tensor:
        return copy_to(self.uniform(*x.shape[1:]).to(x.dtype), x.device)

    def _draw(self, draw: Callable[..., Tensor], shape: tuple[int, ...]) -> Tensor:
        # always float32, because the numbers depend on the dtype
        draws = [draw(shape, generator=g, dtype=torch.float32) for g in self.generators]
        return torch.stack(draws)


class RowNoise:
    """Random numbers for some rows of a batch that is sharded over processes.

    Each block of 64 rows has its own generator. The numbers therefore do not depend on the number
    of processes, and a process only draws the blocks of its rows.

    Args:
        rows: indices (b,) in the batch. num: size of the whole batch.

    >>> full, shard = (RowNoise("cpu", 0, 0, torch.tensor(rows), 3) for rows in ([0, 1, 2], [2]))
    >>> bool((full.normal(3, 4)[2] == shard.normal(1, 4)).all())
    True
    """

    def __init__(
        self, device: str | torch.device, seed: int, step: int, rows: Tensor, num: int
    ) -> None:
        self.seed, self.step, self.rows, self.num, self.device = seed, step, rows, num, device
        blocks, position = (rows // BLOCK).unique(return_inverse=True)
        self.blocks = [
            (min(BLOCK, num - BLOCK * block), make_generator(device, seed, 0, step, block))
            for block in blocks.tolist()
        ]
        drawn = position * BLOCK + rows % BLOCK
        is_all = torch.equal(drawn, torch.arange(sum(size for size, _ in self.blocks)))
        # a slice avoids a copy to the device if all drawn rows are used
        self.selection = slice(None) if is_all else drawn.to(device, non_blocking=True)

    def uniform(self, *shape: int) -> Tensor:
        """Draw uniform numbers in [0, 1) of shape (b, *)."""
        return self._draw(torch.rand, shape)

    def normal(self, *shape: int) -> Tensor:
        """Draw standard normal numbers of shape (b, *)."""
        return self._draw(torch.randn, shape)

    def _draw(self, sampler: Callable[..., Tensor], shape: tuple[int, ...]) -> Tensor:
        draws = [
            sampler(size, *shape[1:], device=self.device, generator=generator)
            for size, generator in self.blocks
        ]
        return torch.cat(draws)[self.selection]
