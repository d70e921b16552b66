"""Loading of images, and images that stay on the disk for data sets larger than memory.

Up to ``MEMORY`` bytes of images are kept in memory. Larger folders are decoded once, to numpy
arrays in ``$XDG_CACHE_HOME/ebm_app/images``, by default in ``~/.cache``, which processes and later
runs map into memory. Remove old copies as you like. Other images are decoded at every use.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ebm_app.utils.errors import UserError
from ebm_app.utils.files import lock_folder

#: Max bytes of images in memory
MEMORY = 2**30
#: Share of the free disk space that a decoded copy may use
DISK_SHARE = 0.5
#: Files of a decoded copy
IMAGES_FILE, HASHES_FILE = "images.npy", "hashes.npy"
#: Decoding threads; Pillow releases the GIL
WORKERS = min(16, os.cpu_count() or 1)
#: Images per batch while loading
BLOCK = 256
#: Decodes an image by its index to uint8 (C, H, W)
Read = Callable[[int], Tensor]
#: Returns an array of a shape, or None without space
Allocate = Callable[[tuple[int, ...]], np.ndarray | None]


def content_hash(pixels: np.ndarray) -> int:
    """Return a 64-bit signed hash of an image, uint8 (C, H, W).

    An RGB image with three equal channels has the hash of the grey image.

    >>> grey = np.arange(4, dtype=np.uint8).reshape(1, 2, 2)
    >>> content_hash(grey) == content_hash(grey.repeat(3, 0))
    True
    """
    if len(pixels) > 1 and (pixels == pixels[:1]).all():
        pixels = pixels[:1]
    digest = hashlib.blake2b(np.ascontiguousarray(pixels), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


class LazyImages:
    """Images uint8 (N, C, H, W), read when they are indexed by a tensor of rows.

    A slice reads nothing. Grey images are expanded to the channels of the data set.

    Args:
        read: decodes an image by its index, or copies it from a decoded copy.
        rows: indices of the images.
        shape: (C, H, W).
        hashes: hashes of these images (N,), int64, see ``content_hash``.
    """

    dtype, device, ndim = torch.uint8, torch.device("cpu"), 4

    def __init__(
        self, read: Read, rows: Tensor, shape: tuple[int, int, int], hashes: Tensor
    ) -> None:
        self.read, self.rows, self.shape = read, rows, torch.Size([len(rows), *shape])
        self.hashes = hashes
        self.pool: ThreadPoolExecutor | None = None
        self.pending: tuple[Tensor, list[Future[Tensor]]] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, rows: Tensor | slice) -> LazyImages:
        """Return some of the images without decoding them."""
        return LazyImages(self.read, self.rows[rows], tuple(self.shape[1:]), self.hashes[rows])

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


def key_of(files: Iterable[Path], conversion: str) -> str:
    """Return a digest of a conversion and of the paths, sizes and modification times of files."""
    digest = hashlib.sha256(conversion.encode())
    for file in files:
        status = file.stat()
        digest.update(f"{file.absolute()} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]


def load_all(read: Read, num: int, name: Callable[[int], str], key: str | None = None) -> Images:
    """Decode and check images 0..num - 1, into memory or a decoded copy if they fit there.

    Args:
        name: maps an index to a name, for errors.
        key: name of the decoded copy, see ``key_of``; None for no copy.
    """
    if key is None or num * read(0).numel() <= MEMORY:
        array, hashes, shape = _decode(read, num, name, _in_memory)
        if array is not None:
            return torch.from_numpy(array)
        return LazyImages(read, torch.arange(num), shape, hashes)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "ebm_app" / "images" / key
    folder.parent.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder.parent):  # the first process decodes, the others wait
        if not folder.is_dir():
            pending = folder.with_name(key + ".tmp")
            array, hashes, shape = _decode(read, num, name, lambda s: _on_disk(pending, s))
            if array is None:
                return LazyImages(read, torch.arange(num), shape, hashes)
            array.flush()  # before the name of a complete copy exists
            np.save(pending / HASHES_FILE, hashes.numpy())
            os.replace(pending, folder)
    images = torch.from_numpy(np.load(folder / IMAGES_FILE, mmap_mode="c"))
    hashes = torch.from_numpy(np.load(folder / HASHES_FILE))
    shape = tuple(images.shape[1:])
    return LazyImages(images.__getitem__, torch.arange(num), shape, hashes)


def _in_memory(shape: tuple[int, ...]) -> np.ndarray | None:
    """Return an array for images (N, C, H, W), or None if they exceed ``MEMORY``."""
    return np.empty(shape, np.uint8) if math.prod(shape) <= MEMORY else None


def _on_disk(folder: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return an array for images (N, C, H, W) in a new folder, or None without disk space."""
    shutil.rmtree(folder, ignore_errors=True)
    if math.prod(shape) > DISK_SHARE * shutil.disk_usage(folder.parent).free:
        print(f"warning: '{folder.parent}' has no space for decoded images.", file=sys.stderr)
        return None
    folder.mkdir()
    print(f"Decoding {shape[0]} images to '{folder}'.", file=sys.stderr)
    return np.lib.format.open_memmap(folder / IMAGES_FILE, "w+", np.uint8, shape)


def _decode(
    read: Read, num: int, name: Callable[[int], str], allocate: Allocate
) -> tuple[np.ndarray | None, Tensor, tuple[int, ...]]:
    """Return images (N, C, H, W) in an array of ``allocate``, or None without one, their hashes
    (N,) and their shape (C, H, W). Grey images are expanded to the channels of the others."""
    array, hashes, shape = None, torch.empty(num, dtype=torch.int64), (0,)
    with ThreadPoolExecutor(WORKERS) as pool:
        for begin in range(0, num, BLOCK):
            block = range(begin, min(begin + BLOCK, num))
            for index, pixels in zip(block, pool.map(read, block), strict=True):
                if index and pixels.shape[1:] != shape[1:]:
                    (height, width), (own_height, own_width) = shape[1:], pixels.shape[1:]
                    raise UserError(
                        f"Images differ in size: '{name(0)}' is {width}x{height} and "
                        f"'{name(index)}' is {own_width}x{own_height}. Resize all to NxN with "
                        "--resolution N."
                    )
                if len(pixels) > shape[0]:  # the first image, or the first in colour
                    shape = tuple(pixels.shape)
                    wider = allocate((num, *shape))
                    if index and array is not None and wider is not None:
                        wider[:index] = array[:index]
                    array = wider
                if array is not None:
                    array[index] = pixels.numpy()
                hashes[index] = content_hash(pixels.numpy())
    return array, hashes, shape
