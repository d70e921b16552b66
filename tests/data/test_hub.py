"""Hugging Face data sets: columns, labels and splits."""

import numpy as np
import torch
from conftest import deep_png, encoded, error_of
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from datasets import Image as ImageFeature
from PIL import Image

from ebm_app.data.datasets import load_images

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
    parts = {"train": range(50), "dev": range(50, 55), "test": range(55, 60), "x": range(3)}
    parts = DatasetDict({name: made.select(rows) for name, rows in parts.items()})
    one = load_images(saved(tmp_path / "one", made))
    two = load_images(saved(tmp_path / "two", parts))
    assert torch.equal(two.validation, TENSOR[50:55]) and torch.equal(two.test, TENSOR[55:])
    assert torch.equal(two.labels[2], LABELS[55:])
    assert one.num_classes == 3 and len(one.validation) > 1 and len(one.test) > 1
    assert labels_of(one) == labels_of(two) == [*"abc"] * 20
    del parts["train"]
    assert "no split train" in error_of(load_images, saved(tmp_path / "three", parts))
    assert "Cannot read" in error_of(load_images, f"hf:{tmp_path / 'none'}")
    bare = saved(tmp_path / "bare", made.remove_columns("picture"))
    assert "no image column" in error_of(load_images, bare)


def test_label_column_is_chosen_if_there_are_two(tmp_path):
    kinds = {name: ClassLabel(names=["a", "b", "c"]) for name in ("fine", "coarse")}
    columns = {"fine": LABELS.tolist(), "coarse": [0] * 60, "caption": ["one"] * 30 + ["two"] * 30}
    name = saved(tmp_path / "two", table(kinds, image=PICTURES, **columns))
    assert "2 label columns" in error_of(load_images, name)
    assert labels_of(load_images(name, label_column="fine")) == [*"abc"] * 20
    assert labels_of(load_images(name, label_column="caption")) == columns["caption"]
    kinds = {"label": Value("float32")}
    made = table(kinds, image=PICTURES, label=[0.5] * 60, caption=columns["caption"])
    assert load_images(saved(tmp_path / "none", made)).labels is None


def test_label_values_become_classes(tmp_path):
    for values, names, labels in (
        ([10, 2, 0], ("0", "2", "10"), ["10", "2", "0"]),
        (["bee", "ant", None], ("ant", "bee"), ["bee", "ant", None]),
        ([5, -1, 7], ("5", "7"), ["5", None, "7"]),
    ):
        data = load_images(saved(tmp_path / names[0], table(image=PICTURES, label=values * 20)))
        assert data.class_names == names and labels_of(data) == labels * 20


def test_classes_of_splits_are_matched_by_name(tmp_path):
    names, parts = {"train": ["a", "b", "c"], "test": ["c", "a", "b"]}, DatasetDict()
    for split, rows in ("train", range(50)), ("test", range(50, 60)):
        own = [names[split].index("abc"[row % 3]) for row in rows]
        kinds = {"image": ImageFeature(), "kind": ClassLabel(names=names[split])}
        columns = {"image": [PICTURES[row] for row in rows], "kind": own}
        parts[split] = Dataset.from_dict(columns, features=Features(kinds))
    data = load_images(saved(tmp_path / "one", parts))
    assert data.class_names == ("a", "b", "c") and labels_of(data) == [*"abc"] * 20
    parts["test"] = parts["test"].cast_column("kind", Value("int64"))
    assert "'kind' of split test" in error_of(load_images, saved(tmp_path / "mixed", parts))


def test_bad_image_of_a_table_is_named(tmp_path):
    column = [{"bytes": encoded(picture), "path": None} for picture in PICTURES]
    column[7] = {"bytes": deep_png(2, 3), "path": None}
    made = Dataset.from_dict({"image": column}, features=Features({"image": ImageFeature()}))
    message = error_of(load_images, saved(tmp_path / "set", made))
    assert message.startswith("image 7: ") and "8 bits" in message
