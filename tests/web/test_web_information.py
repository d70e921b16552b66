"""Mutual information tab."""

import json
import shutil

import numpy as np
from conftest import error_of

from ebm_app import mutual_information
from ebm_app.web import information


def draw(folder, task="normal_1x1", num=600, seed=0):
    for files in information.mi_example(task, num, seed):
        return [shutil.copy(file, folder) for file in files]


def save(folder, name, values):
    np.save(folder / name, values)
    return str(folder / name)


def test_estimate_equals_that_of_the_library(tmp_path):
    x, y = draw(tmp_path)
    *steps, (plot, text, metrics) = information.mi(x, y, 3, 4)
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


def test_bad_data_give_errors(tmp_path):
    numbers = np.random.default_rng(0)
    good = save(tmp_path, "good.npy", numbers.normal(size=200))
    wide = save(tmp_path, "wide.npy", numbers.normal(size=(200, 64)))
    long = save(tmp_path, "long.npy", numbers.normal(size=20_001))
    for x, y, word in (
        (good, None, "missing"),
        (good, good, "infinite"),
        (good, wide, "65 columns"),
        (long, long, "20001 rows"),
    ):
        assert word in error_of(list, information.mi(x, y, 1, 0))
