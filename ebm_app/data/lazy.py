"""Images decoded on demand, for data sets larger than memory; loading of images."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import blake2b

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


def content_hash(pixels: np.ndarray) -> int:
    """Return a 64-bit signed hash of an image, uint8 (C, H, W).

    An RGB image with three equal channels has the hash of the grey image.

    >>> grey = np.arange(4, dtype=np.uint8).reshape(1, 2, 2)
    >>> content_hash(grey) == content_hash(grey.repeat(3, 0))
    True
    """
    if len(pixels) > 1 and (pixels == pixels[:1]).all():
        pixels = pixels[:1]
    digest = blake2b(np.ascontiguousarray(pixels), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


class LazyImages:
    """Images uint8 (N, C, H, W), decoded when they are indexed by a tensor of rows.

    A slice decodes nothing. Grey images are expanded to the channels of the data set.

    Args:
        read: decodes an image by its index.
        rows: indices of the images.
        shape: (C, H, W).
        hashes: hashes of the images by index, see ``content_hash``.
    """

    dtype, device, ndim = torch.uint8, torch.device("cpu"), 4

    def __init__(
        self, read: Read, rows: Tensor, shape: tuple[int, int, int], hashes: Tensor
    ) -> None:
        self.read, self.rows, self.shape = read, rows, torch.Size([len(rows), *shape])
        self.all_hashes = hashes
        self.pool: ThreadPoolExecutor | None = None
        self.pending: tuple[Tensor, list[Future[Tensor]]] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def hashes(self) -> Tensor:
        """Hashes of the images, int64 (N,)."""
        return self.all_hashes[self.rows]

    def select(self, rows: Tensor | slice) -> LazyImages:
        """Return some of the images without decoding them."""
        return LazyImages(self.read, self.rows[rows], tuple(self.shape[1:]), self.all_hashes)

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


def image_hashes(images: Images) -> Tensor:
    """Return the hashes of images (N, C, H, W), int64 (N,). Lazy images store theirs."""
    if isinstance(images, LazyImages):
        return images.hashes
    return torch.tensor([content_hash(image) for image in images.cpu().numpy()], dtype=torch.int64)


def load_all(read: Read, num: int, name: Callable[[int], str]) -> Images:
    """Decode and check images 0..num - 1, and keep them in memory up to ``MEMORY`` bytes.

    Every image is decoded and hashed once, so that lazy images have hashes.

    Raises:
        UserError: if the images differ in size; ``name`` maps an index to a name.
    """
    kept: list[Tensor] | None = []
    hashes: list[int] = []
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
                hashes.append(content_hash(pixels.numpy()))
                channels, used = max(channels, len(pixels)), used + pixels.numel()
                if used > MEMORY:
                    kept = None
                elif kept is not None:
                    kept.append(pixels)
    if kept is None:
        return LazyImages(read, torch.arange(num), (channels, *size), torch.tensor(hashes))
    return torch.stack([pixels.expand(channels, -1, -1) for pixels in kept])
