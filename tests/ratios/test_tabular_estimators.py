"""Estimators in the manner of scikit-learn: its own checks, seeds, tables and what is refused."""

import numpy as np
import pandas as pd
import pytest
from conftest import error_of
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from ebm_app import DensityRatio, MutualInformation, log_density_ratio, mutual_information

#: checks that are not passed, as they have six rows of a class or ten in all, which are refused
FEW = (
    *("estimators_nan_inf", "fit2d_1feature", "estimators_overwrite_params", "dict_unchanged"),
    *("dont_overwrite_parameters", "estimators_fit_returns_self", "readonly_memmap_input"),
    *("n_features_in_after_fitting", "f_contiguous_array_estimator", "fit2d_predict1d"),
    *("methods_sample_order_invariance", "methods_subset_invariance"),
)
EXCEPTIONS = {
    DensityRatio: FEW,
    # words in y are refused in other words than those that are looked for
    MutualInformation: (*FEW[:2], "dtype_object"),
}


@pytest.mark.process
@pytest.mark.parametrize(
    "estimator", [DensityRatio(num_folds=2, steps=1), MutualInformation(steps=1)], ids=type
)
def test_the_checks_of_scikit_learn(estimator):
    expected = {f"check_{name}": "see above" for name in EXCEPTIONS[type(estimator)]}
    found = check_estimator(estimator, expected_failed_checks=expected, on_skip=None)
    assert sum(check["status"] == "passed" for check in found) > 25


def samples(num=120):
    x = np.random.default_rng(0).standard_normal((num, 2))
    which = np.arange(num) % 2
    return x + which[:, None], which


def test_a_ratio_is_that_of_the_function_in_a_pipeline_and_for_every_kind_of_seed():
    x, which = samples()
    ratio = DensityRatio(num_folds=2, steps=5, random_state=np.int64(3))
    fitted = make_pipeline(StandardScaler(), clone(ratio)).fit(x, which)
    scaled = StandardScaler().fit_transform(x)
    function = log_density_ratio(scaled[::2], scaled[1::2], 2, 5, 3)
    np.testing.assert_array_equal(fitted.score_samples(x), function.score_samples(scaled))
    names = np.where(which, "new", "a")
    words = clone(ratio).fit(scaled, names)
    np.testing.assert_array_equal(words.score_samples(scaled), function.score_samples(scaled))
    assert (
        words.classes_.tolist() == ["a", "new"] and words.score(scaled, words.classes_[which]) < 0
    )
    value, error = words.score_samples(scaled[:3], return_std=True)
    assert value.shape == error.shape == (3,)
    for seed in (None, np.random.RandomState(1)):
        other = clone(ratio).set_params(random_state=seed).fit(x, which)
        assert np.isfinite(other.score_samples(x)).all()
    table = pd.DataFrame({"age": x[:, 0], "town": ["a", "b"] * 60})
    for call in (lambda: ratio.fit(table, which), lambda: other.score_samples(table)):
        assert "the column 'town' holds" in error_of(call)
    assert "y holds 3 classes" in error_of(ratio.fit, x, np.arange(120) % 3)


def test_information_is_that_of_the_function_and_columns_of_words_are_named():
    x, _ = samples()
    found = MutualInformation(steps=5, random_state=2).fit(x[:, :1], x[:, 1])
    function = mutual_information(x[:, :1], x[:, 1], steps=5, random_state=2)
    assert (found.value_, found.interval_) == (function.value, function.interval)
    assert found.log_ratio_.shape == (120,) and found.n_features_in_ == 1
    table = pd.DataFrame({"age": x[:, 0], "town": ["a", "b"] * 60})
    for call in (lambda: found.fit(table, x[:, 1]), lambda: mutual_information(table, x[:, 1])):
        assert "the column 'town' holds" in error_of(call)
    town = pd.factorize(table["town"])[0]  # as the message says
    assert np.isfinite(found.fit(table[["age"]].assign(town=town), x[:, 1]).value_)
