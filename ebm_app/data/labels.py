"""Class labels of the named image data sets, in the order and the splits of their images."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ebm_app.data.images import DATASETS, FOLDER, DigitsSource, TorchvisionSource, load_images
from ebm_app.io.errors import UserError


def load_labels(
    name: str, data_root: str | Path | None = None, download: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Labels of train, validation and test, each int64 (N,): entry n belongs to image n of
    ``load_images``.

    The images are read too: they settle how many labels each split has, and what can be wrong with
    the files is said there.

    Args:
        name: a key of ``DATASETS``. data_root, download: as for ``load_images``.

    Raises:
        UserError: for folder:PATH, which has no labels, whatever ``load_images`` refuses, and
            files that do not hold one label an image.
    """
    if name.startswith(FOLDER):
        named = ", ".join(sorted(DATASETS))
        raise UserError(f"the data set '{name}' has no class labels: take one of {named}")
    data = load_images(name, data_root, download)
    source = DATASETS[name]
    if isinstance(source, DigitsSource):
        labels = _digits_labels()
    else:
        labels = _torchvision_labels(source, Path("data" if data_root is None else data_root))
    sizes = [len(split) for split in (data.train, data.validation, data.test)]
    if len(labels) != sum(sizes):
        raise UserError(
            f"{name} has {sum(sizes)} images but {len(labels)} labels: the files are damaged, "
            "delete them and fetch them again with --download"
        )
    train, validation, test = labels.long().split(sizes)
    return train, validation, test


def _digits_labels() -> Tensor:
    """The labels in the permutation that ``DigitsSource`` makes of the images."""
    from sklearn.datasets import load_digits  # over a second to import, only for this

    target = load_digits().target
    return torch.from_numpy(target[np.random.RandomState(0).permutation(len(target))])


def _torchvision_labels(source: TorchvisionSource, data_root: Path) -> Tensor:
    """The labels of the training file, of which the last are validation, and of the test file."""
    from torchvision import datasets  # over a second to import, only for this

    dataset_class = getattr(datasets, source.dataset_class)
    root = data_root.expanduser()
    parts = [dataset_class(root, train=train).targets for train in (True, False)]
    return torch.cat([torch.as_tensor(part) for part in parts])
