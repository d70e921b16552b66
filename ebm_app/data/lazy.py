"""Images decoded on demand, for data sets larger than memory; loading and splitting of images."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from ebm_app.utils.errors import UserError

#: Max bytes of images in memory; larger data sets are decoded in every step
MEMORY = 2**30
#: Decoding threads; Pillow releases the GIL
WORKERS = min(16, os.cpu_count() or 1)
#: Images per batch while loading
BLOCK = 256
#: Decodes an image by its index to uint8 (C, H, W)
Read = Callable[[int], Tensor]


class LazyImages:
    """Images uint8 (N, C, H, W), decoded when they are indexed by a tensor of rows.

    A slice decodes nothing. Grey images are expanded to the channels of the data set.

    Args:
        read: decodes an image by its index.
        rows: indices of the images.
        shape: (C, H, W).
    """

    dtype, device, ndim = torch.uint8, torch.device("cpu"), 4

    def __init__(self, read: Read, rows: Tensor, shape: tuple[int, int, int]) -> None:
        self.read, self.rows, self.shape = read, rows, torch.Size([len(rows), *shape])
        self.pool: ThreadPoolExecutor | None = None
        self.pending: tuple[Tensor, list[Future[Tensor]]] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, rows: Tensor | slice) -> LazyImages:
        """Return some of the images without decoding them."""
        return LazyImages(self.read, self.rows[rows], tuple(self.shape[1:]))

    def __getitem__(self, rows: Tensor | slice) -> Tensor | LazyImages:
        if isinstance(rows, slice):
            return self.select(rows)
        if self.pending is None or not torch.equal(self.pending[0], rows):
            self.prefetch(rows)
        futures, self.pending = self.pending[1], None
        channels = self.shape[1]
        return torch.stack([future.result().expand(channels, -1, -1) for future in futures])

    def prefetch(self, rows: Tensor) -> None:
        """Start to decode the next rows in the background."""
        if self.pool is None:
            self.pool = ThreadPoolExecutor(WORKERS)
        indices = self.rows[rows].tolist()
        self.pending = rows, [self.pool.submit(self.read, index) for index in indices]

    def to(self, device: torch.device) -> LazyImages:
        """Return the images unchanged: decoded batches are moved to the device instead."""
        return self


Images = Tensor | LazyImages
#: Tensors of train, validation and test
Splits = tuple[Tensor, Tensor, Tensor]
#: Images and their class labels, if any
Labelled = tuple[Images, Tensor | None]


def load_all(read: Read, num: int, name: Callable[[int], str]) -> Images:
    """Decode and check images 0..num - 1, and keep them in memory up to ``MEMORY`` bytes.

    Raises:
        UserError: if the images differ in size; ``name`` maps an index to a name.
    """
    kept: list[Tensor] | None = []
    size, channels, used = None, 1, 0
    with ThreadPoolExecutor(WORKERS) as pool:
        for begin in range(0, num, BLOCK):
            block = range(begin, min(begin + BLOCK, num))
            for index, pixels in zip(block, pool.map(read, block), strict=True):
                size = pixels.shape[1:] if size is None else size
                if pixels.shape[1:] != size:
                    (height, width), (own_height, own_width) = size, pixels.shape[1:]
                    raise UserError(
                        f"Images differ in size: '{name(0)}' is {width}x{height} and "
                        f"'{name(index)}' is {own_width}x{own_height}. Resize all to NxN with "
                        "--resolution N."
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
    """Split images and labels into consecutive parts of some sizes.

    Args:
        order: permutation of the images; None for that of ``numpy.random.RandomState(0)``, which
            is the same in every version of numpy.
    """
    if order is None:
        order = torch.from_numpy(np.random.RandomState(0).permutation(len(images)))
    select = images.__getitem__ if isinstance(images, Tensor) else images.select
    parts = order.split(list(sizes))
    return [(select(rows), None if labels is None else labels[rows]) for rows in parts]


def collect_splits(parts: Iterable[Labelled]) -> tuple[tuple[Images, ...], Splits | None]:
    """Return the images of train, validation and test, and their labels if all three have some."""
    images, labels = zip(*parts, strict=True)
    return images, None if any(own is None for own in labels) else labels
