"""Random numbers as functions of integer seeds."""

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from ebm_app.utils.tensors import copy_to

_LOCK = Lock()
#: Rows of a batch that share a generator
BLOCK = 64


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
        self.step, self.rows, self.num, self.device = step, rows, num, device
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


def normal_draws(num: int, like: Tensor, seed: int) -> Tensor:
    """Draw standard normal noise (num, B, *) for points ``like``, see ``draws_by_point``."""
    return draws_by_point(torch.randn, num, like, seed)


def draws_by_point(draw: Callable[..., Tensor], num: int, like: Tensor, seed: int) -> Tensor:
    """Draw ``num`` times for each point of ``like`` (B, *): (num, B, *). ``draw`` takes a shape
    and a generator.

    The generator of a point is seeded by ``seed`` and the float32 bytes of the point, so its draws
    do not depend on the batch or the process.
    """
    rows = []
    for point in like.detach().float().cpu():
        checksum = zlib.crc32(point.contiguous().numpy().tobytes())
        generator = make_generator("cpu", seed, checksum)
        rows.append(draw((num, *point.shape), generator=generator))
    return copy_to(torch.stack(rows, 1).to(like.dtype), like.device)
