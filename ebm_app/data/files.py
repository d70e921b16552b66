"""Data sets of image files: folders, and data sets of Hugging Face.

A missing split is held out from the training images by a hash of their names, so that added images
move no other image. Images of a folder are named by their paths in it, those of Hugging Face by
their rows. Equal images with different names may be in different splits.
"""

import csv
import hashlib
import io
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ebm_app.data.pictures import Source
from ebm_app.utils.errors import UserError, shorten

if TYPE_CHECKING:
    from datasets import Dataset

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
#: File with the labels of images of a folder, its column of paths, and the default one of labels
METADATA, FILE_NAME, LABEL = "metadata.csv", "file_name", "label"
#: Files written by ``save_to_disk`` of the package ``datasets``
SAVED = ("dataset_dict.json", "state.json")
SPLITS = ("train", "validation", "test")
#: Lower-case name of a folder, or of a split of a Hugging Face data set -> split
SPLIT_NAMES = {"train": "train", "training": "train", "test": "test", "testing": "test"}
SPLIT_NAMES |= dict.fromkeys(("validation", "valid", "val", "dev"), "validation")
#: Interval of the hashes of each held-out split, see ``position_of``
HELD_OUT = {"test": (0.0, 0.1), "validation": (0.1, 0.2)}
#: Seed of the hashes
SEED = 0
#: Min images to be split, and in each split
MIN_IMAGES, MIN_SPLIT = 10, 2


class Listing(NamedTuple):
    """Images of a data set that are not read yet: the name, split, class and source of each.

    An image without a class has the class "". If no image has one, ``advice`` says how to name
    classes. ``notes`` are sentences about what is read.
    """

    names: list[str]
    splits: list[str]
    labels: list[str]
    sources: Iterable[Source]
    advice: str
    notes: tuple[str, ...]


def list_folder(path: str, label_column: str | None = None) -> Listing:
    """List the images of a folder.

    Subfolders named after at least two splits are the splits; otherwise all images are in the
    split "train". The classes are the column ``label_column`` (default: "label") of files
    metadata.csv. Without this column, they are the names of the images' folders, if there are at
    least two folders, and all in equal depth.

    Raises:
        UserError: for a folder without images, several folders for one split, images outside the
            splits, and a metadata.csv that does not match the images.
    """
    folder = Path(path).expanduser()
    if not path or not folder.is_dir():
        raise UserError(f"Folder '{path}' does not exist. Check the path after 'folder:'.")
    files = list_files(folder)
    names = [name for name in files if is_image(name)]
    tables = [name for name in files if os.path.basename(name) == METADATA]
    if not names:
        kinds = ", ".join(suffix[1:] for suffix in SUFFIXES)
        raise UserError(f"'{path}' has {len(files)} files, but no images. Use {kinds} files.")
    others = len(files) - len(names) - len(tables)
    notes = (f"Files that are not images: {others}.",) if others else ()
    splits = splits_of_paths(names)
    labels, advice = labels_of_tables(folder, tables, names, label_column), ""
    if labels is None:
        labels, advice = labels_of_paths(names, has_splits={*splits} != {"train"})
    return Listing(names, splits, labels, (folder / name for name in names), advice, notes)


def list_files(folder: Path) -> list[str]:
    """Return the sorted paths of the files below a folder, relative to it. Hidden files and
    folders are left out, and links to folders are not followed."""

    def fail(error: OSError) -> NoReturn:
        raise error

    paths = []
    for root, folders, files in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [Path(root, name) for name in files if not name.startswith(".")]
    return sorted(path.relative_to(folder).as_posix() for path in paths)


def is_image(name: str) -> bool:
    """Whether a file has the suffix of an image."""
    return name.lower().endswith(SUFFIXES)


def splits_of_paths(names: Sequence[str]) -> list[str]:
    """Return the split of each path, by its first folder."""
    tops = {name.split("/")[0]: name for name in names}
    found = named_splits(tops)
    if len(found) < 2:
        return ["train"] * len(names)
    if "train" not in found:
        raise UserError("The folder has splits, but train/ has no images. Add images.")
    split = {top: split for split, top in found.items()}
    for top in sorted(tops.keys() - split):
        raise UserError(
            f"The image '{tops[top]}' is outside {'/, '.join(split)}/. Move it into a split."
        )
    return [split[name.split("/")[0]] for name in names]


