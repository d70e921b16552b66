"""The tab of mutual information: Gaussians, data of a visitor's own, and their endpoints."""

import json
import math
import os
import pickle

import numpy as np
import pytest
import torch
from conftest import error_of

from ebm_app.ratios import mutual_information
from ebm_app.ratios.data.mi_tasks import MI_TASKS
from ebm_app.ratios.methods import MixtureResidual
from ebm_app.ratios.training import RatioTrainer
from ebm_app.web.buttons import stopped
from ebm_app.web.information import gaussian, own_data
from ebm_app.web.information.paired_data import (
    PairedFiles,
    column_names,
    draw_example,
    examples,
    read,
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few points and draws."""
    monkeypatch.setattr(gaussian, "NUM_POINTS", 400)


def approach(methods=("CTSM-v",), dim=40, rate=2e-2, iterations=2, seed=0):
    return gaussian.approach(dim, methods, rate, iterations, seed)


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
        ({"rate": math.inf}, "the learning rate cannot be inf"),
        ({"iterations": 5_001}, "iterations cannot be 5001"),
        ({"seed": 0.5}, "the seed cannot be 0.5"),
    ):
        assert message in error_of(lambda a: list(approach(**a)), arguments)


def draw(folder, task="normal_1x1", num=600, seed=0):
    return draw_example(task, num, seed, folder)


def estimate(source, preprocessing="none", iterations=2, seed=0):
    return own_data.estimate(source, preprocessing, iterations, seed)


def test_an_estimate_comes_fold_by_fold(tmp_path):
    x, y, truth = draw(tmp_path)
    assert truth == "normal_1x1: 0.4133 nats"
    source = PairedFiles(x, y)
    shown = list(estimate(source, iterations=3, seed=4))
    heads = [text.split(" · ")[0] for _, text, _ in shown[:-1]]
    assert heads == ["Starting", "Step 1 of 3 folds", "Step 2 of 3 folds"]
    assert "over 400 rows left out" in shown[2][1]
    assert stopped(shown[2][1]).startswith("Stopped after step 2 of 3 folds")
    plot, text, found = shown[-1]
    assert abs(found["mutual_information"] - 0.4133) < 4 * found["stderr"] < 0.4
    assert f"{found['mutual_information']:.4f} ± {found['stderr']:.4f} nats\n600 rows" in text
    label = (
        "normal_1x1_x.npy and normal_1x1_y.npy · only to unit variance · 3 steps a fold · seed 4"
    )
    assert all(text.endswith(label) for _, text, _ in shown)
    assert found["data"] == "normal_1x1_x.npy and normal_1x1_y.npy"
    given = {name: found[name] for name in ("num_rows", "preprocessing", "iterations", "seed")}
    assert given == {"num_rows": 600, "preprocessing": "none", "iterations": 3, "seed": 4}
    assert len(found["best_steps"]) == 3 and json.loads(json.dumps(found)) == found
    means = plot.axes[0].lines[0].get_ydata()
    assert means.mean() == pytest.approx(found["mutual_information"], abs=1e-6)


def test_it_is_the_librarys_estimate(tmp_path):
    x, y, _ = draw(tmp_path, num=120)
    *_, (_, _, found) = estimate(PairedFiles(x, y), "rank", 2, 7)
    scores = own_data.PREPROCESSING["rank"]
    arrays = [torch.from_numpy(scores(np.load(path))) for path in (x, y)]
    training = mutual_information.RatioTraining(2, eval_every=1)
    settings = mutual_information.MISettings(3, 1, training=training)
    results = mutual_information.folds(*arrays, settings, 7)
    expected = mutual_information.summarise(results, 120, 1)
    assert found["mutual_information"] == expected.mutual_information


def test_arrays_and_a_table_give_the_same(tmp_path):
    x, y, _ = draw(tmp_path, "sparse_2x2", 150)
    values = np.hstack([np.load(x), np.load(y)])
    table = tmp_path / "table.csv"
    np.savetxt(table, values, delimiter=",", header="a, b,c,d", comments="", fmt="%.18g")
    assert column_names(str(table)) == ["a", "b", "c", "d"]
    source = PairedFiles(csv=str(table), x_columns=["a", "b"], y_columns=["c", "d"])
    for found, expected in zip(read(source), read(PairedFiles(x, y)), strict=True):
        assert np.array_equal(found, expected)


def test_who_stops_after_a_fold_trains_no_other(tmp_path, monkeypatch):
    built = []
    build = MixtureResidual.build
    monkeypatch.setattr(MixtureResidual, "build", lambda *a: built.append(1) or build(*a))
    x, y, _ = draw(tmp_path, num=120)
    run = estimate(PairedFiles(x, y))
    assert [next(run)[1].split(" ")[0] for _ in range(2)] == ["Starting", "Step"]
    run.close()
    assert len(built) == 1


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
    twice = numbers.normal(size=(200, 1)).repeat(2, 1)
    hole = numbers.normal(size=200)
    hole[3] = np.nan
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    (tmp_path / "bad.npy").write_bytes(pickle.dumps(Bad()))
    table = str(tmp_path / "table.csv")
    files = PairedFiles
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
        (files(good, save(tmp_path, "flat.npy", np.ones(200))), "constant over all rows"),
        (files(good, good), "hold the same values"),
        (files(good, save(tmp_path, "twice.npy", twice)), "columns are linearly dependent"),
        (files(good, str(tmp_path / "text.npy")), "cannot read 'text.npy'"),
        (files(good, str(tmp_path / "bad.npy")), "cannot read 'bad.npy'"),
        (files(good, save(tmp_path, "object.npy", np.array([Bad()] * 200))), "never opened"),
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
        (files(csv=table, x_columns=["a"]), "no column is given for y"),
    ):
        text = error_of(lambda s: list(estimate(s)), given)
        assert message in text and str(tmp_path) not in text
    assert not (tmp_path / "unpickled").exists()


def test_numbers_out_of_range_are_refused(tmp_path):
    x, y, _ = draw(tmp_path)
    source = PairedFiles(x, y)
    for arguments, message in (
        (("x", 2, 0), "unknown preprocessing 'x'"),
        (("none", 2_001, 0), "iterations cannot be 2001"),
        (("none", 2, -1), "the seed cannot be -1"),
    ):
        assert message in error_of(lambda a: list(estimate(source, *a)), arguments)
    for arguments, message in (
        (("x", 100, 0), "unknown task 'x'"),
        (("normal_1x1", 99, 0), "the number of rows cannot be 99: give a whole number from 100"),
        (("normal_1x1", 20_001, 0), "the number of rows cannot be 20001"),
    ):
        assert message in error_of(draw_example, *arguments, tmp_path)


def test_examples_are_tasks_that_can_be_estimated():
    names = examples()
    assert "student_2x2_df1" in names and "block_gaussian_80" not in names
    assert all(MI_TASKS[name].dim_x + MI_TASKS[name].dim_y <= 64 for name in names)


def test_columns_are_listed_if_there_are_any(tmp_path):
    path = tmp_path / "table.csv"
    for content, expected in (
        (b"", []),
        (b"\n a,b\n1,2\n", ["a", "b"]),
        (b"\xff\xfe", []),
        (b'"a', ["a"]),
    ):
        path.write_bytes(content)
        assert column_names(str(path)) == expected
    assert column_names(None) == []
    path.write_text(",".join(map(str, range(501))))
    assert "501 columns: leave out all but 500" in error_of(column_names, path)
