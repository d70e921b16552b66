"""Mutual information of paired rows, and of the paper's Gaussians while they are learned."""

import math

import numpy as np
import pandas as pd
from conftest import call, error_of, figures_of
from exact import normal
from sklearn.linear_model import LogisticRegression

from ebm_app import ClassifierRatio, CTSMRatio, mutual_information
from ebm_app.ratios import ctsm
from ebm_app.ratios.classifier import NetworkClassifier
from ebm_app.ratios.information import independent_and_joint
from ebm_app.ratios.problems import learn_information

SHORT = ClassifierRatio(NetworkClassifier(steps=100), num_folds=3)


def pairs(num=900, rho=0.75, dim=1, seed=0):
    """Rows of X and Y with -dim / 2 log(1 - rho^2) nats."""
    x, noise = (normal((num, dim), 2 * seed + k).numpy() for k in (0, 1))
    return x, rho * x + math.sqrt(1 - rho**2) * noise


def test_information_of_a_rectified_column():
    x = normal((900,)).numpy()
    bit = (normal((900,), 1) > 0).numpy()  # log 2 nats
    ratio = ClassifierRatio(NetworkClassifier(steps=300), num_folds=3)
    estimate = mutual_information(bit, np.where(bit, x, 0.0), ratio)
    assert estimate.interval[0] < math.log(2) < estimate.interval[1] < 1
    assert estimate.log_ratio1.shape == (900,) and estimate.what == "mutual information"


def test_information_depends_on_order_and_seed_alone():
    """Increasing maps of the columns do not change it."""
    x, y = pairs(num=300)
    first, other = (mutual_information(x, y, SHORT, random_state=k).value for k in (3, 4))
    same = mutual_information(np.exp(x), y**3, SHORT, random_state=3)
    assert same.value == first != other


def test_default_is_ctsm_where_a_classifier_has_no_bound(monkeypatch):
    monkeypatch.setattr(ctsm, "BATCH_SIZE", 64)
    x, y = pairs(num=400, rho=0.95, dim=8)
    truth = -4 * math.log(1 - 0.95**2)  # 9.3 nats
    assert mutual_information(x, y, SHORT).value is None
    estimate = mutual_information(x, y)
    assert estimate.estimator == "CTSMRatio()"
    assert estimate.interval[0] < truth < estimate.interval[1]


def test_pairs_of_different_rows_stay_in_their_fold():
    x, y = pairs(num=90)
    shuffled, joint = independent_and_joint(x, y, 3, 0)
    first, second = shuffled.units.T
    assert (first != second).all()
    assert np.array_equal(np.sort(joint.units[:, 0]), np.arange(90))
    by_unit = np.zeros(90, int)
    by_unit[joint.units[:, 0]] = joint.fold
    assert np.array_equal(by_unit[first], shuffled.fold)
    assert np.array_equal(by_unit[second], shuffled.fold)


def test_ctsm_refuses_discrete_columns():
    x, bits = normal((300, 4)), (normal((300, 4), 1) > 0).double()
    ratio = CTSMRatio(num_folds=3, steps=5)
    assert "ClassifierRatio" in error_of(mutual_information, x, bits, ratio)
    assert "[4, 5, 6, 7]" in error_of(mutual_information, bits + x, x.clamp(min=0), ratio)
    assert ratio.fit(x.round(decimals=1), x + 1).estimate_.value > 0  # rounded numbers


def test_invalid_pairs_raise():
    x, y = pairs(num=60)
    assert "60 rows" in error_of(mutual_information, x, y[:50])
    for ratio in ("ctsm_v", ClassifierRatio, LogisticRegression()):
        assert "ratio: must be" in error_of(mutual_information, x, y, ratio)
    assert "num_folds" in error_of(mutual_information, x, y, CTSMRatio(num_folds=2))
    assert "20 rows" in error_of(mutual_information, x[:20], y[:20])


def test_paper_gaussians_are_learned():
    curve = list(learn_information(40, 300, 0))
    assert curve[0] == (0, 0.0, None) and len(curve) > 20
    step, value, stderr = curve[-1]
    assert step == 300 and 1 < value < 12  # 10 nats after 2,000 steps
    # 0.08 nats after 2,000 steps
    assert 0 < stderr < (2 * 40 / 2000) ** 0.5


def test_mi_script_estimates_from_files(script, capsys, tmp_path):
    table = pd.DataFrame(np.hstack(pairs(num=200)), columns=["a", "b"])
    table.to_csv(tmp_path / "t.csv", index=False)
    flags = ["--x", tmp_path / "t.csv", "--x_columns", "a", "--y", tmp_path / "t.csv"]
    flags += ["--y_columns", "b", "--iterations", 20, "--output_dir", tmp_path / "out"]
    module = script("evaluate/mi.py")
    metrics = figures_of(module, *flags, "--method", "classifier")
    assert metrics["interval"][0] < 0.4133 < metrics["interval"][1]
    assert {"value", "stderr", "interval", "estimator"} <= metrics.keys()
    assert (tmp_path / "out/mi_data.png").exists()
    assert call(module, *flags) == 2 and "--method" in capsys.readouterr().err
    assert call(module, *flags[:4], *flags[-2:]) == 2 and "--y" in capsys.readouterr().err
