"""Folders of image files: splits, classes, metadata.csv, files that do not fit each other."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import config_of, error_of, save_picture

from ebm_app.config import EBMConfig
from ebm_app.data import datasets
from ebm_app.data.datasets import load_images
from ebm_app.data.files import HELD_OUT, SPLITS, hold_out
from ebm_app.evaluation.held_out import labels_for


def fill(folder, number=60, start=0, size=(5, 6), suffix=".png", channels=1):
    """Save images; all pixels of image i, from ``start``, are i + 130. Return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for value in range(start, start + number):
        shape = size if channels == 1 else (*size, channels)
        save_picture(folder / f"{value}{suffix}", np.full(shape, 130 + value))
    return folder


def load(folder, **options):
    return load_images(f"folder:{folder}", **options)


def values_of(data):
    """Return the number of each image of the splits, see ``fill``."""
    return [(data.split(split)[:, 0, 0, 0].int() - 130).tolist() for split in SPLITS]


def classes_of(data):
    """Return number -> name of the class, for all images."""
    values = sum(values_of(data), [])
    names = [*data.class_names, None]  # -1 is the last one
    return {v: names[k] for v, k in zip(values, torch.cat([*data.labels]).tolist(), strict=True)}


def test_images_of_all_subfolders_are_split_by_name(tmp_path, monkeypatch):
    """By their paths in the folder, wherever it is; added files move no other file."""
    photos = tmp_path / "photos"
    fill(photos / "a" / "deep", 30)
    fill(photos / "b", 15, 30, suffix=".BMP")
    fill(photos, 15, 45, suffix=".tif")
    data = load(photos)
    assert data.num_levels == 256 and data.image_shape == (1, 5, 6) and data.labels is None
    assert sorted(sum(values_of(data), [])) == [*range(60)]
    assert min(map(len, values_of(data))) >= 2
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert values_of(load("../photos")) == values_of(data)
    fill(photos / "c", 30, 60)
    for before, after in zip(values_of(data), values_of(load(photos)), strict=True):
        assert {*before} <= {*after}


def test_held_out_images_are_a_random_sample():
    """Also the first images of a split, although the files are sorted by their names."""
    rows = hold_out([f"{i:04d}.png" for i in range(4000)], ["train"] * 4000)
    for split in HELD_OUT:
        own = torch.tensor(rows[split])
        assert abs(len(own) - 400) < 4 * (4000 * 0.1 * 0.9) ** 0.5
        # the mean of 100 of 0..3999 has the standard error 4000 / sqrt(12 * 100)
        assert abs(own[:100].double().mean() - 1999.5) < 4 * 4000 / 1200**0.5
    assert sorted(sum(rows.values(), [])) == list(range(4000))


def test_split_folders_are_the_splits(tmp_path):
    for name, number, start in zip(("Train", "valid", "test"), (5, 2, 3), (0, 5, 7), strict=True):
        fill(tmp_path / name, number, start)
    data = load(tmp_path)
    assert values_of(data) == [[*range(5)], [5, 6], [7, 8, 9]] and data.labels is None
    fill(tmp_path / "else", 1)
    assert "'else/0.png' is outside" in error_of(load, tmp_path)


