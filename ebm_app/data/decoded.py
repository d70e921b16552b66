"""Decoded copies of large data sets: files that processes and later runs map into memory.

The copy of a data set is a folder of two numpy arrays in ``$XDG_CACHE_HOME/ebm_app/images``, by
default in ``~/.cache``. Its name is a digest of the files and of their conversion. The first
process that needs it writes it, while the others wait. Remove old copies as you like.
"""

import hashlib
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ebm_app.utils.files import lock_folder

#: Share of the free disk space that a copy may use
DISK_SHARE = 0.5
IMAGES_FILE, HASHES_FILE = "images.npy", "hashes.npy"


def copies_folder() -> Path:
    """Return the folder of all copies."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ebm_app" / "images"


def key_of(files: Iterable[Path], conversion: str) -> str:
    """Return a digest of a conversion and of the paths, sizes and modification times of files."""
    digest = hashlib.sha256(conversion.encode())
    for file in files:
        status = file.stat()
        digest.update(f"{file.absolute()} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]


class DecodedCopy:
    """The copy of a data set by its key.

    Attributes:
        lock: context manager; other processes wait until the context closes.
    """

    def __init__(self, key: str) -> None:
        self.folder, root = copies_folder() / key, copies_folder()
        root.mkdir(parents=True, exist_ok=True)
        self.pending = self.folder.with_name(key + ".tmp")
        self.lock = lock_folder(root)

    def read(self) -> tuple[Tensor, Tensor] | None:
        """Return the images (N, C, H, W), mapped into memory, and their hashes (N,), or None if
        there is no copy."""
        if not self.folder.is_dir():
            return None
        images = np.load(self.folder / IMAGES_FILE, mmap_mode="c")
        return torch.from_numpy(images), torch.from_numpy(np.load(self.folder / HASHES_FILE))

    def allocate(self, shape: tuple[int, ...]) -> np.ndarray | None:
        """Return an array on disk for images (N, C, H, W), or None if the disk has no space."""
        shutil.rmtree(self.pending, ignore_errors=True)
        num_bytes, root = int(np.prod(shape)), self.folder.parent
        if num_bytes > DISK_SHARE * shutil.disk_usage(root).free:
            print(f"warning: '{root}' has no space for decoded images.", file=sys.stderr)
            return None
        self.pending.mkdir()
        print(f"Decoding {shape[0]} images to '{self.folder}'.", file=sys.stderr)
        path = self.pending / IMAGES_FILE
        return np.lib.format.open_memmap(path, "w+", np.uint8, shape)

    def finish(self, images: np.memmap, hashes: Tensor) -> None:
        """Complete a new copy whose array is filled."""
        images.flush()  # before the name of a complete copy exists
        np.save(self.pending / HASHES_FILE, hashes.numpy())
        os.replace(self.pending, self.folder)
