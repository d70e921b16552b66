"""Image data sets as integer levels, by the name that ``--dataset`` takes."""

import pickle
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from tarfile import TarError
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ebm_app.data.folder import read_folder
from ebm_app.data.levels import MAX_LEVELS, check_levels, to_display, to_levels
from ebm_app.data.palette import Palette, check_palette, find_palette, to_indices
from ebm_app.io.errors import UserError
from ebm_app.io.registry import choose

FOLDER = "folder:"
#: what torchvision raises on a failed download and on a file that is not what its name says.
READ_ERRORS = (
    *(OSError, EOFError, HTTPException, TarError, zlib.error, pickle.UnpicklingError),
    *(RuntimeError, ValueError, TypeError, LookupError, OverflowError, AssertionError),
)

Splits = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class ImageData:
    """Three splits of integer levels 0..num_levels-1, each uint8 (N, C, H, W).

    ``palette`` has the grey values 0..255 of the levels where these are few of the 256, and is ()
    where they are evenly spaced.

    Raises:
        ValueError: for splits that are not of this form or differ in image shape.
        UserError: for a palette that is not of as many levels.
    """

    name: str
    num_levels: int
    train: Tensor
    validation: Tensor
    test: Tensor
    palette: Palette = ()

    def __post_init__(self) -> None:
        check_palette(self.palette, self.num_levels)
        for split in (self.train, self.validation, self.test):
            if split.dtype != torch.uint8 or split.ndim != 4 or not split.numel():
                raise ValueError(f"a split is uint8 (N, C, H, W) and not empty: {split.shape}")
            if split.shape[1:] != self.train.shape[1:]:
                raise ValueError(f"splits differ: {split.shape[1:]} and {self.train.shape[1:]}")
            check_levels(split, self.num_levels)

    @classmethod
    def from_tensors(
        cls, images: Tensor, validation: Tensor | None, num_levels: int, name: str = "images"
    ) -> "ImageData":
        """A data set of images in memory; the validation images stand for the test split too.

        Args:
            images, validation: (N, C, H, W) as ``ebm_app.data.levels.to_levels`` takes them.
                Without ``validation``, ``numpy.random.RandomState(0)`` permutes the images and
                the last tenth of them, at least 2, is held out.

        Raises:
            UserError: for tensors that are not images of ``num_levels`` levels, or too few.
        """
        parts = [part for part in (images, validation) if part is not None]
        if any(part.ndim != 4 or part.shape[1:] != images.shape[1:] for part in parts):
            shapes = " and ".join(str(tuple(part.shape)) for part in parts)
            raise UserError(f"images are (N, C, H, W) and of one size, not {shapes}: reshape them")
        levels = to_levels(images, num_levels).cpu()
        if validation is not None:
            held_out = to_levels(validation, num_levels).cpu()
        else:
            num_train = len(levels) - max(2, len(levels) // 10)
            if num_train < 1:
                raise UserError(f"{len(levels)} images are too few to train on: give at least 3")
            order = torch.from_numpy(np.random.RandomState(0).permutation(len(levels)))
            levels, held_out = levels[order[:num_train]], levels[order[num_train:]]
        return cls(name, num_levels, levels, held_out, held_out)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        channels, height, width = self.train.shape[1:]
        return channels, height, width

    def split(self, name: str) -> Tensor:
        """Levels (N, C, H, W) of the split "train", "validation" or "test".

        Raises:
            UserError: for another name.
        """
        return getattr(self, choose("split", name, ("train", "validation", "test")))

    def display(self, levels: Tensor) -> Tensor:
        """Levels (*) of these images as values in [0, 1] for display."""
        return to_display(levels, self.num_levels, self.palette)


@dataclass(frozen=True)
class ImageSource(ABC):
    """A named data set, one line about it for a user, and its number of levels."""

    name: str
    note: str
    num_levels: int

    @abstractmethod
    def read(self, data_root: Path, download: bool) -> Splits:
        """Train, validation and test levels, uint8 (N, C, H, W)."""


class DigitsSource(ImageSource):
    """The 1,797 handwritten digits inside scikit-learn, with 17 levels (0..16).

    ``numpy.random.RandomState(0)``, whose stream is the same in every version of numpy, permutes
    them once: the first 1,400 are train, the next 100 validation, the last 297 test.
    """

    sizes: ClassVar[tuple[int, int, int]] = (1400, 100, 297)

    def read(self, data_root: Path, download: bool) -> Splits:
        """Levels (N, 1, 8, 8); no file of ``data_root`` is needed."""
        from sklearn.datasets import load_digits  # over a second to import, only for this

        levels = torch.from_numpy(load_digits().images.astype(np.uint8)).unsqueeze(1)
        order = np.random.RandomState(0).permutation(len(levels))
        train, validation, test = levels[torch.from_numpy(order)].split(self.sizes)
        return train, validation, test


@dataclass(frozen=True)
class TorchvisionSource(ImageSource):
    """A data set in the files of torchvision's class ``dataset_class``, below ``data_root``.

    The last ``max_validation`` training images are the validation split, as in the paper, but at
    most a sixth of them: 10,000 of the 60,000 of MNIST, and smaller files still split.

    torchvision unpickles the files of CIFAR-10, but only once the MD5 of each agrees with the
    published one, so that a file of another origin is refused and not run; this check is left on.
    The files of MNIST hold plain numbers and their MD5 is not compared.
    """

    dataset_class: str
    folder: str
    files: tuple[str, ...]
    max_validation: int

    def missing(self, data_root: Path) -> str:
        """Names of the files that are not below ``data_root``, separated by commas."""
        return ", ".join(f for f in self.files if not (data_root / self.folder / f).is_file())

    def read(self, data_root: Path, download: bool) -> Splits:
        """Levels (N, C, H, W).

        Raises:
            UserError: for missing files without ``download``, a download that fails, and files
                that are damaged or not of this data set.
        """
        folder, missing = data_root / self.folder, self.missing(data_root)
        if missing and not download:
            raise UserError(
                f"{self.name} needs {missing} (uncompressed) in '{folder}': put the files there, "
                f"replace the data root '{data_root}' with --data_root, or fetch with --download"
            )
        try:
            train, test = (self._read(data_root, train, download) for train in (True, False))
            if len(train) < 6 or train.shape[1:] != test.shape[1:]:
                raise ValueError(f"{train.shape} training and {test.shape} test images")
        except READ_ERRORS as error:
            missing = self.missing(data_root)
            if missing:
                raise UserError(
                    f"the download of {self.name} to '{data_root}' failed "
                    f"({' '.join(str(error).split())}): check the network and the disk, or put "
                    f"{missing} into '{folder}' yourself"
                ) from error
            raise UserError(
                f"the files in '{folder}' are truncated, damaged or not those of {self.name}: "
                "delete them and fetch them again with --download"
            ) from error
        num_train = len(train) - min(self.max_validation, len(train) // 6)
        return train[:num_train], train[num_train:], test

    def _read(self, data_root: Path, train: bool, download: bool) -> Tensor:
        """All images of the training or test file, (N, C, H, W)."""
        from torchvision import datasets  # over a second to import, only for this

        dataset_class = getattr(datasets, self.dataset_class)
        levels = torch.as_tensor(dataset_class(data_root, train=train, download=download).data)
        grey = levels.ndim == 3
        return levels.unsqueeze(1) if grey else levels.permute(0, 3, 1, 2).contiguous()


KINDS = ("images-idx3", "labels-idx1")
MNIST_FILES = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in KINDS)
CIFAR_FILES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta")
SOURCES = (
    DigitsSource("digits", "handwritten digits, 8x8 grey, 1,797 images, no files needed", 17),
    TorchvisionSource(
        name="mnist",
        note="handwritten digits, 28x28 grey, 70,000 images",
        num_levels=256,
        dataset_class="MNIST",
        folder="MNIST/raw",
        files=MNIST_FILES,
        max_validation=10_000,
    ),
    TorchvisionSource(
        name="fashion_mnist",
        note="clothes, 28x28 grey, 70,000 images",
        num_levels=256,
        dataset_class="FashionMNIST",
        folder="FashionMNIST/raw",
        files=MNIST_FILES,
        max_validation=10_000,
    ),
    TorchvisionSource(
        name="cifar10",
        note="objects and animals, 32x32 colour, 60,000 images",
        num_levels=256,
        dataset_class="CIFAR10",
        folder="cifar-10-batches-py",
        files=CIFAR_FILES,
        max_validation=5_000,
    ),
)
DATASETS: dict[str, ImageSource] = {source.name: source for source in SOURCES}


def load_images(
    name: str,
    data_root: str | Path | None = None,
    download: bool = False,
    resolution: int | None = None,
    palette: Palette | None = None,
) -> ImageData:
    """Load a data set by name.

    Args:
        name: A key of ``DATASETS``, or "folder:PATH" for a user's image files, which
            ``ebm_app.data.folder.read_folder`` reads.
        data_root: Folder of the files of mnist, fashion_mnist and cifar10, None for "data"; digits
            and folder:PATH need none.
        download: Fetch those files if they are missing; nothing is fetched otherwise.
        resolution: Side in pixels for folder:PATH; None keeps the images as they are.
        palette: Grey values that folder:PATH may use, () for all 256; None finds them in the
            training split.

    Raises:
        UserError: for an unknown name, missing or unreadable files, a download that fails, an
            image with a value that is not of the palette, and a resolution or a palette with any
            other name than folder:PATH.
    """
    if name.startswith(FOLDER):
        path = name.removeprefix(FOLDER)
        if not path:
            raise UserError("'folder:' names no folder: write folder:PATH")
        splits = read_folder(path, resolution)
        used = find_palette(splits[0]) if palette is None else palette
        levels = (to_indices(split, used) for split in splits)
        return ImageData(name, len(used) or MAX_LEVELS, *levels, palette=used)
    source = DATASETS[choose("data set", name, [*DATASETS, "folder:PATH"])]
    for what, given in (("resolution", resolution), ("palette", palette)):
        if given is not None:
            raise UserError(f"a {what} is for folder:PATH only: leave it out for {name}")
    root = Path("data" if data_root is None else data_root).expanduser()
    return ImageData(name, source.num_levels, *source.read(root, download))