def test_class_folders_within_splits_give_labels(tmp_path):
    for index, split in enumerate(SPLITS):
        fill(tmp_path / split / "ant", 2, 4 * index)
        fill(tmp_path / split / "bee", 2, 4 * index + 2)
    expected = {value: ("ant", "bee")[value // 2 % 2] for value in range(12)}
    assert classes_of(load(tmp_path)) == expected


def test_missing_split_is_held_out_of_the_training_images(tmp_path):
    fill(tmp_path / "train")
    fill(tmp_path / "val", 3, 60)
    train, validation, test = values_of(load(tmp_path))
    assert validation == [60, 61, 62] and len(train + test) == 60 and len(test) >= 2
    fill(tmp_path / "dev", 3, 63)
    assert "several names" in error_of(load, tmp_path)


def test_unusable_folders_are_refused_and_other_files_counted(tmp_path):
    fill(tmp_path / "ant", 30)
    fill(tmp_path / "bee", 30, 30)
    for name in (".ipynb_checkpoints", "ant/.cache"):
        fill(tmp_path / name, 2, size=(3, 3))
    (tmp_path / "bee" / "._0.png").write_bytes(b"finder")
    (tmp_path / "bee" / "film.gif").write_bytes(b"other file")
    data = load(tmp_path)
    assert data.summary()["classes"] == {"ant": 30, "bee": 30}
    assert "not images: 1." in data.describe()
    for folder, words in (("absent", "exist"), ("empty", "no images"), ("few", "got 9 images")):
        if folder != "absent":
            fill(tmp_path / folder, 9 * (folder == "few"))
        assert words in error_of(load, tmp_path / folder)


def write_labels(folder, labels, header="file_name,label", start=0):
    rows = [f"{start + index}.png,{label}" for index, label in enumerate(labels)]
    (folder / "metadata.csv").write_text("\n".join([header, *rows]), encoding="utf-8-sig")


def test_class_folders_of_unequal_depth_are_named(tmp_path):
    fill(tmp_path / "ant", 30)
    fill(tmp_path / "bee" / "deep", 30, 30)
    data = load(tmp_path)
    assert data.labels is None and sum(map(len, values_of(data))) == 60
    message = error_of(data.split_labels, "train")
    assert "'ant/0.png' and 'bee/deep/30.png' are in folders of unequal depth" in message
    one = load(fill(tmp_path / "ant"))
    assert "each class into one folder" in error_of(one.split_labels, "train")


def test_metadata_file_has_the_labels_of_a_folder(tmp_path):
    fill(tmp_path)
    names = ["NA", "None", "null", "nan", "1.0", ""]
    write_labels(tmp_path, names * 10, "file_name,kind")
    assert load(tmp_path).labels is None
    data = load(tmp_path, label_column="kind")
    assert data.class_names == ("1.0", "NA", "None", "nan", "null")
    assert classes_of(data) == {value: names[value % 6] or None for value in range(60)}
    write_labels(tmp_path, "ab" * 30)
    assert load(tmp_path).class_names == ("a", "b")
    assert "'kind'" in error_of(load, tmp_path, label_column="kind")


@pytest.mark.parametrize("labels", ["ab" * 29, "ab" * 31, ["a", "b\n1.png,c", *"a" * 58]])
def test_metadata_has_one_row_per_image(tmp_path, labels):
    write_labels(fill(tmp_path), labels)
    assert "one row" in error_of(load, tmp_path)


def test_classes_are_matched_by_name(tmp_path):
    fill(tmp_path / "ant", 30)
    fill(tmp_path / "bee", 30, 30)
    data = load(tmp_path)
    labels = data.split_labels("train")
    model = EBMConfig(
        "folder:other", (1, 5, 6), 256, num_classes=3, class_names=("bee", "ant", "x")
    )
    assert torch.equal(labels_for(model, data, "train"), 1 - labels)
    numbers = replace(model, num_classes=8, class_names=())
    digits = replace(data, class_names=("3", "7"))
    assert torch.equal(labels_for(numbers, digits, "train"), 3 + 4 * labels)
    unnamed = replace(data, class_names=())
    assert torch.equal(labels_for(numbers, unnamed, "train"), labels)
    assert "no class 'ant'" in error_of(labels_for, numbers, data, "train")
    assert "no class '0'" in error_of(labels_for, model, unnamed, "train")
    unknown = replace(data, labels=(torch.full_like(labels, -1), *data.labels[1:]))
    assert (labels_for(model, unknown, "train") == -1).all()
    other = replace(model, num_classes=2, class_names=("bee", "cow"))
    assert "no class 'ant', only bee, cow" in error_of(labels_for, other, data, "train")
    assert config_of(data, classes="all").classes() == ("ant", "bee")
    assert not config_of(data).classes()


def test_large_data_are_in_a_temporary_file(tmp_path, monkeypatch):
    fill(tmp_path)
    save_picture(tmp_path / "zz.png", np.zeros((5, 6, 3)))
    expected = load(tmp_path)
    monkeypatch.setattr(datasets, "MAX_IN_MEMORY", 61 * 5 * 6)
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "disk"))
    data = load(tmp_path)
    for split in SPLITS:
        assert torch.equal(data.split(split), expected.split(split))
    assert str(tmp_path / "disk") in Path("/proc/self/maps").read_text()
    assert not [*(tmp_path / "disk").iterdir()]
