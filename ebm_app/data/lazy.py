"""Loading of images, in memory or, for larger data sets, from disk.

Up to ``MEMORY`` bytes of images are kept in memory. Folders that are larger, or have more than
``FEW`` files, are decoded once into a cache of numpy arrays in ``$XDG_CACHE_HOME/ebm_app/images``
(default: ``~/.cache``), which processes and later runs memory-map. You may delete old caches.
Images in neither are decoded on every access.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from ebm_app.utils.errors import UserError

#: Max bytes of images in memory
MEMORY = 2**30
#: Max number of images in memory that every run decodes
FEW = 5000
#: Max share of the free disk space that the cache of a data set may use
DISK_SHARE = 0.5
#: Decoding threads; Pillow releases the GIL
WORKERS = min(16, os.cpu_count() or 1)
#: Min number of images, and of batches, that are decoded ahead of training
AHEAD, BATCHES_AHEAD = 4 * WORKERS, 2
#: Images per batch when loading, and per call of a thread
BLOCK, PART = 256, 16
#: Decodes the image with an index to uint8 (C, H, W)
Read = Callable[[int], Tensor]


class LazyImages:
    """Images uint8 (N, C, H, W) that are read when indexed by a tensor.

    Slicing reads no images. Grey images are expanded to the channels of the data set. For batches
    of B images, at most max(2 B, 4 WORKERS + B) decoded images are kept in memory.

    Args:
        read: returns the image with an index.
        rows: indices (N,) of the images.
        shape: (C, H, W).
    """

    dtype, device, ndim = torch.uint8, torch.device("cpu"), 4

    def __init__(self, read: Read, rows: Tensor, shape: tuple[int, int, int]) -> None:
        self.read, self.rows, self.shape = read, rows, torch.Size([len(rows), *shape])
        self.pool: ThreadPoolExecutor | None = None
        self.pending: deque[tuple[Tensor, list[Future[Tensor]]]] = deque()

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, rows: Tensor | slice) -> LazyImages:
        """Return a subset of the images without decoding them."""
        return LazyImages(self.read, self.rows[rows], tuple(self.shape[1:]))

    def __getitem__(self, rows: Tensor | slice) -> Tensor | LazyImages:
        if isinstance(rows, slice):
            return self.select(rows)
        if not (self.pending and torch.equal(self.pending[0][0], rows)):
            for future in chain.from_iterable(futures for _, futures in self.pending):
                future.cancel()
            self.pending.clear()
            self._submit(rows)
        _, futures = self.pending.popleft()
        channels = self.shape[1]
        return torch.stack([future.result().expand(channels, -1, -1) for future in futures])

    def prefetch(self, rows_of: Callable[[int], Tensor]) -> None:
        """Start decoding the next batches in the background.

        Args:
            rows_of: returns the indices of the images of batch 0, 1, ... after the last one read.
        """
        while len(self.pending) < BATCHES_AHEAD or sum(len(x) for x, _ in self.pending) < AHEAD:
            self._submit(rows_of(len(self.pending)))

    def _submit(self, rows: Tensor) -> None:
        """Add a batch to the queue of pending batches."""
        if self.pool is None:
            self.pool = ThreadPoolExecutor(WORKERS)
        indices = self.rows[rows].tolist()
        self.pending.append((rows, [self.pool.submit(self.read, index) for index in indices]))

    def to(self, device: torch.device) -> LazyImages:
        """Return self, because batches are moved to the device after decoding."""
        return self


Images = Tensor | LazyImages


def key_of(folder: Path, names: Iterable[str], conversion: str) -> str:
    """Return a digest of a conversion and the paths, sizes and modification times of files."""
    digest, root = hashlib.sha256(conversion.encode()), folder.absolute()
    for name in names:
        status = os.stat(file := f"{root}/{name}")
        digest.update(os.fsencode(f"{file} {status.st_size} {status.st_mtime_ns}\n"))
    return digest.hexdigest()[:32]


def load_all(read: Read, num: int, name: Callable[[int], str], key: str | None = None) -> Images:
    """Decode and check images 0..num - 1, into memory or the cache if they fit.

    Args:
        name: index -> name of the image in error messages.
        key: name of the cache, from ``key_of``; None for no cache.

    Raises:
        UserError: if the images differ in size.
    """
    if key is None or (num <= FEW and num * read(0).numel() <= MEMORY):
        return _images(read, num, *_decode(read, num, name))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ebm_app" / "images"
    file = cache / f"{key}.npy"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / ".lock"):  # the first process decodes, others wait
            if not file.exists():
                pending = file.with_suffix(".tmp")
                array, shape = _decode(read, num, name, pending)
                if not isinstance(array, np.memmap):
                    return _images(read, num, array, shape)
                array.flush()  # before the file is renamed
                os.replace(pending, file)
    except OSError as error:
        reason = error.strerror or error
        print(f"warning: cannot cache images in '{cache}': {reason}.", file=sys.stderr)
        return _images(read, num, *_decode(read, num, name))
    images = torch.from_numpy(np.load(file, mmap_mode="c"))
    if images.numel() <= MEMORY:
        return images
    return LazyImages(images.__getitem__, torch.arange(num), tuple(images.shape[1:]))


def _images(read: Read, num: int, array: np.ndarray | None, shape: tuple[int, ...]) -> Images:
    """Return decoded images, which are read again on every access if there is no array."""
    if array is not None:
        return torch.from_numpy(array)
    return LazyImages(read, torch.arange(num), shape)


def _allocate(shape: tuple[int, ...], file: Path | None) -> np.ndarray | None:
    """Create an array for images (N, C, H, W) in a new file, or else in memory, or return None
    without space."""
    if file is not None:
        file.unlink(missing_ok=True)  # it may be mapped, so do not overwrite it
        if math.prod(shape) > DISK_SHARE * shutil.disk_usage(file.parent).free:
            print(f"warning: '{file.parent}' is too full to cache images.", file=sys.stderr)
            file = None
    if file is None:
        return np.empty(shape, np.uint8) if math.prod(shape) <= MEMORY else None
    print(f"Decoding {shape[0]} images to '{file}'.", file=sys.stderr)
    return np.lib.format.open_memmap(file, "w+", np.uint8, shape)


def _decode(
    read: Read, num: int, name: Callable[[int], str], file: Path | None = None
) -> tuple[np.ndarray | None, tuple[int, ...]]:
    """Decode images. Return an array (N, C, H, W) from ``_allocate``, and the shape (C, H, W).
    Grey images become RGB if there are RGB images."""
    array, shape = None, (0,)
    with ThreadPoolExecutor(WORKERS) as pool:
        for begin in range(0, num, BLOCK):
            block = range(begin, min(begin + BLOCK, num))
            parts = [block[first : first + PART] for first in range(0, len(block), PART)]
            decoded = chain.from_iterable(pool.map(lambda rows: [*map(read, rows)], parts))
            for index, pixels in zip(block, decoded, strict=True):
                if index and pixels.shape[1:] != shape[1:]:
                    first, own = (f"{x[2]}x{x[1]}" for x in (shape, pixels.shape))
                    raise UserError(
                        f"Images differ in size: '{name(0)}' is {first} and '{name(index)}' is "
                        f"{own}. Resize them to NxN with --resolution N."
                    )
                if len(pixels) > shape[0]:  # the first image, or the first RGB image
                    shape = tuple(pixels.shape)
                    wider = _allocate((num, *shape), file)
                    if index and array is not None and wider is not None:
                        wider[:index] = array[:index]
                    array = wider
                if array is not None:
                    array[index] = pixels.numpy()
    return array, shape
