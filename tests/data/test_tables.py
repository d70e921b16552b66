"""Columns, labels and splits of Hugging Face data sets and metadata files."""

import os

import numpy as np
import pytest
import torch
from conftest import error_of, save_picture
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from datasets import Image as ImageFeature
from PIL import Image

from ebm_app.data.images import load_images

PIXELS = np.random.RandomState(0).randint(0, 256, (60, 8, 8, 3)).astype(np.uint8)
TENSOR = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
PICTURES = [Image.fromarray(each) for each in PIXELS]
GREY = [picture.convert("L") for picture in PICTURES]
LABELS = torch.arange(60) % 3


def table(features=None, **columns):
    """Return a data set; PICTURES and GREY are columns of images."""
    features = features or {}
    for name, values in columns.items():
        kind = Value("int64") if isinstance(values[0], int) else Value("string")
        features.setdefault(name, ImageFeature() if values in (PICTURES, GREY) else kind)
    return Dataset.from_dict(columns, features=Features({k: features[k] for k in columns}))


def saved(path, data):
    data.save_to_disk(path)
    return f"hf:{path}"


def labels_of(data):
    """Return the name of the class of each image, in the order of the data set."""
    names = {}
    for images, labels in zip((data.train, data.validation, data.test), data.labels, strict=True):
        for image, label in zip(images, labels.tolist(), strict=True):
            names[image.numpy().tobytes()] = data.class_names[label] if label >= 0 else None
    return [names[image.numpy().tobytes()] for image in TENSOR]


def test_hub_folder_gives_its_splits(tmp_path):
    kinds = {"kind": ClassLabel(names=["a", "b", "c"])}
    made = table(kinds, picture=PICTURES, kind=LABELS.tolist())
    splits = {"train": made.select(range(50)), "test": made.select(range(50, 60))}
    one = load_images(saved(tmp_path / "one", made))
    two = load_images(saved(tmp_path / "two", DatasetDict(splits)))
    assert torch.equal(two.test, TENSOR[50:]) and torch.equal(two.labels[2], LABELS[50:])
    assert set(two.names[1]) <= set(one.names[1])
    assert one.num_classes == 3 and min(map(len, (one.validation, one.test, two.validation))) > 1
    assert labels_of(one) == labels_of(two) == [*"abc"] * 20
    assert one.summary()["columns"] == {"image": "picture", "label": "kind"}
    assert "image picture, label kind" in one.describe()
    assert two.summary()["held_out"] == ["validation"]
    assert "Cannot read" in error_of(load_images, f"hf:{tmp_path / 'none'}")
    bare = saved(tmp_path / "bare", made.remove_columns("picture"))
    assert "no image column" in error_of(load_images, bare)


def test_splits_are_found_by_name(tmp_path):
    made = table(picture=PICTURES)
    parts = {"train": range(40), "dev": range(40, 50), "test": range(50, 57), "x": range(57, 60)}
    parts = DatasetDict({name: made.select(rows) for name, rows in parts.items()})
    data = load_images(saved(tmp_path / "one", parts))
    assert torch.equal(data.validation, TENSOR[40:50]) and len(data.test) == 7
    text = data.describe()
    assert "Sources of the splits: train train, validation dev, test test." in text
    assert "Splits that are not used: x." in text
    parts["val"] = parts["dev"]
    assert "several names: dev, val." in error_of(load_images, saved(tmp_path / "two", parts))
    del parts["train"]
    del parts["val"]
    assert "no split train, only dev" in error_of(load_images, saved(tmp_path / "3", parts))


def test_image_column_is_chosen_if_there_are_two(tmp_path):
    name = saved(tmp_path / "two", table(conditioning_image=GREY, image=PICTURES))
    message = error_of(load_images, name)
    assert "2 image columns: conditioning_image, image. Choose one with --image_column" in message
    data = load_images(name, image_column="image")
    assert data.image_shape == (3, 8, 8) and data.summary()["columns"]["image"] == "image"
    assert load_images(name, image_column="conditioning_image").image_shape == (1, 8, 8)
    assert "no image column 'x'" in error_of(load_images, name, image_column="x")
    assert "fixed columns" in error_of(load_images, "digits", label_column="x")


def test_label_column_is_chosen_if_there_are_two(tmp_path):
    kinds = {name: ClassLabel(names=["a", "b", "c"]) for name in ("fine", "coarse")}
    columns = {"fine": LABELS.tolist(), "coarse": [0] * 60, "caption": ["one"] * 30 + ["two"] * 30}
    name = saved(tmp_path / "two", table(kinds, image=PICTURES, **columns))
    assert "2 label columns: fine, coarse. Choose" in error_of(load_images, name)
    assert labels_of(load_images(name, label_column="fine")) == [*"abc"] * 20
    assert labels_of(load_images(name, label_column="caption")) == columns["caption"]
    kinds = {"label": Value("float32")}
    made = table(kinds, image=PICTURES, label=[0.5] * 60, caption=columns["caption"])
    assert load_images(saved(tmp_path / "none", made)).labels is None


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([10, 2, 0], ("0", "2", "10")),
        (["10", "2", "0"], ("0", "2", "10")),
        (["bee", "ant", None], ("ant", "bee")),
        ([5, -1, 7], ("5", "7")),
        ([5, -2, 7], ("5", "7")),
    ],
)
def test_label_values_become_classes(tmp_path, values, names):
    data = load_images(saved(tmp_path / "one", table(image=PICTURES, label=values * 20)))
    assert data.class_names == names
    assert labels_of(data) == [None if v in (None, -1, -2) else str(v) for v in values] * 20


