"""Hugging Face data sets: the columns of images and labels, and their contents."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ebm_app.data.cache import decode
from ebm_app.data.pictures import ToPixels, read_image, to_pixels
from ebm_app.data.splits import Labelled
from ebm_app.utils.errors import UserError, shorten

if TYPE_CHECKING:
    from datasets import Dataset, Features

#: Column that is taken as labels if there is no column of the type ClassLabel
LABEL = "label"


@dataclass(frozen=True)
class Columns:
    """Names of the columns of images and labels. None: the only column of the type, if any."""

    image: str | None = None
    label: str | None = None

    def choose(self, features: Features) -> Columns:
        """Return the columns of a data set.

        Raises:
            UserError: if there is no such column, or a choice of several.
        """
        from datasets import ClassLabel, Image, Value  # takes seconds to import

        images = [name for name, feature in features.items() if isinstance(feature, Image)]
        classes = [name for name, feature in features.items() if isinstance(feature, ClassLabel)]
        values = [
            name
            for name, feature in features.items()
            if isinstance(feature, Value) and ("int" in feature.dtype or "string" in feature.dtype)
        ]
        if not images:
            raise UserError(f"The data set has no image column, only {', '.join(features)}.")
        by_name = [LABEL] if LABEL in values else []
        image = _choose("image", self.image, images, images)
        label = _choose("label", self.label, classes or by_name, classes + values)
        return Columns(image, label)


def _choose(
    kind: str, chosen: str | None, default: Sequence[str], possible: Sequence[str]
) -> str | None:
    """Return the chosen column, or the only one of ``default``, if any."""
    if chosen is not None and chosen not in possible:
        raise UserError(
            f"The data set has no {kind} column '{chosen}', only {', '.join(possible) or 'none'}. "
            f"Change --{kind}_column."
        )
    if chosen is None and len(default) > 1:
        raise UserError(
            f"The data set has {len(default)} {kind} columns: {', '.join(default)}. Choose one "
            f"with --{kind}_column, or remove the others."
        )
    return chosen or next(iter(default), None)


@dataclass(frozen=True)
class Table:
    """A data set of N images, their names, and the columns of images and labels."""

    dataset: Dataset
    names: list[str]
    columns: Columns

    @classmethod
    def of(cls, dataset: Dataset, columns: Columns) -> Table:
        """Return a table with images named by their index."""
        names = [f"image {index}" for index in range(len(dataset))]
        return cls(dataset, names, columns.choose(dataset.features))

    def select(self, rows: Sequence[int]) -> Table:
        """Return a subset of the images, without reading them."""
        names = [self.names[row] for row in rows]
        return replace(self, dataset=self.dataset.select(rows), names=names)

    def files(self) -> Dataset:
        """Return the column of images, not decoded: dicts of "path", and "bytes" or None."""
        from datasets import Image  # takes seconds to import

        column = self.columns.image
        return self.dataset.select_columns(column).cast_column(column, Image(decode=False))


def read_labels(tables: Sequence[Table]) -> tuple[list[Tensor] | None, tuple[str, ...]]:
    """Return the labels (N,) of each table and the names of the classes, or None without labels.

    Classes of several tables are matched by name. Names of the type ClassLabel keep their order,
    other values are sorted. If all names are integers, they are sorted as numbers. Missing values
    and negative labels are -1 (unknown).
    """
    from datasets import ClassLabel  # takes seconds to import

    if any(table.columns.label is None for table in tables):
        return None, ()
    values, names, is_ordered = [], {}, True
    for table in tables:
        feature = table.dataset.features[table.columns.label]
        own = table.dataset[table.columns.label][:]
        if isinstance(feature, ClassLabel):
            names |= dict.fromkeys(feature.names)
            own = [None if k is None or k < 0 else feature.names[k] for k in own]
        else:
            own = [None if k is None or k == -1 else str(k) for k in own]
            names |= dict.fromkeys(name for name in own if name is not None)
            is_ordered = False
        values.append(own)
    ordered = list(names) if is_ordered else sorted(names)
    if all(name.isdecimal() for name in names):
        ordered = sorted(names, key=int)
    number = {None: -1} | {name: label for label, name in enumerate(ordered)}
    return [torch.tensor([number[name] for name in own]) for own in values], tuple(ordered)


def reader(tables: Sequence[Table], convert: ToPixels) -> Callable[[int], Tensor]:
    """Return a function of an index that reads an image of concatenated tables."""
    from datasets import concatenate_datasets  # takes seconds to import

    files = concatenate_datasets([table.files() for table in tables])
    names = [name for table in tables for name in table.names]
    column = tables[0].columns.image

    def read(index: int) -> Tensor:
        file, name = files[index][column], names[index]
        if file is None:
            raise UserError(f"'{name}' is missing. Remove its row.")
        if file["bytes"] is None:
            return convert(read_image(Path(file["path"])), name)
        return convert(read_image(io.BytesIO(file["bytes"]), name), name)

    return read


def read_dataset(dataset: Dataset) -> Labelled:
    """Return the images of a ``datasets.Dataset`` in memory, with class labels if it has any."""
    table = Table.of(dataset, Columns())
    pixels, _ = decode(reader([table], to_pixels), table.names)
    labels, class_names = read_labels([table])
    images = torch.from_numpy(np.ascontiguousarray(pixels))
    return Labelled(images, labels and labels[0], table.names, class_names)


@contextmanager
def load_errors(name: str) -> Iterator[None]:
    """Convert the errors of the package ``datasets`` to a ``UserError``."""
    try:
        yield
    except Exception as error:  # the package raises many exception types
        raise UserError(f"Cannot read the data set '{name}': {shorten(error)}.") from error
