"""Named data sets: digits from scikit-learn, and data sets that torchvision reads from files."""

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
        max_validation: number of the last training images that are the validation split, as in the
            paper; a sixth if the files are smaller.
    """

    name: str
    num_levels: int = 256
    dataset_class: str = ""
    max_validation: int = 10_000

    def read(self, root: Path, download: bool) -> dict[str, Labelled]:
        """Return levels, uint8 (N, C, H, W), and labels, int64 (N,), of the splits by name.

        Parquet files in a folder of the source's name, such as ROOT/cifar10, are read as a data
        set of Hugging Face. Otherwise torchvision reads its own files. It unpickles those of
        CIFAR-10 only after comparing their MD5 with the published one, so that other files are not
        executed. The files of MNIST are not pickled.
        """
        if not self.dataset_class:
            return _read_digits()
        try:
            parts = [self._read_part(root, train, download) for train in (True, False)]
            (train, labels), (test, test_labels) = parts
            if len(train) < 6 or train.shape[1:] != test.shape[1:]:
                raise ValueError(f"{train.shape} training and {test.shape} test images")
            if (len(train), len(test)) != (len(labels), len(test_labels)):
                raise ValueError("expected one label per image")
        except Exception as error:  # torchvision raises many exception types
            raise UserError(
                f"Cannot read {self.name} in '{root}' ({error}). Copy its files there, "
                "uncompressed in torchvision's layout, or change --data_root. --download fetches "
                "missing files; delete damaged ones first."
            ) from error
        end = len(train) - min(self.max_validation, len(train) // 6)
        images, kinds = (train[:end], train[end:], test), (labels[:end], labels[end:], test_labels)
        return dict(zip(SPLITS, map(Labelled, images, kinds), strict=True))

    def _read_part(self, root: Path, train: bool, download: bool) -> tuple[Tensor, Tensor]:
        """Return levels (N, C, H, W) and labels (N,) of the training or test files."""
        if any((root / self.name).rglob("*.parquet")):
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


SOURCES = (
    Source("digits", 17),
    Source("mnist", 256, "MNIST"),
    Source("fashion_mnist", 256, "FashionMNIST"),
    Source("cifar10", 256, "CIFAR10", max_validation=5_000),
)
DATASETS = {source.name: source for source in SOURCES}
