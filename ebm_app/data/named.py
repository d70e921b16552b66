"""Named data sets: digits from scikit-learn, and data sets that torchvision reads from files."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ebm_app.data.sources import read_dataset
from ebm_app.data.splits import SPLITS, Labelled
from ebm_app.utils.errors import UserError

#: Sizes of the splits of the 1,797 digits, permuted by ``numpy.random.RandomState(0)``
DIGITS_SPLITS = (1400, 100, 297)


@dataclass(frozen=True)
class Source:
    """A named data set.

    Args:
        dataset_class: name of torchvision's class; empty for the digits, which have no files.
        folder: folder of the ``files`` below the data root.
        max_validation: number of the last training images that are the validation split, as in the
            paper; a sixth if the files are smaller.
    """

    name: str
    num_levels: int = 256
    dataset_class: str = ""
    folder: str = ""
    files: tuple[str, ...] = ()
    max_validation: int = 10_000

    def read(self, root: Path, download: bool) -> dict[str, Labelled]:
        """Return levels, uint8 (N, C, H, W), and labels, int64 (N,), of the splits by name.

        Parquet files in a folder of the source's name, such as ROOT/cifar10, are read as a data
        set of Hugging Face. Otherwise torchvision reads its own files. It unpickles those of
        CIFAR-10 only after comparing their MD5 with the published one, so that
        other files are not executed. The files of MNIST are not pickled.
        """
        if not self.files:
            return _read_digits()
        folder, missing = root / self.folder, self._missing(root)
        if missing and not download:
            raise UserError(
                f"{self.name} needs {missing} (uncompressed) in '{folder}'. Copy the files there, "
                f"change the data root '{root}' by --data_root, or add --download."
            )
        try:
            parts = [self._read_part(root, train, download) for train in (True, False)]
            (train, labels), (test, test_labels) = parts
            if len(train) < 6 or train.shape[1:] != test.shape[1:]:
                raise ValueError(f"{train.shape} training and {test.shape} test images")
            if (len(train), len(test)) != (len(labels), len(test_labels)):
                raise ValueError("expected one label per image")
        except Exception as error:  # torchvision raises many exception types
            if missing := self._missing(root):
                raise UserError(
                    f"The download of {self.name} to '{root}' failed "
                    f"({' '.join(str(error).split())}). Copy {missing} to '{folder}' yourself."
                ) from error
            raise UserError(
                f"The files in '{folder}' are truncated, damaged or not those of {self.name}. "
                "Delete them and download them again with --download."
            ) from error
        end = len(train) - min(self.max_validation, len(train) // 6)
        images, kinds = (train[:end], train[end:], test), (labels[:end], labels[end:], test_labels)
        return dict(zip(SPLITS, map(Labelled, images, kinds), strict=True))

    def _has_parquet(self, root: Path) -> bool:
        return any((root / self.name).rglob("*.parquet"))

    def _missing(self, root: Path) -> str:
        """Return the names of the missing files, separated by commas."""
        if self._has_parquet(root):
            return ""
        return ", ".join(f for f in self.files if not os.path.isfile(root / self.folder / f))

    def _read_part(self, root: Path, train: bool, download: bool) -> tuple[Tensor, Tensor]:
        """Return levels (N, C, H, W) and labels (N,) of the training or test files."""
        if self._has_parquet(root):
            from datasets import load_dataset  # takes seconds to import

            part = load_dataset(str(root / self.name))["train" if train else "test"]
            return read_dataset(part)[:2]
        from torchvision import datasets  # takes over a second to import

        part = getattr(datasets, self.dataset_class)(root, train=train, download=download)
        levels = torch.as_tensor(part.data)
        is_grey = levels.ndim == 3
        levels = levels.unsqueeze(1) if is_grey else levels.permute(0, 3, 1, 2).contiguous()
        return levels, torch.as_tensor(part.targets).long()


def _read_digits() -> dict[str, Labelled]:
    """Return levels 0..16, uint8 (N, 1, 8, 8), and labels (N,), of the splits by name."""
    from sklearn.datasets import load_digits  # takes over a second to import

    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.images))
    levels = torch.from_numpy(digits.images[order].astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(digits.target[order]).long()
    parts = map(Labelled, levels.split(DIGITS_SPLITS), labels.split(DIGITS_SPLITS))
    return dict(zip(SPLITS, parts, strict=True))


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