def labels_of_paths(names: Sequence[str], has_splits: bool) -> tuple[list[str], str]:
    """Return the name of each image's folder as its class; or no classes, and advice."""
    folders = [name.split("/")[has_splits:-1] for name in names]
    depths = [len(parts) for parts in folders]
    labels = [parts[-1] if parts else "" for parts in folders]
    if len({*depths}) > 1:
        first, last = (names[depths.index(kind(depths))] for kind in (min, max))
        advice = (
            f"'{first}' and '{last}' are in folders of unequal depth, but each class is one "
            "folder. Move the images of each class into one folder."
        )
    elif len({*labels}) < 2:
        advice = f"Move the images of each class into one folder, or add a file {METADATA}."
    else:
        return labels, ""
    return [""] * len(names), advice


def labels_of_tables(
    folder: Path, tables: Sequence[str], names: Sequence[str], column: str | None
) -> list[str] | None:
    """Return the class of each image by files metadata.csv, or None without a column of labels.

    Raises:
        UserError: for a column that does not exist, and rows that do not name each image once.
    """
    rows = []
    for table in tables:
        for row in read_table(folder / table, (FILE_NAME, column or FILE_NAME)):
            path = os.path.join(os.path.dirname(table), row[FILE_NAME])
            rows.append((os.path.normpath(path), row.get(column or LABEL)))
    if not tables and column is not None:
        raise UserError(f"'{folder}' has no {METADATA} with a column '{column}'. Add one.")
    if not tables or any(label is None for _, label in rows):
        return None
    images, counts = Counter(names), Counter(path for path, _ in rows)
    for name in [*images, *counts]:
        if images[name] != 1 or counts[name] != 1:
            raise UserError(
                f"Expected one image and one row of {METADATA} for '{name}', got {images[name]} "
                f"and {counts[name]}. Correct the file."
            )
    labels = dict(rows)
    return [labels[name] for name in names]


