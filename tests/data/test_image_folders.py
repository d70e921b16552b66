"""Folders of image files: splits, classes, metadata.csv, files that do not fit each other."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import GREY, error_of, save_picture

from ebm_app.config import EBMConfig
from ebm_app.data import datasets
from ebm_app.data.datasets import load_images
from ebm_app.data.files import HELD_OUT, SPLITS, hold_out
from ebm_app.evaluation.held_out import images_for, labels_for
from ebm_app.training.build import make_config
from ebm_app.training.recipes import recipe
from ebm_app.training.settings import with_settings


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


def test_images_of_all_subfolders_are_split_by_name(tmp_path):
    fill(tmp_path / "a" / "deep", 30)
    fill(tmp_path / "b", 15, 30, suffix=".BMP")
    fill(tmp_path, 15, 45, suffix=".tif")
    data = load(tmp_path)
    assert data.num_levels == 256 and data.image_shape == (1, 5, 6) and data.labels is None
    assert sorted(sum(values_of(data), [])) == [*range(60)]
    assert min(map(len, values_of(data))) >= 2
    assert "Held out by name: validation, test." in data.describe()


def test_relative_and_absolute_paths_give_the_same_data(tmp_path, monkeypatch):
    fill(tmp_path / "photos" / "ant", 30)
    fill(tmp_path / "photos" / "bee", 30, 30)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    expected = load(tmp_path / "photos")
    for path in ("../photos", "../work/../photos/", "../../" + str(tmp_path.name) + "/photos"):
        data = load(path)
        assert values_of(data) == values_of(expected)
        assert classes_of(data) == classes_of(expected)


def test_split_of_a_name_is_fixed(tmp_path):
    _, validation, test = values_of(load(fill(tmp_path, 80)))
    assert {*test} == {0, 17, 23, 57}
    assert {*validation} == {25, 33, 44, 59, 61, 64, 65, 67, 76}


def test_split_is_stable_when_files_are_added(tmp_path):
    first = values_of(load(fill(tmp_path)))
    second = values_of(load(fill(tmp_path, 90)))
    assert all({*one} <= {*two} for one, two in zip(first, second, strict=True))


def test_held_out_images_are_a_random_sample():
    """Also the first images of a split, although the files are sorted by their names."""
    rows = hold_out([f"{i:04d}.png" for i in range(4000)], ["train"] * 4000)
    for split in HELD_OUT:
        own = torch.tensor(rows[split])
        assert abs(len(own) - 400) < 4 * (4000 * 0.1 * 0.9) ** 0.5
        # the mean of 100 of 0..3999 has the standard error 4000 / sqrt(12 * 100)
        assert abs(own[:100].double().mean() - 1999.5) < 4 * 4000 / 1200**0.5
    assert sorted(sum(rows.values(), [])) == list(range(4000))


@pytest.mark.parametrize("names", [("train", "valid", "test"), ("Train", "DEV", "Test")])
def test_split_folders_are_the_splits(tmp_path, names):
    for name, number, start in zip(names, (5, 2, 3), (0, 5, 7), strict=True):
        fill(tmp_path / name, number, start)
    data = load(tmp_path)
    assert values_of(data) == [[*range(5)], [5, 6], [7, 8, 9]] and data.labels is None
    fill(tmp_path / "else", 1)
    assert "'else/0.png' is outside" in error_of(load, tmp_path)


def test_missing_split_is_held_out_of_the_training_images(tmp_path):
    fill(tmp_path / "train")
    assert len(load(tmp_path).train) < 55
    fill(tmp_path / "val", 3, 60)
    train, validation, test = values_of(load(tmp_path))
    assert validation == [60, 61, 62] and len(train + test) == 60 and len(test) >= 2
    fill(tmp_path / "dev", 3, 63)
    assert "Split validation has several names: dev, val" in error_of(load, tmp_path)


def test_small_and_missing_folders_are_refused(tmp_path):
    assert "does not exist" in error_of(load, tmp_path / "absent")
    (tmp_path / "notes.txt").write_text("text")
    assert "has 1 files, but no images" in error_of(load, tmp_path)
    assert "got 9 images: 7 for train, 0 for validation" in error_of(load, fill(tmp_path, 9, 100))
    fill(tmp_path / "two" / "val", 3)
    assert "train/ has no images" in error_of(load, fill(tmp_path / "two" / "test", 3).parent)


def test_hidden_files_are_ignored_and_others_counted(tmp_path):
    fill(tmp_path / "ant", 30)
    fill(tmp_path / "bee", 30, 30)
    for name in (".ipynb_checkpoints", "ant/.cache"):
        fill(tmp_path / name, 2, size=(3, 3))
    (tmp_path / "bee" / "._0.png").write_bytes(b"finder")
    (tmp_path / "bee" / "film.gif").write_bytes(b"other file")
    data = load(tmp_path)
    assert data.summary()["classes"] == {"ant": 30, "bee": 30} and data.num_classes == 2
    text = data.describe()
    for part in ("1x5x6", "ant 30", f"{len(data.train)} train", "not images: 1."):
        assert part in text


@pytest.mark.parametrize("splits", [("train", "validation", "test"), ("",)])
def test_class_folders_give_labels(tmp_path, splits):
    for index, split in enumerate(splits):
        fill(tmp_path / split / "ant", 30, 60 * index % 120)
        fill(tmp_path / split / "bee", 30, 60 * index % 120 + 30)
    found = classes_of(load(tmp_path))
    assert all(name == ("ant", "bee")[value // 30 % 2] for value, name in found.items())


def test_names_may_have_any_characters(tmp_path):
    folder = tmp_path / "my [12] {*} test ?"
    classes = ["-", "__b::c__", "train 1", "ümlaut [a]"]
    for name in classes:
        fill(folder / name, 15)
    file = folder / "-" / "1.png"
    file.rename(file.with_name(os.fsdecode(b"\xff.png")))
    data = load(folder)
    assert data.summary()["classes"] == dict.fromkeys(
        ["-", "__b::c__", "train 1", "ümlaut [a]"], 15
    )


def test_class_folders_of_integers_are_sorted_as_numbers(tmp_path):
    for label in range(12):
        fill(tmp_path / str(label), 5, 5 * label)
    data = load(tmp_path)
    assert data.class_names == tuple(map(str, range(12)))
    assert classes_of(data) == {value: str(value // 5) for value in range(60)}


def test_class_folders_of_unequal_depth_are_named(tmp_path):
    fill(tmp_path / "ant", 30)
    fill(tmp_path / "bee" / "deep", 30, 30)
    data = load(tmp_path)
    assert data.labels is None and sum(map(len, values_of(data))) == 60
    message = error_of(data.split_labels, "train")
    assert "'ant/0.png' and 'bee/deep/30.png' are in folders of unequal depth" in message
    assert "each class is one folder" in message and "column" not in message
    one = load(fill(tmp_path / "ant"))
    assert "Move the images of each class into one folder" in error_of(one.split_labels, "train")


def write_labels(folder, labels, header="file_name,label", start=0):
    rows = [f"{start + index}.png,{label}" for index, label in enumerate(labels)]
    (folder / "metadata.csv").write_text("\n".join([header, *rows]), encoding="utf-8-sig")


def test_metadata_file_has_the_labels_of_a_folder(tmp_path):
    fill(tmp_path)
    write_labels(tmp_path, "ab" * 30, "file_name,kind")
    assert load(tmp_path).labels is None
    assert classes_of(load(tmp_path, label_column="kind")) == {v: "ab"[v % 2] for v in range(60)}
    write_labels(tmp_path, "ab" * 30)
    assert load(tmp_path).class_names == ("a", "b")
    assert "no column 'kind', only" in error_of(load, tmp_path, label_column="kind")
    write_labels(tmp_path, "ab" * 30, "name,label")
    assert "no column 'file_name', only name, label" in error_of(load, tmp_path)
    assert "no metadata.csv" in error_of(load, fill(tmp_path / "x"), label_column="kind")


def test_labels_of_metadata_are_texts(tmp_path):
    fill(tmp_path)
    names = ["NA", "None", "null", "nan", "1.0", ""]
    write_labels(tmp_path, names * 10)
    data = load(tmp_path)
    assert data.class_names == ("1.0", "NA", "None", "nan", "null")
    assert classes_of(data) == {value: names[value % 6] or None for value in range(60)}


def test_split_folders_may_have_metadata_files(tmp_path):
    for split, start in (("train", 0), ("val", 10), ("test", 20)):
        write_labels(fill(tmp_path / split, 10, start), "ab" * 5, start=start)
    assert classes_of(load(tmp_path)) == {value: "ab"[value % 2] for value in range(30)}


@pytest.mark.parametrize(
    ("labels", "name"),
    [("ab" * 29, "58.png"), ("ab" * 31, "60.png"), ("a\n1.png,b" * 60, "1.png")],
)
def test_metadata_has_one_row_per_image(tmp_path, labels, name):
    fill(tmp_path)
    write_labels(tmp_path, labels if "\n" not in labels else ["a", "b\n1.png,c", *"a" * 58])
    assert f"one row of metadata.csv for '{name}', got" in error_of(load, tmp_path)


def test_unreadable_metadata_is_refused(tmp_path):
    (fill(tmp_path) / "metadata.csv").write_bytes(b"file_name,label\n0.png,\xff\n")
    assert "metadata.csv" in error_of(load, tmp_path)


def test_classes_are_matched_by_name(tmp_path):
    fill(tmp_path / "ant", 30)
    fill(tmp_path / "bee", 30, 30)
    data = load(tmp_path)
    labels = data.split_labels("train")
    model = EBMConfig(
        "folder:other", (1, 5, 6), 256, num_classes=3, class_names=("bee", "ant", "x")
    )
    assert torch.equal(labels_for(model, data, "train"), 1 - labels)
    assert torch.equal(labels_for(replace(model, class_names=()), data, "train"), labels)
    unknown = replace(data, labels=(torch.full_like(labels, -1), *data.labels[1:]))
    assert (labels_for(model, unknown, "train") == -1).all()
    other = replace(model, num_classes=2, class_names=("bee", "cow"))
    assert "no class 'ant', only bee, cow" in error_of(labels_for, other, data, "train")
    base = recipe(data.name, data.image_shape, data.num_levels)
    labelled = make_config(with_settings(base, {"classes": "all"}), data)
    assert labelled.classes() == ("ant", "bee") and not make_config(base, data).classes()


def test_one_colour_file_makes_all_images_rgb(tmp_path):
    save_picture(fill(tmp_path) / "zz.jpg", np.full((5, 6, 3), (60, 100, 200)), quality=100)
    images = torch.cat([load(tmp_path).split(split) for split in SPLITS])
    is_grey = (images == images[:, :1]).flatten(1).all(1)
    assert images.shape == (61, 3, 5, 6) and is_grey.sum() == 60
    assert (images[~is_grey][0, 2].int() - 200).abs().max() <= 4


def test_mixed_sizes_need_a_resolution(tmp_path):
    fill(tmp_path, size=(8, 12))
    save_picture(tmp_path / "wide.png", np.zeros((64, 128)))
    message = error_of(load, tmp_path)
    assert "'0.png' is 12x8 and 'wide.png' is 128x64" in message and "resolution" in message
    assert load(tmp_path, resolution=8).image_shape == (1, 8, 8)


def test_bad_file_of_a_folder_is_named(tmp_path):
    (fill(tmp_path) / "bad one.png").write_bytes(b"x")
    assert error_of(load, tmp_path).startswith("bad one.png: This file cannot be read")
    (tmp_path / "bad one.png").unlink()
    os.mkfifo(tmp_path / "bad one.png")
    assert "bad one.png" in error_of(load, tmp_path)
    assert "no columns of images" in error_of(load, tmp_path, image_column="x")


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


def test_unused_levels_of_a_folder_raise_a_warning(tmp_path):
    for index in range(60):
        save_picture(tmp_path / f"{index}.png", np.full((5, 6), index % 17))
    with pytest.warns(UserWarning, match="num_levels=17"):
        load(tmp_path)


def test_folders_are_converted_for_a_model_on_request(tmp_path):
    for index, pixels in enumerate(np.random.RandomState(0).randint(0, 256, (60, 9, 12, 3))):
        save_picture(tmp_path / f"{index}.png", pixels)
    name = f"folder:{tmp_path}"
    message = error_of(images_for, GREY, name)
    assert "12x9 RGB" in message and "Enable resize" in message
    data = images_for(GREY, name, resize=True)
    assert data.train.shape[1:] == (1, 8, 8) and data.num_levels == 17 and data.train.max() < 17
    own = images_for(EBMConfig(name, (3, 8, 8), 256), name)  # as with resolution 8
    assert own.image_shape == (3, 8, 8)
    assert torch.equal(own.train, load_images(name, resolution=8).train)
