"""Mutual information tab."""

import json
import shutil

import numpy as np
import pytest
from conftest import error_of

from ebm_app import mutual_information
from ebm_app.web import information


def draw(folder, task="normal_1x1", num=600, seed=0):
    for x, y, _, truth in information.mi_example(task, num, seed):
        return shutil.copy(x, folder), shutil.copy(y, folder), truth


def files(x=None, y=None, csv=None, x_columns=(), y_columns=()):
    return x, y, csv, list(x_columns), list(y_columns)


def estimate(source, steps=1, seed=0):
    return information.mi(*source, steps, seed)


def test_estimate_equals_that_of_the_library(tmp_path):
    x, y, truth = draw(tmp_path)
    assert truth == "normal_1x1: 0.4133 nats"
    *steps, (plot, text, metrics) = estimate(files(x, y), steps=3, seed=4)
    heads = [text.split(" · ")[0] for _, text, _ in steps]
    num_folds = len(steps) - 1
    assert heads == ["Starting", *(f"Fold {n + 1} of {num_folds}" for n in range(num_folds))]
    data = "normal_1x1_x.npy and normal_1x1_y.npy"
    assert text.endswith(f"{data} · up to 3 steps · seed 4")
    expected = mutual_information(np.load(x), np.load(y), steps=3, random_state=4)
    assert metrics == {**expected.figures(), "data": data, "steps": 3, "seed": 4}
    assert json.loads(json.dumps(metrics, allow_nan=False)) == metrics
    assert text.startswith(f"{expected.summary()}\n600 rows, 1 + 1 columns · ")
    assert len(plot.axes[0].patches) > 10  # histograms


@pytest.mark.process
def test_csv_columns_give_the_same_estimate_as_arrays(tmp_path):
    numbers = np.random.default_rng(0)
    kind = numbers.integers(0, 3, 200)
    values = np.stack([kind + numbers.normal(size=200), numbers.normal(size=200), kind], 1)
    table = str(tmp_path / "table.csv")
    header = "height, age,kind"
    np.savetxt(table, values, delimiter=",", header=header, comments="", fmt="%.18g")
    assert information.column_names(table) == ["height", "age", "kind"]
    source = files(csv=table, x_columns=["height", "age"], y_columns=["kind"])
    *_, (_, text, metrics) = estimate(source)
    assert text.endswith("table.csv, X = height, age and Y = kind · up to 1 steps · seed 0")
    arrays = [save(tmp_path, f"{n}.npy", part) for n, part in enumerate((values[:, :2], kind))]
    *_, (_, _, same) = estimate(files(*arrays))
    assert same["value"] == metrics["value"]


def save(folder, name, values):
    np.save(folder / name, values)
    return str(folder / name)


def test_bad_data_give_errors_without_folders(tmp_path):
    numbers = np.random.default_rng(0)
    good = save(tmp_path, "good.npy", numbers.normal(size=200))
    wide = save(tmp_path, "wide.npy", numbers.normal(size=(200, 64)))
    long = [save(tmp_path, f"long{n}.npy", numbers.normal(size=20_001)) for n in (0, 1)]
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    (tmp_path / "bad.npy").write_bytes(b"no array")
    table = str(tmp_path / "table.csv")
    for source, word in (
        (files(x=good), "missing"),
        (files(good, good, table), "CSV"),
        (files(good, good), "infinite"),
        (files(good, str(tmp_path / "bad.npy")), "'bad.npy'"),
        (files(good, wide), "65"),
        (files(*long), "20001"),
        (files(csv=table, x_columns=["a"], y_columns=["z"]), "got z"),
    ):
        text = error_of(lambda s: list(estimate(s)), source)
        assert word in text and str(tmp_path) not in text
    for content, expected in ((b"", []), (b"\n a,b\n1,2\n", ["a", "b"]), (b"\xff\xfe", [])):
        (tmp_path / "table.csv").write_bytes(content)
        assert information.column_names(table) == expected