def read_table(path: Path, columns: Iterable[str]) -> list[dict[str, str]]:
    """Return the rows of a CSV file as texts. It must have the columns."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.DictReader(file, restval="")
            rows, header = [*table], table.fieldnames or []
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"Cannot read {path}: {error}. Save it as CSV in UTF-8.") from None
    for column in columns:
        if column not in header:
            raise UserError(f"{path} has no column '{column}', only {', '.join(header)}.")
    return rows


def list_hub(
    name: str, image_column: str | None = None, label_column: str | None = None
) -> Listing:
    """List the images of a Hugging Face data set. Missing labels and negative ones are "".

    Args:
        name: of the hub, or a folder of ``save_to_disk`` or of Parquet files.
        image_column, label_column: default: the only column of images, and the only column of the
            type ClassLabel or, without one, the column "label".

    Raises:
        UserError: for a data set that cannot be read, one without a training split or an image
            column, several columns of which none is chosen, and splits with other columns.
    """
    from datasets import Image  # takes seconds to import

    loaded = load_hub(name)
    found = named_splits(loaded)
    if "train" not in found:
        raise UserError(
            f"The data set has no split train, only {', '.join(loaded)}. Rename a split."
        )
    tables = {split: loaded[own] for split, own in found.items()}
    image, label = choose_columns(tables["train"].features, image_column, label_column)
    names, splits, labels, files = [], [], [], []
    for split, table in tables.items():
        for column in (image, label):
            if type(table.features.get(column)) is not type(tables["train"].features.get(column)):
                raise UserError(
                    f"The column '{column}' of split {split} is not as in train. Cast it to one "
                    "type in all splits."
                )
        names += [f"image {index}" for index in range(len(table))]
        splits += [split] * len(table)
        labels += labels_of_column(table, label)
        files.append(table.select_columns(image).cast_column(image, Image(decode=False)))
    unused = sorted(loaded.keys() - found.values())
    notes = [f"Columns: image {image}, label {label}."]
    notes += [f"Splits that are not used: {', '.join(unused)}."] if unused else []
    sources = (source_of(row[image]) for table in files for row in table)
    advice = "Choose a column of labels as label_column."
    return Listing(names, splits, labels, sources, advice, tuple(notes))


def load_hub(name: str) -> Mapping[str, "Dataset"]:
    """Load the splits of a Hugging Face data set from the hub or a folder."""
    # takes seconds to import
    from datasets import DatasetDict, config, disable_progress_bars, load_dataset, load_from_disk

    config.HF_UPDATE_DOWNLOAD_COUNTS = False
    disable_progress_bars()
    folder = Path(name).expanduser().resolve()
    try:
        if any((folder / file).is_file() for file in SAVED):
            loaded = load_from_disk(str(folder))
        else:
            loaded = load_dataset(str(folder) if folder.is_dir() else name)
    except Exception as error:  # the package raises many exception types
        raise UserError(
            f"Cannot read the data set '{name}': {shorten(error.__cause__ or error)}. Check the "
            "name or path."
        ) from error
    return loaded if isinstance(loaded, DatasetDict) else {"train": loaded}


def choose_columns(
    features: Mapping[str, Any], image: str | None, label: str | None
) -> tuple[str, str | None]:
    """Return the columns of images and labels: the chosen ones, or the only ones."""
    from datasets import ClassLabel, Image, Value  # takes seconds to import

    kinds = {name: type(feature) for name, feature in features.items()}
    images, classes, values = (
        [name for name, own in kinds.items() if own is kind] for kind in (Image, ClassLabel, Value)
    )
    texts = ("int", "uint", "string", "large_string")
    values = [name for name in values if features[name].dtype.startswith(texts)]
    if not images:
        raise UserError(f"The data set has no image column, only {', '.join(kinds)}.")
    default = classes or [name for name in values if name == LABEL]
    return (
        _choose("image", image, images, images),
        _choose("label", label, default, classes + values),
    )


def _choose(kind: str, chosen: str | None, default: list[str], possible: list[str]) -> str | None:
    """Return the chosen column, or the only default one, if any."""
    if chosen is not None and chosen not in possible:
        raise UserError(
            f"The data set has no {kind} column '{chosen}', only {', '.join(possible) or 'none'}. "
            f"Change {kind}_column."
        )
    if chosen is None and len(default) > 1:
        raise UserError(
            f"The data set has {len(default)} {kind} columns: {', '.join(default)}. Choose one as "
            f"{kind}_column."
        )
    return chosen or next(iter(default), None)


def labels_of_column(table: "Dataset", column: str | None) -> list[str]:
    """Return the class of each row."""
    if column is None:
        return [""] * len(table)
    names = getattr(table.features[column], "names", None)  # of the type ClassLabel
    labels = []
    for value in table[column][:]:
        if value is None or (isinstance(value, int) and value < 0):
            labels.append("")
        else:
            labels.append(names[value] if names else str(value))
    return labels


def source_of(file: Mapping[str, Any] | None) -> Source:
    """Return the path or the content of an image file. That of a missing image is empty."""
    path, content = (None, None) if file is None else (file["path"], file["bytes"])
    return Path(path) if path and content is None else io.BytesIO(content or b"")


def named_splits(names: Iterable[str]) -> dict[str, str]:
    """Return split -> name, for the names that are a split's.

    >>> named_splits(["train", "dev", "other"])
    {'train': 'train', 'validation': 'dev'}

    Raises:
        UserError: for two names of one split.
    """
    found = {}
    for name in sorted(names):
        if split := SPLIT_NAMES.get(name.lower()):
            if split in found:
                raise UserError(
                    f"Split {split} has several names: {found[split]}, {name}. Keep one."
                )
            found[split] = name
    return {split: found[split] for split in SPLITS if split in found}


def position_of(name: str) -> float:
    """Return a hash of a name that is uniform in [0, 1).

    >>> position_of("cats/1.png")
    0.7669479501929644
    """
    digest = hashlib.sha256(os.fsencode(f"{SEED} {name}")).digest()
    return int.from_bytes(digest[:6]) / 2**48


def hold_out(names: Sequence[str], splits: Sequence[str]) -> dict[str, list[int]]:
    """Return the indices of the images of each split.

    A missing split gets the training images whose hash is in its interval: a tenth on average,
    with binomial spread. Training and held-out images are then in the order of their hashes, so
    that the first ones are a random sample.

    Args:
        names, splits: of each image.

    Raises:
        UserError: for fewer than 10 images to be split, or fewer than 2 in a split.
    """
    rows = {split: [row for row, own in enumerate(splits) if own == split] for split in SPLITS}
    missing = [split for split in SPLITS if not rows[split]]
    if not missing:
        return rows
    train, rows["train"] = rows["train"], []
    for position, row in sorted((position_of(names[row]), row) for row in train):
        held = (split for split in missing if HELD_OUT[split][0] <= position < HELD_OUT[split][1])
        rows[next(held, "train")].append(row)
    sizes = {split: len(rows[split]) for split in ("train", *missing)}
    if len(train) < MIN_IMAGES or min(sizes.values()) < MIN_SPLIT:
        counts = ", ".join(f"{size} for {split}" for split, size in sizes.items())
        raise UserError(
            f"Expected at least {MIN_IMAGES} images and {MIN_SPLIT} in each split, got "
            f"{len(train)} images: {counts}. Add images, or make the splits yourself as folders "
            "train, validation and test."
        )
    return rows
