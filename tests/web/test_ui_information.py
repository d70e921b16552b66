"""The tab of mutual information: data of a visitor's own."""

import json
import shutil

import numpy as np
import pytest
from conftest import error_of

from ebm_app.tabular import classifier
from ebm_app.tabular.mutual_information import mutual_information
from ebm_app.web import information as own_data


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A validation after every second step."""
    monkeypatch.setattr(classifier, "CHECK_EVERY", 2)


def draw(folder, task="normal_1x1", num=600, seed=0):
    for x, y, _, truth in own_data.mi_example(task, num, seed):
        return shutil.copy(x, folder), shutil.copy(y, folder), truth


def files(x=None, y=None, csv=None, x_columns=(), y_columns=()):
    return x, y, csv, list(x_columns), list(y_columns)


def estimate(source, steps=1, seed=0):
    return own_data.mi(*source, steps, seed)


def test_an_estimate_shows_every_validation_and_ends_with_the_librarys(tmp_path):
    x, y, truth = draw(tmp_path)
    assert truth == "normal_1x1: 0.4133 nats"
    *shown, (plot, text, found) = estimate(files(x, y), steps=3, seed=4)
    heads = [text.split(" · ")[0] for _, text, _ in shown]
    assert heads == ["Starting", "Step 0 of 3", "Step 2 of 3", "Step 3 of 3"]
    data = "normal_1x1_x.npy and normal_1x1_y.npy"
    label = f"{data} · 3 steps at most · seed 4"
    assert all(said.endswith(label) for _, said, _ in shown)
    for number, (progress, said, _) in enumerate(shown[1:], 1):
        (curve,) = progress.axes[0].lines
        assert list(curve.get_xdata()) == [0, 2, 3][:number]
        assert f"\nlower bound so far {curve.get_ydata()[-1]:.4f} nats\n" in said
    expected = mutual_information(np.load(x), np.load(y), steps=3, random_state=4)
    assert found == {**expected.figures(), "data": data, "steps": 3, "seed": 4}
    assert found["num_rows"] == 600 and abs(found["value"] - 0.4133) < 3 * found["stderr"] < 0.4
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert text.startswith(f"{expected.summary()}\n600 rows, 1 + 1 columns · ")
    assert found["value"] in [line.get_xdata()[0] for line in plot.axes[0].lines]


@pytest.mark.process
def test_columns_of_a_table_are_the_same_as_arrays_and_keep_their_names(tmp_path):
    numbers = np.random.default_rng(0)
    kind = numbers.integers(0, 3, 200)
    values = np.stack([kind + numbers.normal(size=200), numbers.normal(size=200), kind], 1)
    table = str(tmp_path / "table.csv")
    header = "height, age,kind"
    np.savetxt(table, values, delimiter=",", header=header, comments="", fmt="%.18g")
    assert own_data.column_names(table) == ["height", "age", "kind"]
    source = files(csv=table, x_columns=["height", "age"], y_columns=["kind"])
    *_, (_, text, found) = estimate(source)
    assert found["discrete"] == ["'kind'"] and "\ntaken as discrete: 'kind'\n" in text
    assert text.endswith("table.csv, X = height, age and Y = kind · 1 steps at most · seed 0")
    arrays = [save(tmp_path, f"{n}.npy", part) for n, part in enumerate((values[:, :2], kind))]
    *_, (_, _, same) = estimate(files(*arrays))
    assert same["discrete"] == ["column 1 of y"] and same["value"] == found["value"]


def save(folder, name, values):
    np.save(folder / name, values)
    return str(folder / name)


def test_bad_data_are_explained_without_folders(tmp_path):
    numbers = np.random.default_rng(0)
    good = save(tmp_path, "good.npy", numbers.normal(size=200))
    short = save(tmp_path, "short.npy", numbers.normal(size=90))
    wide = save(tmp_path, "wide.npy", numbers.normal(size=(200, 64)))
    long = [save(tmp_path, f"long{n}.npy", numbers.normal(size=20_001)) for n in (0, 1)]
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    (tmp_path / "bad.npy").write_bytes(b"no array")
    table = str(tmp_path / "table.csv")
    for given, message in (
        (files(), "no data for both X and Y: upload"),
        (files(x=good), "no data for both X and Y: upload"),
        (files(good, good, table), ".npy files and a CSV file: take one"),
        (files(good, short), "x has 200 rows and y has 90"),
        (files(good, good), "hold the same values"),
        (files(good, str(tmp_path / "bad.npy")), "cannot read 'bad.npy'"),
        (files(good, wide), "there are 65 columns, more than 64"),
        (files(*long), "there are 20001 rows, more than 20000"),
        (files(csv=table, x_columns=["a"], y_columns=["z"]), "'table.csv' has no column 'z'"),
        (files(csv=table, x_columns=["a"]), "name the columns to read from it"),
    ):
        text = error_of(lambda s: list(estimate(s)), given)
        assert message in text and str(tmp_path) not in text
    for content, expected in ((b"", []), (b"\n a,b\n1,2\n", ["a", "b"]), (b"\xff\xfe", [])):
        (tmp_path / "table.csv").write_bytes(content)
        assert own_data.column_names(table) == expected
