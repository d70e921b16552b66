"""The tab of mutual information: methods side by side on paired Gaussians, and data of a visitor's
own."""

import json
import os
import pickle
import shutil

import numpy as np
import pytest
from conftest import error_of

from ebm_app.ratios.training import RatioTrainer
from ebm_app.tabular import classifier
from ebm_app.tabular.classifier import Classifiers
from ebm_app.tabular.mutual_information import mutual_information
from ebm_app.tabular.t_copula import TCopula
from ebm_app.web.information import gaussian, own_data


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few points and draws."""
    monkeypatch.setattr(gaussian, "NUM_POINTS", 400)


def approach(methods=("CTSM-v",), dim=40, rate=2e-2, iterations=2, seed=0):
    return gaussian.mi_gaussian(dim, list(methods), rate, iterations, seed)


def test_the_estimate_approaches_the_true_value():
    *_, (plot, text, found) = approach(iterations=120)
    method = found["methods"]["CTSM-v"]
    assert found["truth"] == 10 and method["step"] == 120
    assert abs(method["mutual_information"] - 10) < 1.5 and abs(method["matrix"] - 10) < 2
    assert text.startswith("120 steps · D = 40 · true value 10 nats · seed 0 · ")
    assert f"\nCTSM-v: {method['mutual_information']:.3f} nats · " in text
    above, below = plot.axes
    (truth, curve) = above.lines
    assert list(truth.get_ydata()) == [10, 10] and truth.get_linestyle() == "--"
    assert curve.get_ydata()[-1] == method["mutual_information"] and len(curve.get_xdata()) == 21
    assert below.patches[0].get_width() == method["step_ms"]


def test_methods_are_trained_in_turns():
    names = list(gaussian.METHODS)
    shown = list(approach(names))
    assert [text.split(" · ")[0] for _, text, _ in shown] == [
        "Step 0 of 2",
        "Step 1 of 2",
        "2 steps",
    ]
    first = shown[0][2]["methods"]
    assert all(first[name]["mutual_information"] == 0 for name in names)  # Sigma = I
    last = shown[-1][2]
    assert list(last["methods"]) == names and json.loads(json.dumps(last)) == last
    assert len({last["methods"][name]["mutual_information"] for name in names}) == 3


def test_who_stops_iterating_stops_the_training(monkeypatch):
    steps = []
    step = RatioTrainer.train_step
    monkeypatch.setattr(
        RatioTrainer, "train_step", lambda trainer: steps.append(1) or step(trainer)
    )
    run = approach(iterations=100)
    next(run), next(run)
    run.close()
    assert len(steps) == 5


def test_a_run_that_is_not_finite_says_so():
    curve = [{"step": 1, "divergence": None, "error": None, "step_ms": 2.0}]
    settings = {"dim": 40, "iterations": 9, "seed": 0}
    text = gaussian.report({"TSM": curve}, settings, 10.0, 0.1)
    assert text.startswith("Step 1 of 9 · ") and "\nTSM: no longer finite: lower" in text


def test_mistakes_with_gaussians_are_explained():
    for arguments, message in (
        ({"dim": 41}, "unknown problem 'mi_d41'"),
        ({"methods": ()}, "there is no method to train: choose at least one"),
        ({"methods": ("x",)}, "unknown method 'x'"),
    ):
        assert message in error_of(lambda a: list(approach(**a)), arguments)


def draw(folder, task="normal_1x1", num=600, seed=0):
    for x, y, _, truth in own_data.mi_example(task, num, seed):
        return shutil.copy(x, folder), shutil.copy(y, folder), truth


def files(x=None, y=None, csv=None, x_columns=(), y_columns=()):
    return x, y, csv, list(x_columns), list(y_columns)


def estimate(source, steps=1, seed=0):
    return own_data.mi(*source, steps, seed)


@pytest.fixture
def often(monkeypatch):
    """A validation after every second step."""
    monkeypatch.setattr(classifier, "CHECK_EVERY", 2)


def test_an_estimate_shows_every_validation(tmp_path, often):
    x, y, truth = draw(tmp_path)
    assert truth == "normal_1x1: 0.4133 nats"
    shown = list(estimate(files(x, y), steps=3, seed=4))
    heads = [text.split(" · ")[0] for _, text, _ in shown[:-1]]
    assert heads == ["Starting", "Step 0 of 3", "Step 2 of 3", "Step 3 of 3"]
    assert all(metrics == {} for *_, metrics in shown[:-1])
    label = "normal_1x1_x.npy and normal_1x1_y.npy · 3 steps at most · seed 4"
    assert shown[0][1] == f"Starting · 600 rows · {label}"
    assert all(text.endswith(label) for _, text, _ in shown)
    for number, (plot, text, _) in enumerate(shown[1:-1], 1):
        (curve,) = plot.axes[0].lines
        assert list(curve.get_xdata()) == [0, 2, 3][:number]
        assert f"\nlower bound so far {curve.get_ydata()[-1]:.4f} nats\n" in text


def test_the_end_is_the_librarys_estimate(tmp_path):
    x, y, _ = draw(tmp_path)
    *_, (plot, text, found) = estimate(files(x, y), steps=3, seed=4)
    expected = mutual_information(np.load(x), np.load(y), steps=3, random_state=4)
    data = "normal_1x1_x.npy and normal_1x1_y.npy"
    assert found == {**expected.figures(), "data": data, "steps": 3, "seed": 4}
    assert found["num_rows"] == 600 and abs(found["value"] - 0.4133) < 3 * found["stderr"] < 0.4
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert text.startswith(f"{expected.summary()}\n600 rows, 1 + 1 columns · ")
    axes = plot.axes[0]
    assert found["value"] in [line.get_xdata()[0] for line in axes.lines]
    assert axes.get_yticklabels()[0].get_text() == "estimate, 95 percent"


def test_what_speaks_against_an_estimate_comes_first(tmp_path):
    numbers = np.random.default_rng(0)
    x = numbers.normal(size=200)
    y = x + 1e-3 * numbers.normal(size=200)
    *_, (_, text, found) = estimate(files(save(tmp_path, "x.npy", x), save(tmp_path, "y.npy", y)))
    assert text.startswith(f"Beware: {found['warnings'][0]}\n")
    assert text.index("mutual information ") > text.index(found["warnings"][-1])


def test_columns_of_a_table_keep_their_names(tmp_path):
    numbers = np.random.default_rng(0)
    kind = numbers.integers(0, 3, 200)
    values = np.stack([kind + numbers.normal(size=200), numbers.normal(size=200), kind], 1)
    table = tmp_path / "table.csv"
    np.savetxt(table, values, delimiter=",", header="height,age,kind", comments="")
    source = files(csv=str(table), x_columns=["height", "age"], y_columns=["kind"])
    *_, (_, text, found) = estimate(source)
    assert found["discrete"] == ["'kind'"] and "\ntaken as discrete: 'kind'\n" in text
    assert "200 rows, 2 + 1 columns · " in text
    assert text.endswith("table.csv, X = height, age and Y = kind · 1 steps at most · seed 0")
    arrays = [save(tmp_path, f"{n}.npy", part) for n, part in enumerate((values[:, :2], kind))]
    *_, (_, _, same) = estimate(files(*arrays))
    assert same["discrete"] == ["column 1 of y"] and same["value"] == found["value"]


def test_arrays_and_a_table_give_the_same(tmp_path):
    x, y, _ = draw(tmp_path, "sparse_2x2", 150)
    values = np.hstack([np.load(x), np.load(y)])
    table = tmp_path / "table.csv"
    np.savetxt(table, values, delimiter=",", header="a, b,c,d", comments="", fmt="%.18g")
    assert own_data.column_names(str(table)) == ["a", "b", "c", "d"]
    source = files(csv=str(table), x_columns=["a", "b"], y_columns=["c", "d"])
    pairs = [own_data.read(*given[:3], given[3:]) for given in (source, files(x, y))]
    for found, expected in zip(*pairs, strict=True):
        assert np.array_equal(found, expected)


def test_who_stops_iterating_stops_the_estimate(tmp_path, often, monkeypatch):
    fits, steps = [], []
    train = Classifiers.train
    fit = TCopula.fit

    def counted(classifiers, *draws):
        for step in train(classifiers, *draws):
            steps.append(step)
            yield step

    monkeypatch.setattr(Classifiers, "train", counted)
    monkeypatch.setattr(TCopula, "fit", lambda *args: fits.append(1) or fit(*args))
    x, y, _ = draw(tmp_path, num=120)
    run = estimate(files(x, y), steps=100)
    assert next(run)[1].startswith("Starting") and not fits
    assert [next(run)[1].split(" ·")[0] for _ in range(2)] == ["Step 0 of 100", "Step 2 of 100"]
    run.close()
    assert len(fits) == 6 and steps == [2]


class Bad:
    """What a pickle would run."""

    def __reduce__(self):
        return os.mkdir, ("unpickled",)


def save(folder, name, values):
    np.save(folder / name, values)
    return str(folder / name)


def test_bad_data_are_explained_without_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    numbers = np.random.default_rng(0)
    good = save(tmp_path, "good.npy", numbers.normal(size=200))
    few = np.tile(numbers.normal(size=20), 10)
    hole = numbers.normal(size=200)
    hole[3] = np.nan
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    (tmp_path / "bad.npy").write_bytes(pickle.dumps(Bad()))
    table = str(tmp_path / "table.csv")
    wide, long = numbers.normal(size=(200, 64)), numbers.normal(size=20_001)
    for given, message in (
        (files(), "no data for both X and Y: upload"),
        (files(x=good), "no data for both X and Y: upload"),
        (files(good, good, table), ".npy files and a CSV file: take one"),
        (
            files(good, save(tmp_path, "short.npy", hole[:150])),
            "x has 200 rows and y has 150",
        ),
        (
            files(good, save(tmp_path, "hole.npy", hole)),
            "NaN or infinite, the first in row 4",
        ),
        (files(good, save(tmp_path, "flat.npy", np.ones(200))), "constant over all"),
        (files(good, good), "hold the same values"),
        (
            files(*[save(tmp_path, f"few{n}.npy", few * few**n) for n in (0, 1)]),
            "20 rows differ from each other: give more",
        ),
        (files(good, str(tmp_path / "text.npy")), "cannot read 'text.npy'"),
        (files(good, str(tmp_path / "bad.npy")), "cannot read 'bad.npy'"),
        (
            files(good, save(tmp_path, "object.npy", np.array([Bad()] * 200))),
            "cannot read 'object.npy'",
        ),
        (
            files(good, save(tmp_path, "wide.npy", wide)),
            "there are 65 columns, more than 64",
        ),
        (
            files(save(tmp_path, "l.npy", long), save(tmp_path, "m.npy", -(long**3))),
            "there are 20001 rows, more than 20000",
        ),
        (
            files(*[save(tmp_path, f"{n}.npy", hole[4 + n : 94 + n]) for n in (0, 1)]),
            "90 rows",
        ),
        (files(csv=table, x_columns=["a"], y_columns=["b"]), "1 rows, fewer than 100"),
        (
            files(csv=table, x_columns=["a"], y_columns=["z"]),
            "'table.csv' has no column 'z'",
        ),
        (files(csv=table, x_columns=["a"]), "a side has no columns"),
    ):
        text = error_of(lambda s: list(estimate(s)), given)
        assert message in text and str(tmp_path) not in text
    assert not (tmp_path / "unpickled").exists()


def test_examples_are_tasks_that_can_be_estimated(tmp_path):
    assert "student_2x2_df1" in own_data.EXAMPLES and "block_gaussian_80" not in own_data.EXAMPLES
    assert "unknown task 'x'" in error_of(lambda: list(own_data.mi_example("x", 100, 0)))


def test_columns_are_listed_if_there_are_any(tmp_path):
    path = tmp_path / "table.csv"
    for content, expected in (
        (b"", []),
        (b"\n a,b\n1,2\n", ["a", "b"]),
        (b"\xff\xfe", []),
        (b'"a', ["a"]),
    ):
        path.write_bytes(content)
        assert own_data.column_names(str(path)) == expected
    assert own_data.column_names(None) == []
