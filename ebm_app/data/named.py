"""Named data sets: the digits of scikit-learn, and data sets of torchvision."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ebm_app.data.sources import read_parquet
from ebm_app.data.splits import SPLITS, Labelled
from ebm_app.utils.errors import UserError

#: Sizes of the splits of the 1,797 digits, permuted by ``numpy.random.RandomState(0)``
DIGITS_SPLITS = (1400, 100, 297)


@dataclass(frozen=True)
class Source:
    """A named data set.

    Args:
        dataset_class: name of torchvision's class; empty for the digits, which have no files.
        max_validation: max size of the validation split, the last images (at most a sixth) of the
            training split, as in the paper.
        class_names: names of the classes, if they are not digits.
    """

    name: str
    num_levels: int = 256
    dataset_class: str = ""
    max_validation: int = 10_000
    class_names: tuple[str, ...] = ()

    def read(self, root: Path, download: bool) -> dict[str, Labelled]:
        """Return levels, uint8 (N, C, H, W), and labels, int64 (N,), of each split by name.

        Parquet files in a folder with the name of the source, such as ROOT/cifar10, are read as a
        Hugging Face data set. Otherwise torchvision reads its own files. To avoid executing other
        code, it checks the MD5 of the files of CIFAR-10 before unpickling them. The files of MNIST
        are not pickled.

        Raises:
            UserError: for missing or damaged files, or a failed download.
        """
        if not self.dataset_class:
            return _read_digits()
        try:
            pairs = [self._read_split(root, train, download) for train in (True, False)]
            (train, labels), (test, test_labels) = pairs
            if len(train) < 6 or train.shape[1:] != test.shape[1:]:
                raise ValueError(f"{train.shape} training and {test.shape} test images")
            if (len(train), len(test)) != (len(labels), len(test_labels)):
                raise ValueError("expected one label per image")
        except ModuleNotFoundError:  # of an extra
            raise
        except Exception as error:  # torchvision raises many exception types
            raise UserError(
                f"Cannot read {self.name} in '{root}' ({error}). Copy its files there, "
                "uncompressed in torchvision's layout, or change --data_root. Use --download to "
                "fetch missing files; delete damaged files first."
            ) from error
        end = len(train) - min(self.max_validation, len(train) // 6)
        images, kinds = (train[:end], train[end:], test), (labels[:end], labels[end:], test_labels)
        splits = zip(SPLITS, images, kinds, strict=True)
        options = {"class_names": self.class_names}
        return {split: Labelled(own, kind, **options) for split, own, kind in splits}

    def _read_split(self, root: Path, train: bool, download: bool) -> tuple[Tensor, Tensor]:
        """Return levels (N, C, H, W) and labels (N,) of the training or test split."""
        if any((root / self.name).rglob("*.parquet")):
            return read_parquet(root / self.name, "train" if train else "test")
        from torchvision import datasets  # takes over a second to import

        split = getattr(datasets, self.dataset_class)(root, train=train, download=download)
        levels = torch.as_tensor(split.data)
        is_grey = levels.ndim == 3
        levels = levels.unsqueeze(1) if is_grey else levels.permute(0, 3, 1, 2).contiguous()
        return levels, torch.as_tensor(split.targets).long()


def _read_digits() -> dict[str, Labelled]:
    """Return levels 0..16, uint8 (N, 1, 8, 8), and labels (N,) of each split by name."""
    from sklearn.datasets import load_digits  # takes over a second to import

    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.images))
    levels = torch.from_numpy(digits.images[order].astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(digits.target[order]).long()
    splits = map(Labelled, levels.split(DIGITS_SPLITS), labels.split(DIGITS_SPLITS))
    return dict(zip(SPLITS, splits, strict=True))


#: Names of the classes, in the order of their labels
CLOTHES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag")
CLOTHES += ("ankle boot",)
OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship")
OBJECTS += ("truck",)
SOURCES = (
    Source("digits", 17),
    Source("mnist", 256, "MNIST"),
    Source("fashion_mnist", 256, "FashionMNIST", class_names=CLOTHES),
    Source("cifar10", 256, "CIFAR10", max_validation=5_000, class_names=OBJECTS),
)
DATASETS = {source.name: source for source in SOURCES}
#: Other names of data sets
ALIASES = {"fashion": "fashion_mnist"}