def test_classes_of_splits_are_matched_by_name(tmp_path):
    names, parts = {"train": ["a", "b", "c"], "test": ["c", "a", "b"]}, DatasetDict()
    for split, rows in ("train", range(50)), ("test", range(50, 60)):
        own = [names[split].index("abc"[row % 3]) for row in rows]
        kinds = {"image": ImageFeature(), "kind": ClassLabel(names=names[split])}
        columns = {"image": [PICTURES[row] for row in rows], "kind": own}
        parts[split] = Dataset.from_dict(columns, features=Features(kinds))
    data = load_images(saved(tmp_path / "one", parts))
    assert data.class_names == ("a", "b", "c") and labels_of(data) == [*"abc"] * 20
    number = parts["test"].cast_column("kind", Value("int64"))
    mixed = DatasetDict(train=parts["train"], test=number)
    assert "some splits only" in error_of(load_images, saved(tmp_path / "mixed", mixed))
    mixed["test"] = number.remove_columns("kind")
    message = error_of(load_images, saved(tmp_path / "without", mixed))
    assert "split test: The data set has no label column 'kind'" in message
    parts["test"] = parts["test"].remove_columns("image")
    assert "no image column" in error_of(load_images, saved(tmp_path / "two", parts))


def test_bad_image_of_a_table_is_named(tmp_path):
    column = [{"bytes": (b"x" if row == 7 else None), "path": None} for row in range(60)]
    for row, picture in enumerate(PICTURES):
        if row != 7:
            save_picture(tmp_path / f"{row}.png", np.array(picture))
            column[row]["path"] = str(tmp_path / f"{row}.png")
    column[9] = None
    made = Dataset.from_dict({"image": column}, features=Features({"image": ImageFeature()}))
    name = saved(tmp_path / "one", made)
    assert "'image 7'" in error_of(load_images, name)
    assert "'image 1' is missing" in error_of(load_images, saved(tmp_path / "two", made.skip(8)))


def fill(folder, classes=("ant", "bee"), pictures=PICTURES):
    for index, picture in enumerate(pictures):
        place = folder / classes[index % len(classes)]
        place.mkdir(parents=True, exist_ok=True)
        picture.save(place / f"{index}.png")
    return folder


def test_class_folders_of_integers_are_sorted_as_numbers(tmp_path):
    data = load_images(f"folder:{fill(tmp_path, [str(label) for label in range(12)])}")
    assert data.class_names == tuple(map(str, range(12)))
    assert labels_of(data) == [str(index % 12) for index in range(60)]


def test_names_may_have_any_characters_that_datasets_reads(tmp_path):
    folder = fill(tmp_path / "my [12] {*} test ?", ["ümlaut [a]", "train 1"])
    data = load_images(f"folder:{folder}")
    assert data.class_names == ("train 1", "ümlaut [a]") and sum(map(len, data.names)) == 60
    file = folder / "train 1" / "1.png"
    for name in ("a::b.png", os.fsdecode(b"\xff.png")):
        file = file.rename(file.with_name(name))
        assert f"{name!a}"[1:-1] in error_of(load_images, f"folder:{folder}")


def test_images_that_datasets_ignores_are_refused(tmp_path):
    fill(tmp_path, ["ant", "bee", "cat", "dog", "__background__"])
    assert "__background__/14.png'" in error_of(load_images, f"folder:{tmp_path}")


def test_metadata_file_has_the_labels_of_a_folder(tmp_path):
    for index, picture in enumerate(PICTURES):
        picture.save(tmp_path / f"{index}.png")
    rows = [f"{index}.png,{'ab'[index % 2]}" for index in range(60)]
    (tmp_path / "metadata.csv").write_text("\n".join(["file_name,kind", *rows]))
    assert load_images(f"folder:{tmp_path}").labels is None
    assert labels_of(load_images(f"folder:{tmp_path}", label_column="kind")) == [*"ab"] * 30
    (tmp_path / "metadata.csv").write_text("\n".join(["file_name,label", *rows]))
    data = load_images(f"folder:{tmp_path}")
    assert data.class_names == ("a", "b") and "0.png" in sum(data.names, [])
    (tmp_path / "metadata.csv").write_text("\n".join(["file_name,label", *rows[1:]]))
    assert "'0.png' is not read" in error_of(load_images, f"folder:{tmp_path}")
