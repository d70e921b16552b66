"""Data sets of images with integer grey levels, by the names of ``--dataset``."""

import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from ebm_app.data.files import SPLITS, Listing, hold_out, list_folder, list_hub
from ebm_app.data.labels import class_labels, sort_classes
from ebm_app.data.levels import NUM_VALUES, checked_levels, to_display
from ebm_app.data.pictures import Convert, read_pixels, square_pixels, to_pixels
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.fields import MAX_CLASSES, NumLevels, PathArgument, check_argument
from ebm_app.utils.registry import choose
from ebm_app.utils.tensors import as_tensor

#: Names of data sets of files begin with these
FOLDER, HUB = "folder:", "hf:"
#: Sizes of the splits of the 1,797 digits, permuted by ``numpy.random.RandomState(0)``
DIGITS_SPLITS = (1400, 100, 297)
#: Images whose levels are checked
NUM_CHECKED = 1024
#: Max bytes of images in memory; more images are in a temporary file
MAX_IN_MEMORY = 2**30


@dataclass(frozen=True, eq=False)
class ImageData:
    """Training, validation and test images with grey levels 0..num_levels - 1.

    Each split is uint8 (N, C, H, W). ``labels`` are the class labels of each split, int64 (N,)
    with -1 for unknown ones, or None. ``class_names`` are the names of the classes, if any.
    ``notes`` are sentences about what was read, and ``advice`` says how to get labels.
    """

    name: str
    num_levels: int
    train: Tensor
    validation: Tensor
    test: Tensor
    labels: Sequence[Tensor] | None = None
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    advice: str = "Use a labelled data set."

    @classmethod
    def from_tensors(
        cls,
        images: Tensor | np.ndarray,
        validation: Tensor | np.ndarray | None,
        num_levels: int,
        name: str = "images",
        labels: Tensor | None = None,
    ) -> Self:
        """Build a data set from images (N, C, H, W), see ``checked_levels``.

        The validation images are also the test split. If ``validation`` is None, a random
        tenth of ``images``, at least 2, is held out. Otherwise, validation labels are -1.

        Raises:
            UserError: as in ``checked_levels``, for fewer than 3 images, and for labels that are
                not one integer per image, from 0 to 99,999.
        """
        num_levels = check_argument(NumLevels, "num_levels", num_levels)
        images = checked_levels(images, None, num_levels).cpu()
        kinds = None if labels is None else checked_labels(labels, len(images))
        if validation is None:
            if len(images) < 3:
                raise UserError(f"Expected at least 3 images, got {len(images)}. Add images.")
            # RandomState is stable across versions of numpy
            order = torch.from_numpy(np.random.RandomState(0).permutation(len(images)))
            rows, held_out = order.tensor_split([-max(2, len(images) // 10)])
            train, others = images[rows], images[held_out]
            splits = None if kinds is None else (kinds[rows], kinds[held_out], kinds[held_out])
        else:
            train, others = images, checked_levels(validation, tuple(images.shape[1:]), num_levels)
            unknown = torch.full((len(others),), -1)
            splits = None if kinds is None else (kinds, unknown, unknown)
        warn_of_unused_levels(train, num_levels)
        return cls(name, num_levels, train, others.cpu(), others.cpu(), splits)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Shape (C, H, W) of an image."""
        channels, height, width = self.train.shape[1:]
        return channels, height, width

    @property
    def num_classes(self) -> int:
        """Number of classes: the largest label plus one."""
        return 1 + max(int(self.split_labels(name).max()) for name in SPLITS)

    @property
    def class_frequencies(self) -> tuple[float, ...]:
        """Fractions of the classes among the labelled training images; empty without labels."""
        labels = self.split_labels("train")
        known = labels[labels >= 0]
        counts = known.bincount(minlength=self.num_classes).tolist()
        return tuple(count / len(known) for count in counts) if len(known) else ()

    def split(self, name: str) -> Tensor:
        """Return the images (N, C, H, W) of the split "train", "validation" or "test"."""
        return getattr(self, choose("split", name, SPLITS))

    def split_labels(self, name: str) -> Tensor:
        """Return the class labels (N,) of a split."""
        index = SPLITS.index(choose("split", name, SPLITS))
        if self.labels is None:
            raise UserError(f"The images of {self.name} have no class labels. {self.advice}")
        return self.labels[index]

    def display(self, levels: Tensor) -> Tensor:
        """Convert levels (*) of this data set to display values in [0, 1]."""
        return to_display(levels, self.num_levels)

    def summary(self) -> dict[str, Any]:
        """Return a summary of the images, as JSON data."""
        sizes = {split: len(self.split(split)) for split in SPLITS}
        summary = {"name": self.name, "shape": self.image_shape, "splits": sizes}
        if self.class_names:
            labels = torch.cat([*self.labels])
            counts = labels[labels >= 0].bincount(minlength=len(self.class_names)).tolist()
            summary["classes"] = dict(zip(self.class_names, counts, strict=True))
        return summary | {"notes": self.notes}

    def describe(self) -> str:
        """Return the summary as text.

        >>> print(load_images("digits").describe())
        digits: images 1x8x8, 1400 train, 100 validation, 297 test.
        """
        report = self.summary()
        size = "x".join(map(str, report["shape"]))
        splits = ", ".join(f"{num} {split}" for split, num in report["splits"].items())
        lines = [f"{self.name}: images {size}, {splits}.", *self.notes]
        if classes := report.get("classes"):
            counts = ", ".join(f"{name} {num}" for name, num in classes.items())
            lines.append(f"Classes: {shorten(counts)}.")
        return "\n".join(lines)


def checked_labels(labels: Any, num: int) -> Tensor:
    """Return the class labels of a user's images, int64 (num,)."""
    labels = as_tensor(labels, "labels")
    is_integer = not (labels.is_floating_point() or labels.is_complex())
    if labels.shape != (num,) or not is_integer:
        raise UserError(
            f"Expected {num} integer labels, one per image, got {labels.dtype} of shape "
            f"{tuple(labels.shape)}."
        )
    labels = labels.long().cpu()
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= MAX_CLASSES:
        raise UserError(
            f"Expected labels from 0 to {MAX_CLASSES - 1}, got labels from {low} to {high}. "
            "Number the classes from 0."
        )
    return labels


def warn_of_unused_levels(images: Tensor, num_levels: int) -> None:
    """Warn of images (N, C, H, W) without the upper half of the levels, as of a wrong number of
    levels. Reads the first images only."""
    highest = int(images[:NUM_CHECKED].max()) if len(images) else num_levels
    if 2 * highest < num_levels - 1:
        warnings.warn(
            f"The highest level of the images is {highest}, but the number of levels is "
            f"{num_levels}. If they have {highest + 1} levels, pass them to ebm_app.train as an "
            f"array with num_levels={max(2, highest + 1)}, for the right bits per dim.",
            stacklevel=3,
        )


def load_images(
    name: str,
    data_root: str | Path | None = None,
    download: bool = False,
    resolution: int | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
) -> ImageData:
    """Load a data set by name.

    >>> load_images("digits").image_shape
    (1, 8, 8)

    Args:
        name: a key of ``DATASETS``, "folder:PATH" for a folder of image files, or "hf:NAME" for a
            Hugging Face data set, see ``load_files``.
        data_root: folder of the files of mnist, fashion_mnist and cifar10. Default: "data".
        download: download these files if they are missing.
        resolution: side in pixels to which images of files are cropped and resized.
        image_column, label_column: see ``list_folder`` and ``list_hub``.

    Raises:
        UserError: for an unknown name, missing or damaged files, a failed download, and a
            resolution or column for a named data set.
    """
    name = check_argument(str, "name", name)
    name = ALIASES.get(name, name)
    if name.startswith((FOLDER, HUB)):
        convert = to_pixels if resolution is None else partial(square_pixels, side=resolution)
        data = load_files(name, convert, NUM_VALUES, image_column, label_column)
        warn_of_unused_levels(data.train, NUM_VALUES)
        return data
    read = DATASETS[choose("data set", name, [*DATASETS, "folder:PATH", "hf:NAME"])]
    if resolution is not None:
        raise UserError(f"{name} has a fixed resolution. Leave out resolution.")
    if image_column is not None or label_column is not None:
        raise UserError(f"{name} has fixed columns. Leave out image_column and label_column.")
    root = "data" if data_root is None else data_root
    return read(Path(check_argument(PathArgument, "data_root", root)).expanduser(), download)


def load_files(
    name: str,
    convert: Convert,
    num_levels: int,
    image_column: str | None = None,
    label_column: str | None = None,
) -> ImageData:
    """Load a folder or a Hugging Face data set. Missing splits are held out, see ``hold_out``, and
    classes are sorted by name.

    Args:
        name: "folder:PATH" or "hf:NAME", see ``list_folder`` and ``list_hub``.
        convert: converts a picture to levels 0..num_levels - 1, uint8 (C, H, W).
        image_column, label_column: see ``list_folder`` and ``list_hub``.

    Raises:
        UserError: for a data set that cannot be read, an unusable image, images of different
            sizes, and too few images.
    """
    if name.startswith(HUB):
        listing = list_hub(name.removeprefix(HUB), image_column, label_column)
    elif image_column is not None:
        raise UserError("A folder has no columns of images. Leave out image_column.")
    else:
        listing = list_folder(name.removeprefix(FOLDER), label_column)
    rows = hold_out(listing.names, listing.splits)
    order, sizes = sum(rows.values(), []), [*map(len, rows.values())]
    images, labels = read_all(listing, order, convert), None
    classes = sort_classes(sorted({*listing.labels} - {""}))
    if classes:
        number = {name: label for label, name in enumerate(classes)}
        labels = torch.tensor([number.get(listing.labels[row], -1) for row in order]).split(sizes)
    notes, missing = listing.notes, [split for split in SPLITS if split not in listing.splits]
    if missing:
        notes = (*notes, f"Held out by name: {', '.join(missing)}.")
    splits = images.split(sizes)
    return ImageData(name, num_levels, *splits, labels, classes, notes, listing.advice)


def read_all(listing: Listing, order: Sequence[int], convert: Convert) -> Tensor:
    """Read the images of a listing in an order of its rows, uint8 (N, C, H, W). C = 1 if all are
    grey; otherwise, grey images become RGB.

    Raises:
        UserError: if the images differ in size, or an image cannot be read.
    """
    place = {row: index for index, row in enumerate(order)}
    names = tqdm(listing.names, "decode images", leave=False, delay=2)
    images = torch.empty(0)
    for row, (name, source) in enumerate(zip(names, listing.sources, strict=True)):
        image = read_pixels(source, name, convert)
        channels, height, width = image.shape
        if row == 0:
            images = allocate(len(order), channels, height, width)
        elif (height, width) != images.shape[2:]:
            raise UserError(
                f"Images differ in size: '{listing.names[0]}' is {images.shape[3]}x"
                f"{images.shape[2]} and '{name}' is {width}x{height}. Choose one size as "
                "resolution."
            )
        elif channels > images.shape[1]:  # the first colour image
            images = allocate(len(order), channels, height, width).copy_(images)
        images[place[row]] = image
    return images


def allocate(*shape: int) -> Tensor:
    """Return an array of uint8, in memory or, above ``MAX_IN_MEMORY`` bytes, in a temporary file
    of the folder TMPDIR."""
    size = math.prod(shape)
    if size <= MAX_IN_MEMORY:
        return torch.empty(shape, dtype=torch.uint8)
    with TemporaryFile() as file:
        os.posix_fallocate(file.fileno(), 0, size)  # raises an error if the disk is full
        return torch.from_numpy(np.memmap(file, np.uint8, "r+", shape=shape))


def read_digits(root: Path, download: bool) -> ImageData:
    """Return the digits of scikit-learn, levels 0..16 of 8x8 pixels. There are no files."""
    from sklearn.datasets import load_digits  # takes over a second to import

    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.images))
    levels = torch.from_numpy(digits.images[order].astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(digits.target[order]).long().split(DIGITS_SPLITS)
    return ImageData("digits", 17, *levels.split(DIGITS_SPLITS), labels)


@dataclass(frozen=True)
class TorchvisionSet:
    """A data set of torchvision.

    Args:
        dataset_class: name of torchvision's class.
        max_validation: max size of the validation split, the last images (at most a sixth) of the
            training split, as in the paper.
        class_names: names of the classes, if they are not digits.
    """

    name: str
    dataset_class: str
    max_validation: int = 10_000
    class_names: tuple[str, ...] = ()

    def __call__(self, root: Path, download: bool) -> ImageData:
        """Read the data set.

        Parquet files in a folder with its name, such as ROOT/cifar10, are read as a Hugging Face
        data set. Otherwise torchvision reads its own files. To avoid executing other code, it
        checks the MD5 of the files of CIFAR-10 before unpickling them. The files of MNIST are not
        pickled.

        Raises:
            UserError: for missing or damaged files, or a failed download.
        """
        try:
            if any((root / self.name).rglob("*.parquet")):
                (train, labels), (test, test_labels) = self.read_parquet(root / self.name)
            else:
                (train, labels), (test, test_labels) = (
                    self.read_split(root, is_train, download) for is_train in (True, False)
                )
            if len(train) < 6 or train.shape[1:] != test.shape[1:]:
                raise ValueError(f"{train.shape} training and {test.shape} test images")
            if (len(train), len(test)) != (len(labels), len(test_labels)):
                raise ValueError("expected one label per image")
        except ModuleNotFoundError:  # of an extra
            raise
        except Exception as error:  # torchvision raises many exception types
            raise UserError(
                f"Cannot read {self.name} in '{root}' ({error}). Copy its files there, "
                "uncompressed in torchvision's layout, or change data_root. Use download to fetch "
                "missing files; delete damaged files first."
            ) from error
        end = len(train) - min(self.max_validation, len(train) // 6)
        kinds = (labels[:end], labels[end:], test_labels)
        images = (train[:end], train[end:], test)
        return ImageData(self.name, NUM_VALUES, *images, kinds, self.class_names)

    def read_split(self, root: Path, is_train: bool, download: bool) -> tuple[Tensor, Tensor]:
        """Return levels (N, C, H, W) and labels (N,) of the training or test split."""
        from torchvision import datasets  # takes over a second to import

        split = getattr(datasets, self.dataset_class)(root, train=is_train, download=download)
        levels = torch.as_tensor(split.data)
        is_grey = levels.ndim == 3
        levels = levels.unsqueeze(1) if is_grey else levels.permute(0, 3, 1, 2).contiguous()
        return levels, torch.as_tensor(split.targets).long()

    def read_parquet(self, folder: Path) -> list[tuple[Tensor, Tensor]]:
        """Return levels (N, C, H, W) and labels (N,) of the training and test split."""
        listing = list_hub(str(folder))
        names = self.class_names or tuple(map(str, range(10)))
        number = {label: class_labels(label, names).item() for label in {*listing.labels}}
        labels = torch.tensor([number[label] for label in listing.labels])
        levels = read_all(listing, range(len(labels)), to_pixels)
        num_test = listing.splits.count("test")
        sizes = [len(labels) - num_test, num_test]
        return [*zip(levels.split(sizes), labels.split(sizes), strict=True)]


#: Names of the classes, in the order of their labels
CLOTHES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag")
CLOTHES += ("ankle boot",)
OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship")
OBJECTS += ("truck",)
#: Name -> reader of a data set: (data_root, download) -> ImageData
DATASETS: dict[str, Callable[[Path, bool], ImageData]] = {
    "digits": read_digits,
    "mnist": TorchvisionSet("mnist", "MNIST"),
    "fashion_mnist": TorchvisionSet("fashion_mnist", "FashionMNIST", class_names=CLOTHES),
    "cifar10": TorchvisionSet("cifar10", "CIFAR10", 5_000, OBJECTS),
}
#: Other names of data sets
ALIASES = {"fashion": "fashion_mnist"}
