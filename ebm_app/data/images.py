"""Image data sets as integer levels, by the name that ``--dataset`` takes."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le
from torch import Tensor

from ebm_app.data.folder import SPLITS, read_folder
from ebm_app.data.levels import NUM_VALUES, to_display, to_levels
from ebm_app.data.named import DATASETS
from ebm_app.data.sources import HUB, as_images, read_hub
from ebm_app.data.stored import Images, Splits, collect_splits, split_images
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import Int, check_argument
from ebm_app.utils.registry import choose
from ebm_app.utils.tensors import as_tensor

FOLDER = "folder:"
NumLevels = Annotated[Int, Ge(2), Le(NUM_VALUES)]


@dataclass(frozen=True, eq=False)
class ImageData:
    """Three splits of integer levels 0..num_levels-1, each uint8 (N, C, H, W).

    ``labels`` are the class labels of the splits, int64 (N,) each.
    """

    name: str
    num_levels: int
    train: Images
    validation: Images
    test: Images
    labels: Splits | None = None

    def __post_init__(self) -> None:
        for split in (self.train, self.validation, self.test):
            if split.dtype != torch.uint8 or split.ndim != 4 or 0 in split.shape:
                raise UserError(f"a split is uint8 (N, C, H, W) and not empty: {split.shape}")
            if isinstance(split, Tensor):
                to_levels(split, self.num_levels)

    @classmethod
    def from_tensors(
        cls,
        images: Any,
        validation: Any,
        num_levels: int,
        name: str = "images",
        labels: Tensor | None = None,
    ) -> "ImageData":
        """A data set of what ``ebm_app.train`` takes; the validation images stand for the test
        split too. Their labels are not known, -1, where they are not a part of ``images``.

        Raises:
            UserError: for tensors that are not images of ``num_levels`` levels, or too few, and
                labels that are not one an image.
        """
        num_levels = check_argument(NumLevels, "num_levels", num_levels)
        images, own = as_images(images)
        labels = own if labels is None else labels
        parts = [images] if validation is None else [images, as_images(validation)[0]]
        if any(part.ndim != 4 or part.shape[1:] != images.shape[1:] for part in parts):
            shapes = " and ".join(str(tuple(part.shape)) for part in parts)
            raise UserError(f"images are (N, C, H, W) and of one size, not {shapes}: reshape them")
        if labels is not None:
            labels = as_tensor(labels, "labels")
            is_whole = not (labels.is_floating_point() or labels.is_complex())
            if labels.shape != images.shape[:1] or not is_whole or (labels < 0).any():
                raise UserError("labels are whole numbers from 0 on, one for each image")
            labels = labels.long().cpu()
        levels, *others = (_on_levels(part, num_levels) for part in parts)
        if others:
            unknown = None if labels is None else torch.full((len(others[0]),), -1)
            made = [(levels, labels), (others[0], unknown)]
        else:
            held_out = max(2, len(levels) // 10)
            if len(levels) <= held_out:
                raise UserError(f"{len(levels)} images are too few to train on: give at least 3")
            made = split_images(levels, labels, [len(levels) - held_out, held_out])
        splits, labels = collect_splits([*made, made[1]])
        return cls(name, num_levels, *splits, labels=labels)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        channels, height, width = self.train.shape[1:]
        return channels, height, width

    @property
    def num_classes(self) -> int:
        """One more than the largest label."""
        return 1 + max(int(self.split_labels(name).max()) for name in SPLITS)

    def split(self, name: str) -> Tensor:
        """Levels (N, C, H, W) of the split "train", "validation" or "test"."""
        return getattr(self, choose("split", name, SPLITS))

    def split_labels(self, name: str) -> Tensor:
        """Class labels (N,) of a split."""
        index = SPLITS.index(choose("split", name, SPLITS))
        if self.labels is None:
            raise UserError(
                f"the images of {self.name} have no class labels: give a named data set"
            )
        return self.labels[index]

    def display(self, levels: Tensor) -> Tensor:
        """Levels (*) of these images as values in [0, 1] for display."""
        return to_display(levels, self.num_levels)


def _on_levels(images: Images, num_levels: int) -> Images:
    if isinstance(images, Tensor):
        return to_levels(images, num_levels).cpu()
    if num_levels != NUM_VALUES:
        raise UserError(f"images that are read from the disk have {NUM_VALUES} levels: give that")
    return images


def image_digest(levels: Images, labels: Tensor | None = None) -> str:
    """The SHA-256 of images (N, C, H, W) and of their class labels."""
    digest = hashlib.sha256(str(tuple(levels.shape)).encode())
    for rows in torch.arange(len(levels)).split(1024):
        digest.update(levels[rows.to(levels.device)].cpu().contiguous().numpy())
    if labels is not None:
        digest.update(labels.cpu().contiguous().numpy())
    return digest.hexdigest()


def load_images(
    name: str,
    data_root: str | Path | None = None,
    download: bool = False,
    resolution: int | None = None,
) -> ImageData:
    """Load a data set by name.

    >>> load_images("digits").image_shape
    (1, 8, 8)

    Args:
        name: A key of ``DATASETS``, "folder:PATH" for a user's image files, which
            ``ebm_app.data.folder.read_folder`` reads, or "hf:NAME" for a data set of Hugging Face,
            by a folder or its name on the hub, which ``ebm_app.data.sources.read_hub`` reads.
        data_root: Folder of the files of mnist, fashion_mnist and cifar10, None for "data"; digits
            and folder:PATH need none.
        download: Fetch those files if they are missing; nothing is fetched otherwise.
        resolution: Side in pixels for folder:PATH; None keeps the images as they are.

    Raises:
        UserError: for an unknown name, missing or unreadable files, a download that fails, and a
            resolution with a name of ``DATASETS``.
    """
    name = check_argument(str, "name", name)
    if name == FOLDER:
        raise UserError("'folder:' names no folder: write folder:PATH")
    for prefix, read in ((FOLDER, read_folder), (HUB, read_hub)):
        if name.startswith(prefix):
            images, labels = read(name.removeprefix(prefix), resolution)
            return ImageData(name, NUM_VALUES, *images, labels=labels)
    source = DATASETS[choose("data set", name, [*DATASETS, "folder:PATH", "hf:NAME"])]
    if resolution is not None:
        raise UserError(f"a resolution is for folder:PATH only: leave it out for {name}")
    given = "data" if data_root is None else data_root
    root = Path(check_argument(str | os.PathLike, "data_root", given)).expanduser()
    images, labels = source.read(root, download)
    return ImageData(name, source.num_levels, *images, labels=labels)
