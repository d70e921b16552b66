"""Which columns drifted: p-values against closed forms, and how often equal columns are named."""

import math

import numpy as np
import pandas as pd
import pytest

from ebm_app import log_density_ratio
from ebm_app.tabular.drift import column_p_values, holm


def test_a_column_of_numbers_and_a_discrete_one_by_their_closed_forms():
    """Samples of n rows that do not overlap: of (2 n)! / n!^2 orders two are as far apart. Shares
    of 30 in 40 and 20 in 40: chi^2 = 80 (30 * 20 - 10 * 20)^2 / (40 * 40 * 50 * 30)."""
    low, high = np.arange(20.0)[:, None], np.arange(100.0, 120.0)[:, None]
    assert column_p_values(low, high) == pytest.approx(2 / math.comb(40, 20))
    first, second = (np.repeat([0.0, 1.0], n)[:, None] for n in ((10, 30), (20, 20)))
    square = 80 * 400**2 / (40 * 40 * 50 * 30)
    assert column_p_values(first, second) == pytest.approx(math.erfc(math.sqrt(square / 2)))


def test_holm_by_hand():
    found = holm(np.array([0.01, 0.04, 0.03, 0.005, 0.9]))
    np.testing.assert_allclose(found, [0.04, 0.09, 0.09, 0.025, 0.9])
    np.testing.assert_array_equal(holm(np.array([0.6, 0.8])), [1, 1])


def rows(numbers, num):
    """Five columns: a normal, a long tail, counts, a class of three and a coin."""
    normal, tail = numbers.standard_normal(num), numbers.standard_cauchy(num)
    few = [numbers.poisson(30, num), numbers.integers(0, 3, num), numbers.random(num) < 0.1]
    return np.stack([normal, tail, *few], 1)


def test_equal_columns_are_seldom_named():
    """One of five in at most five of a hundred pairs of samples, but for four standard errors."""
    numbers, num = np.random.default_rng(0), 500
    found = [column_p_values(rows(numbers, 200), rows(numbers, 300)).min() for _ in range(num)]
    share = np.mean(np.array(found) < 0.05)
    print(f"a column is named in {share:.1%} of {num} pairs of samples of one density")
    assert share < 0.05 + 4 * math.sqrt(0.05 * 0.95 / num)


def test_a_ratio_names_the_columns_and_tells_dependence_by_its_joint_test():
    numbers = np.random.default_rng(1)
    x = numbers.standard_normal((600, 3))
    names = ["age", "income", "height"]
    of0 = pd.DataFrame(x[:300], columns=names)
    of1 = pd.DataFrame(x[300:] + [0, 0.8, 0], columns=names)
    found = log_density_ratio(of0, of1, num_folds=2, steps=5)
    assert found.drifted == ["'income'"] and "differ by themselves" in found.summary()
    assert found.figures()["column_p_values"] == found.column_p_values.tolist()
    copies = log_density_ratio(pd.concat([of0] * 9), pd.concat([of1] * 9), num_folds=2, steps=5)
    np.testing.assert_allclose(copies.column_p_values, found.column_p_values)
    line = numbers.standard_normal((2, 600, 1)) + 0.5 * numbers.standard_normal((2, 600, 2))
    turned = log_density_ratio(line[0], line[1] * [1, -1], num_folds=2, steps=50)
    assert turned.drifted == [] and turned.p_value < 1e-6
