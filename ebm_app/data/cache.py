"""Images in one array, in memory or in a file that all processes map.

Files are in ``$XDG_CACHE_HOME/ebm_app/images`` (default: ``~/.cache``). You may delete them.
"""

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor
from tqdm.auto import tqdm

from ebm_app.utils.errors import UserError
from ebm_app.utils.files import read_json, write_json

#: Max bytes of training images on a GPU
MAX_BYTES_ON_DEVICE = 2**30
#: Decoding threads; Pillow releases the GIL
NUM_THREADS = min(16, os.cpu_count() or 1)
#: Images decoded per copy to the array, and per task of a thread
BLOCK, NUM_PER_CALL = 1024, 16


def decode(
    read: Callable[[int], Tensor],
    names: Sequence[str],
    cache: Path | None = None,
) -> np.ndarray:
    """Decode images into one array.

    Args:
        read: returns the image with an index as uint8 (C, H, W), C = 1 or 3.
        names: names of the N images in error messages.
        cache: folder of a temporary file for the array. None keeps it in memory.

    Returns:
        The images, uint8 (N, C, H, W). C = 1 if all images are grey. Otherwise, grey images become
        RGB.

    Raises:
        UserError: if the images differ in size, or an image cannot be read.
    """
    array, channels = np.empty((0, 1, 0, 0), np.uint8), 1
    images = tqdm(_read_all(read, len(names)), "decode images", len(names), leave=False, delay=2)
    for index, image in enumerate(images):
        if not index:
            array = _allocate((len(names), 3, *image.shape[1:]), cache)
        elif image.shape[1:] != array.shape[2:]:
            height, width = array.shape[2:]
            raise UserError(
                f"Images differ in size: '{names[0]}' is {width}x{height} and "
                f"'{names[index]}' is {image.shape[2]}x{image.shape[1]}. Resize them to NxN "
                "with --resolution N."
            )
        array[index] = image.numpy()
        channels = max(channels, len(image))
    return array[:, :channels]


def _read_all(read: Callable[[int], Tensor], num: int) -> Iterator[Tensor]:
    """Iterate over images 0..num - 1."""
    with ThreadPool(NUM_THREADS) as pool:
        for start in range(0, num, BLOCK):
            block = range(start, min(start + BLOCK, num))
            yield from pool.map(read, block, NUM_PER_CALL)


def map_images(
    key: str, read: Callable[[Path], tuple[np.ndarray, dict[str, Any]]]
) -> tuple[Tensor, dict[str, Any]]:
    """Return images from a file, which the first process writes.

    Args:
        key: name of the file.
        read: returns the images (N, C, H, W), and a description of them as JSON data, given the
            folder for temporary files.

    Returns:
        The images in a mapped file, and their description. Writing to the tensor does not change
        the file.

    Raises:
        UserError: if the file cannot be written.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ebm_app", "images")
    images, description = folder / f"{key}.npy", folder / f"{key}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f"{key}.lock"):
            if not (images.exists() and description.exists()):
                array, about = read(folder)
                with images.with_suffix(".tmp").open("wb") as file:
                    np.save(file, array)
                os.replace(file.name, images)
                write_json(description, about)
    except OSError as error:
        raise UserError(
            f"Cannot write images to '{folder}': {error.strerror or error}. Set XDG_CACHE_HOME to "
            "a folder with enough space."
        ) from error
    return torch.from_numpy(np.load(images, mmap_mode="c")), read_json(description)


def _allocate(shape: tuple[int, ...], cache: Path | None) -> np.ndarray:
    """Return a uint8 array, in memory or in a temporary file in a folder."""
    if cache is None:
        return np.empty(shape, np.uint8)
    with tempfile.TemporaryFile(dir=cache) as file:
        os.posix_fallocate(file.fileno(), 0, math.prod(shape))  # raises if the disk is full
        return np.memmap(file, np.uint8, "r+", shape=shape)


def move_if_small(images: Tensor, device: torch.device) -> Tensor:
    """Move images to a device, unless they take more than ``MAX_BYTES_ON_DEVICE``."""
    return images if images.nbytes > MAX_BYTES_ON_DEVICE else images.to(device)
