"""Images that are decoded when they are asked for: those of a data set larger than memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from ebm_app.utils.errors import UserError

#: bytes of images that are kept in memory; more are read from the disk at every step
MEMORY = 2**30
#: threads that decode: Pillow does so outside of Python's lock
WORKERS = min(16, os.cpu_count() or 1)
#: images that are checked together
BLOCK = 256
#: the pixels of an image by its number, uint8 (C, H, W)
Read = Callable[[int], Tensor]


class LazyImages:
    """Images uint8 (N, C, H, W), which an index of rows decodes as it would take them from a
    tensor; a slice decodes nothing. Grey ones may stand among those of colour."""

    dtype, device, ndim = torch.uint8, torch.device("cpu"), 4

    def __init__(self, read: Read, rows: Tensor, shape: tuple[int, int, int]) -> None:
        self.read, self.rows, self.shape = read, rows, torch.Size([len(rows), *shape])
        self.pool: ThreadPoolExecutor | None = None
        self.coming: tuple[Tensor, list[Future[Tensor]]] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, rows: Tensor | slice) -> LazyImages:
        """Some of them, not yet decoded."""
        return LazyImages(self.read, self.rows[rows], tuple(self.shape[1:]))

    def __getitem__(self, rows: Tensor | slice) -> Tensor | LazyImages:
        if isinstance(rows, slice):
            return self.select(rows)
        if self.coming is None or not torch.equal(self.coming[0], rows):
            self.prefetch(rows)
        futures, self.coming = self.coming[1], None
        channels = self.shape[1]
        return torch.stack([future.result().expand(channels, -1, -1) for future in futures])

    def prefetch(self, rows: Tensor) -> None:
        """Begin to decode the rows that are asked for next."""
        if self.pool is None:
            self.pool = ThreadPoolExecutor(WORKERS)
        numbers = self.rows[rows].tolist()
        self.coming = rows, [self.pool.submit(self.read, number) for number in numbers]

    def to(self, device: torch.device) -> LazyImages:
        """Themselves: what is decoded goes to a device by itself."""
        return self


Images = Tensor | LazyImages
Splits = tuple[Tensor, Tensor, Tensor]
#: images, and their class labels where they have some
Labelled = tuple[Images, Tensor | None]


def load_all(read: Read, num: int, name: Callable[[int], str]) -> Images:
    """Images 0..num - 1, in memory where they hold at most ``MEMORY`` bytes. Each is decoded once,
    so that a bad one is found before a training."""
    kept: list[Tensor] | None = []
    size, channels, used = None, 1, 0
    with ThreadPoolExecutor(WORKERS) as pool:
        for begin in range(0, num, BLOCK):
            block = range(begin, min(begin + BLOCK, num))
            for number, pixels in zip(block, pool.map(read, block), strict=True):
                size = pixels.shape[1:] if size is None else size
                if pixels.shape[1:] != size:
                    (height, width), (own_height, own_width) = size, pixels.shape[1:]
                    raise UserError(
                        f"images differ in size, '{name(0)}' is {width}x{height} and "
                        f"'{name(number)}' is {own_width}x{own_height}: give --resolution N to "
                        "bring all of them to NxN"
                    )
                channels, used = max(channels, len(pixels)), used + pixels.numel()
                if used > MEMORY:
                    kept = None
                elif kept is not None:
                    kept.append(pixels)
    if kept is None:
        return LazyImages(read, torch.arange(num), (channels, *size))
    return torch.stack([pixels.expand(channels, -1, -1) for pixels in kept])


def split_images(
    images: Images, labels: Tensor | None, sizes: Sequence[int], order: Tensor | None = None
) -> list[Labelled]:
    """Consecutive parts, of these sizes, of images and their class labels in this order; without
    one, in that of ``numpy.random.RandomState(0)``, whose stream is the same in every version."""
    if order is None:
        order = torch.from_numpy(np.random.RandomState(0).permutation(len(images)))
    of = images.__getitem__ if isinstance(images, Tensor) else images.select
    parts = order.split(list(sizes))
    return [(of(rows), None if labels is None else labels[rows]) for rows in parts]


def collect_splits(parts: Iterable[Labelled]) -> tuple[tuple[Images, ...], Splits | None]:
    """The images of train, validation and test, and their labels where all three have some."""
    images, labels = zip(*parts, strict=True)
    return images, None if any(own is None for own in labels) else labels
