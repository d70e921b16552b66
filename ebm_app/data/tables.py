"""Hugging Face data sets: splits, columns of images and labels, and rows."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ebm_app.data.labels import sort_classes
from ebm_app.data.pictures import ToPixels
from ebm_app.data.splits import named_splits
from ebm_app.utils.errors import UserError, shorten
from ebm_app.utils.fields import user_errors

if TYPE_CHECKING:
    from datasets import Dataset, Features
    from torch import Tensor

#: Column of labels if there is no column of the type ClassLabel
LABEL = "label"
#: First letters of the types of values that may be labels
DISCRETE = ("int", "uint", "string", "large_string")
#: Files written by ``save_to_disk``
SAVED = ("dataset_dict.json", "state.json")


class Columns(NamedTuple):
    """Names of the columns of images and labels. None: the only column of the type, if any."""

    image: str | None = None
    label: str | None = None


#: Columns that are chosen by their types
BY_TYPE = Columns()


class Row(NamedTuple):
    """An image of a data set: its split, name and label, and the ``index`` of its file."""

    split: str
    name: str
    label: int | None
    files: Dataset
    index: int

    def read(self, convert: ToPixels) -> Tensor:
        """Return the image as uint8 (C, H, W)."""
        (file,) = self.files[self.index].values()
        if file is None:
            raise UserError(f"'{self.name}' is missing. Remove its row.")
        is_path = file["bytes"] is None
        return convert(Path(file["path"]) if is_path else io.BytesIO(file["bytes"]), self.name)


def load_hub(name: str) -> dict[str, Dataset]:
    """Load a Hugging Face data set from the hub, or a folder of ``save_to_disk`` or parquet files.

    Raises:
        UserError: for an unreadable data set.
    """
    from datasets import DatasetDict, load_dataset, load_from_disk  # takes seconds to import

    folder = Path(name).expanduser()
    with quiet_loading(name):
        if any((folder / file).is_file() for file in SAVED):
            loaded = load_from_disk(str(folder))
        else:
            loaded = load_dataset(str(folder) if folder.exists() else name)
    return dict(loaded) if isinstance(loaded, DatasetDict) else {"train": loaded}


@contextmanager
def quiet_loading(name: str) -> Iterator[None]:
    """Convert errors of the package ``datasets`` to a ``UserError``. Disable its progress bars and
    its count of downloads."""
    from datasets import config, disable_progress_bars  # takes seconds to import

    config.HF_UPDATE_DOWNLOAD_COUNTS = False
    disable_progress_bars()
    try:
        yield
    except Exception as error:  # the package raises many exception types
        raise UserError(
            f"Cannot read the data set '{name}': {shorten(error.__cause__ or error)}. Check the "
            "name or path."
        ) from error


def read_rows(
    datasets: dict[str, Dataset], columns: Columns, folder: Path | None = None
) -> tuple[list[Row], tuple[str, ...], dict[str, Any]]:
    """Return the rows of all splits, the names of the classes, and a report of the columns and
    splits, as JSON data.

    Classes of several splits are matched by name. Names of the type ClassLabel keep their order,
    other values are sorted. If all names are integers, they are sorted as numbers. Missing values
    and negative labels are -1 (unknown).

    Args:
        folder: folder of the images, whose names are their paths in it. None: images are named
            by their index.

    Raises:
        UserError: for a data set without a training split or an image column, or with several
            candidate columns and no choice.
    """
    splits = named_splits(datasets)
    if "train" not in splits:
        raise UserError(
            f"The data set has no split train, only {', '.join(datasets)}. Rename a split."
        )
    columns = choose_columns(datasets[splits["train"]].features, columns)
    for own in splits.values():
        with user_errors(f"split {own}"):
            choose_columns(datasets[own].features, columns)
    used = {split: datasets[own] for split, own in splits.items()}
    classes = class_names(used.values(), columns.label) if columns.label else ()
    rows = [
        Row(split, *image)
        for split, dataset in used.items()
        for image in _images_of(dataset, columns, classes, folder)
    ]
    unused = sorted(datasets.keys() - splits.values())
    return rows, classes, {"columns": columns._asdict(), "source": splits, "unused": unused}


def choose_columns(features: Features, chosen: Columns) -> Columns:
    """Return the columns of images and labels. Without a column of the type ClassLabel, the labels
    are the column "label".

    Raises:
        UserError: if there is no such column, or several of which none is chosen.
    """
    from datasets import ClassLabel, Image, Value  # takes seconds to import

    kinds = {kind: [] for kind in (Image, ClassLabel, Value)}
    for name, feature in features.items():
        kinds.get(type(feature), []).append(name)
    images, classes, values = kinds.values()
    if not images:
        raise UserError(
            f"The data set has no image column of the type datasets.Image, only "
            f"{', '.join(features)}."
        )
    values = [name for name in values if features[name].dtype.startswith(DISCRETE)]
    by_type = classes or [name for name in values if name == LABEL]
    return Columns(
        _choose("image", chosen.image, images, images),
        _choose("label", chosen.label, by_type, classes + values),
    )


def _choose(kind: str, chosen: str | None, by_type: list[str], possible: list[str]) -> str | None:
    """Return the chosen column, or the only one by type, if any."""
    if chosen is not None and chosen not in possible:
        raise UserError(
            f"The data set has no {kind} column '{chosen}', only {', '.join(possible) or 'none'}. "
            f"Change --{kind}_column."
        )
    if chosen is None and len(by_type) > 1:
        raise UserError(
            f"The data set has {len(by_type)} {kind} columns: {', '.join(by_type)}. Choose one "
            f"with --{kind}_column, or remove the others."
        )
    return chosen or next(iter(by_type), None)


def class_names(datasets: Iterable[Dataset], column: str) -> tuple[str, ...]:
    """Return the names of the classes of all data sets.

    Raises:
        UserError: if only some of the data sets have names for the values of the column.
    """
    from datasets import ClassLabel  # takes seconds to import

    datasets, names = [*datasets], {}
    if len({isinstance(dataset.features[column], ClassLabel) for dataset in datasets}) > 1:
        raise UserError(
            f"The column '{column}' has the type ClassLabel in some splits only. Cast it to this "
            "type in all splits, with the same names."
        )
    for dataset in datasets:
        if isinstance(feature := dataset.features[column], ClassLabel):
            names |= dict.fromkeys(feature.names)
        else:
            values = [value for value in dataset.unique(column) if value is not None]
            values = {x for x in values if not (isinstance(x, int) and x < 0)}
            names |= dict.fromkeys(sorted(map(str, values)))
    return sort_classes(names)


def _images_of(
    dataset: Dataset, columns: Columns, classes: tuple[str, ...], folder: Path | None
) -> Iterator[tuple[str, int | None, Dataset, int]]:
    """Iterate over the name, label, files and index of the images of a split."""
    from datasets import ClassLabel, Image  # takes seconds to import

    files = dataset.select_columns(columns.image).cast_column(columns.image, Image(decode=False))
    names = [f"image {index}" for index in range(len(files))]
    if folder is not None:
        start = len(str(folder)) + 1
        names = [file["path"][start:] for file in files[columns.image][:]]
    labels = [None] * len(files)
    if columns.label is not None:
        number = {name: label for label, name in enumerate(classes)}
        feature, values = dataset.features[columns.label], dataset[columns.label][:]
        if isinstance(feature, ClassLabel):
            number = {k: number[name] for k, name in enumerate(feature.names)}
        else:
            values = [None if value is None else str(value) for value in values]
        labels = [number.get(value, -1) for value in values]
    return zip(names, labels, repeat(files), range(len(files)), strict=False)
