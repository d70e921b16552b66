"""The named data sets: digits inside scikit-learn, and those that torchvision reads from files."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ebm_app.data.stored import Splits
from ebm_app.utils.errors import UserError

#: of the 1,797 digits, in the order of ``numpy.random.RandomState(0).permutation``, whose stream
#: is the same in every version of numpy
DIGITS_SPLITS = (1400, 100, 297)


@dataclass(frozen=True)
class Source:
    """A named data set: its number of levels and, where it has files, these below ``folder`` of
    the data root, read by torchvision's ``dataset_class``.

    The last ``max_validation`` training images are the validation split, as in the paper, but at
    most a sixth of them: 10,000 of the 60,000 of MNIST, and smaller files still split.
    """

    name: str
    num_levels: int = 256
    dataset_class: str = ""
    folder: str = ""
    files: tuple[str, ...] = ()
    max_validation: int = 10_000

    def read(self, root: Path, download: bool) -> tuple[Splits, Splits]:
        """Levels, uint8 (N, C, H, W), and class labels, int64 (N,), of train, validation and test.

        torchvision unpickles the files of CIFAR-10, but only once the MD5 of each agrees with the
        published one, so that a file of another origin is refused and not run. The files of MNIST
        hold plain numbers and their MD5 is not compared.
        """
        if not self.files:
            return _read_digits()
        folder, missing = root / self.folder, self._missing(root)
        if missing and not download:
            raise UserError(
                f"{self.name} needs {missing} (uncompressed) in '{folder}': put the files there, "
                f"replace the data root '{root}' with --data_root, or fetch with --download"
            )
        try:
            parts = [self._read_part(root, train, download) for train in (True, False)]
            (train, labels), (test, test_labels) = parts
            if len(train) < 6 or train.shape[1:] != test.shape[1:]:
                raise ValueError(f"{train.shape} training and {test.shape} test images")
            if (len(train), len(test)) != (len(labels), len(test_labels)):
                raise ValueError("not one label an image")
        except Exception as error:  # of any kind, by what is there
            if missing := self._missing(root):
                raise UserError(
                    f"the download of {self.name} to '{root}' failed "
                    f"({' '.join(str(error).split())}): put {missing} into '{folder}' yourself"
                ) from error
            raise UserError(
                f"the files in '{folder}' are truncated, damaged or not those of {self.name}: "
                "delete them and fetch them again with --download"
            ) from error
        end = len(train) - min(self.max_validation, len(train) // 6)
        return (train[:end], train[end:], test), (labels[:end], labels[end:], test_labels)

    def _missing(self, root: Path) -> str:
        """Names of the files that are not there, separated by commas."""
        return ", ".join(f for f in self.files if not os.path.isfile(root / self.folder / f))

    def _read_part(self, root: Path, train: bool, download: bool) -> tuple[Tensor, Tensor]:
        """All levels (N, C, H, W) and labels (N,) of the training or test files."""
        from torchvision import datasets  # over a second to import, only for this

        part: Any = getattr(datasets, self.dataset_class)(root, train=train, download=download)
        levels = torch.as_tensor(part.data)
        grey = levels.ndim == 3
        levels = levels.unsqueeze(1) if grey else levels.permute(0, 3, 1, 2).contiguous()
        return levels, torch.as_tensor(part.targets).long()


def _read_digits() -> tuple[Splits, Splits]:
    """Levels 0..16, uint8 (N, 1, 8, 8), and labels (N,)."""
    from sklearn.datasets import load_digits  # over a second to import, only for this

    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.images))
    levels = torch.from_numpy(digits.images[order].astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(digits.target[order]).long()
    return levels.split(DIGITS_SPLITS), labels.split(DIGITS_SPLITS)


MNIST_FILES = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
CIFAR_FILES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta")
SOURCES = (
    Source("digits", 17),
    Source("mnist", 256, "MNIST", "MNIST/raw", MNIST_FILES),
    Source("fashion_mnist", 256, "FashionMNIST", "FashionMNIST/raw", MNIST_FILES),
    Source("cifar10", 256, "CIFAR10", "cifar-10-batches-py", CIFAR_FILES, max_validation=5_000),
)
DATASETS = {source.name: source for source in SOURCES}
