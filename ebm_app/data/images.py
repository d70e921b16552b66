"""Image data sets of integer grey levels, by the names of ``--dataset``."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ebm_app.data.levels import (
    NUM_VALUES,
    ImageFormat,
    checked_levels,
    to_display,
)
from ebm_app.data.named import ALIASES, DATASETS
from ebm_app.data.pictures import convert_image, to_pixels
from ebm_app.data.sources import FOLDER, HUB, read_files
from ebm_app.data.splits import SPLITS, Labelled
from ebm_app.data.tables import BY_TYPE, Columns
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.fields import NumLevels, PathArgument, check_argument
from ebm_app.utils.registry import choose
from ebm_app.utils.tensors import as_tensor

#: Images whose levels are checked
NUM_CHECKED = 1024
#: Key of a report -> text
TEXTS = {
    "columns": "Columns",
    "source": "Sources of the splits",
    "held_out": "Splits held out by name",
    "unused": "Splits that are not used",
    "classes": "Classes",
}


@dataclass(frozen=True, eq=False)
class ImageData:
    """Training, validation and test images with grey levels 0..num_levels - 1.

    Each split is uint8 (N, C, H, W). ``labels`` are the class labels of each split, int64 (N,),
    and ``names`` the names of its images, or None. ``class_names`` are the names of the classes,
    if any. ``report`` describes the files read, as JSON.
    """

    name: str
    num_levels: int
    train: Tensor
    validation: Tensor
    test: Tensor
    labels: tuple[Tensor, ...] | None = None
    names: tuple[list[str], ...] | None = None
    class_names: tuple[str, ...] = ()
    report: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_splits(
        cls,
        name: str,
        num_levels: int,
        splits: Mapping[str, Labelled],
        report: Mapping[str, Any] | None = None,
    ) -> Self:
        """Build a data set from its splits, with labels and names if all splits have them."""
        images, *columns, class_names = zip(*(splits[split] for split in SPLITS), strict=True)
        labels, names = (None if any(own is None for own in each) else each for each in columns)
        options = {"labels": labels, "names": names, "report": dict(report or {})}
        if labels is not None:
            options["class_names"] = class_names[0]
        return cls(name, num_levels, *images, **options)

    def summary(self) -> dict[str, Any]:
        """Return a summary of the images, as JSON data."""
        sizes = {split: len(self.split(split)) for split in SPLITS}
        summary = {"name": self.name, "shape": self.image_shape, "splits": sizes, **self.report}
        if self.class_names:
            labels = torch.cat(self.labels)
            counts = labels[labels >= 0].bincount(minlength=len(self.class_names)).tolist()
            summary["classes"] = dict(zip(self.class_names, counts, strict=True))
        return summary

    def describe(self) -> str:
        """Return the summary as text.

        >>> print(load_images("digits").describe())
        digits: images 1x8x8, 1400 train, 100 validation, 297 test.
        """
        report = self.summary()
        size = "x".join(map(str, report["shape"]))
        splits = ", ".join(f"{num} {split}" for split, num in report["splits"].items())
        lines = [f"{self.name}: images {size}, {splits}."]
        for key, text in TEXTS.items():
            items = report.get(key)
            if isinstance(items, dict):
                items = [f"{name} {value}" for name, value in items.items()]
            if items:
                lines.append(f"{text}: {shorten(', '.join(items))}.")
        return "\n".join(lines)

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
        tenth of ``images`` is held out. Otherwise, validation labels are -1 (unknown).

        Raises:
            UserError: as in ``checked_levels``, for fewer than 3 images, and for labels that are
                not one integer per image.
        """
        num_levels = check_argument(NumLevels, "num_levels", num_levels)
        images = checked_levels(images, None, num_levels).cpu()
        if labels is not None:
            labels = as_tensor(labels, "labels")
            is_integer = not (labels.is_floating_point() or labels.is_complex())
            if labels.shape != images.shape[:1] or not is_integer or (labels < 0).any():
                raise UserError(
                    f"Expected {len(images)} non-negative integer labels, one per image, got "
                    f"{labels.dtype} of shape {tuple(labels.shape)}."
                )
            labels = labels.long().cpu()
        train = Labelled(images, labels)
        if validation is None:
            train, held_out = _hold_out(train)
        else:
            shape = tuple(images.shape[1:])
            others = checked_levels(validation, shape, num_levels).cpu()
            unknown = None if labels is None else torch.full((len(others),), -1)
            held_out = Labelled(others, unknown)
        warn_of_unused_levels(train.images, num_levels)
        splits = {"train": train, "validation": held_out, "test": held_out}
        return cls.from_splits(name, num_levels, splits)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Shape (C, H, W) of an image."""
        channels, height, width = self.train.shape[1:]
        return channels, height, width

    @property
    def num_classes(self) -> int:
        """Number of classes: the largest label plus one."""
        return 1 + max(int(self.split_labels(name).max()) for name in SPLITS)

    def split(self, name: str) -> Tensor:
        """Return the images (N, C, H, W) of the split "train", "validation" or "test"."""
        return getattr(self, choose("split", name, SPLITS))

    def split_labels(self, name: str) -> Tensor:
        """Return the class labels (N,) of a split."""
        index = SPLITS.index(choose("split", name, SPLITS))
        if self.labels is None:
            raise UserError(
                f"The images of {self.name} have no class labels. Use a labelled data set, or "
                "choose a column with --label_column."
            )
        return self.labels[index]

    def display(self, levels: Tensor) -> Tensor:
        """Convert levels (*) of this data set to display values in [0, 1]."""
        return to_display(levels, self.num_levels)


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


def _hold_out(data: Labelled) -> tuple[Labelled, Labelled]:
    """Hold out a random tenth of the images, at least 2."""
    num = len(data.images)
    if num < 3:
        raise UserError(f"Expected at least 3 images, got {num}. Add images.")
    # RandomState is stable across versions of numpy
    order = torch.from_numpy(np.random.RandomState(0).permutation(num))
    images, labels, *_ = data
    train, held_out = (
        Labelled(images[rows], None if labels is None else labels[rows])
        for rows in order.tensor_split([-max(2, num // 10)])
    )
    return train, held_out


def load_images(
    name: str,
    data_root: str | Path | None = None,
    download: bool = False,
    resolution: int | None = None,
    form: ImageFormat | None = None,
    resize: bool = False,
    image_column: str | None = None,
    label_column: str | None = None,
) -> ImageData:
    """Load a data set by name. Missing splits are held out from the training images by their
    names, about a tenth each.

    >>> load_images("digits").image_shape
    (1, 8, 8)

    Args:
        name: a key of ``DATASETS``, "folder:PATH" for a folder of image files (see
            ``load_folder``), or "hf:NAME" for a Hugging Face data set (see ``load_hub``).
        data_root: folder of the files of mnist, fashion_mnist and cifar10. Default: "data".
        download: download these files if they are missing.
        resolution: side in pixels to which images of a folder are resized.
        form, resize: image format of a model that images of a folder must have, and whether they
            are converted to it, see ``convert_image``.
        image_column, label_column: columns of a Hugging Face data set or of metadata.csv. Default:
            the only column of images, and of the type ClassLabel or with the name "label".

    Raises:
        UserError: for an unknown name, missing or damaged files, a failed download, a resolution
            or column for a named data set, images that need a conversion without ``resize``, and
            ambiguous splits or columns.
    """
    name = check_argument(str, "name", name)
    name = ALIASES.get(name, name)
    if name == FOLDER:
        raise UserError("'folder:' has no path. Use folder:PATH.")
    num_levels, convert = NUM_VALUES, partial(to_pixels, resolution=resolution)
    if check_argument(ImageFormat | None, "form", form) is not None:
        num_levels = form.num_levels
        options = {"image_shape": form.image_shape, "num_levels": num_levels, "resize": resize}
        convert = partial(convert_image, **options)
    columns = Columns(image_column, label_column)
    if name.startswith((FOLDER, HUB)):
        splits, report = read_files(name, convert, columns)
        if form is None:
            warn_of_unused_levels(splits["train"].images, num_levels)
        return ImageData.from_splits(name, num_levels, splits, report)
    source = DATASETS[choose("data set", name, [*DATASETS, "folder:PATH", "hf:NAME"])]
    if resolution is not None:
        raise UserError(f"{name} has a fixed resolution. Leave out --resolution.")
    if columns != BY_TYPE:
        raise UserError(f"{name} has fixed columns. Leave out --image_column and --label_column.")
    root = "data" if data_root is None else data_root
    root = Path(check_argument(PathArgument, "data_root", root)).expanduser()
    return ImageData.from_splits(name, source.num_levels, source.read(root, download))
