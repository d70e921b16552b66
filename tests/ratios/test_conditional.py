"""Conditional mutual information against partial correlations, and its error over data sets."""

import math
from itertools import product

import numpy as np
import pandas as pd
import pytest
from conftest import error_of

from ebm_app import conditional_mutual_information, mutual_information
from ebm_app.tabular import classifier

SHORT = {"steps": 50}


@pytest.fixture
def small(monkeypatch):
    """Small networks."""
    monkeypatch.setattr(classifier, "HIDDEN", (16, 16))


def chain(g, num):
    """X -> Z -> Y: given Z nothing is left of I(X; Y)."""
    x = g.standard_normal(num)
    z = x + g.standard_normal(num)
    return x, z + g.standard_normal(num), z


def collider(g, num):
    """Z = X + Y + noise: of X and Y, which are independent, the partial correlation is -1/2."""
    x, y = g.standard_normal((2, num))
    return x, y, x + y + g.standard_normal(num)


def common_cause(g, num):
    """X and Y are Z, in two columns, and noise that they share: partial correlation 0.8."""
    z, own = g.standard_normal((num, 2)), g.standard_normal((2, num))
    return z.sum(1) + own[0], z[:, 0] - z[:, 1] + 0.8 * own[0] + 0.6 * own[1], z


PROBLEMS = {
    chain: 0.0,
    collider: -0.5 * math.log(1 - 0.25),
    common_cause: -0.5 * math.log(1 - 0.64),
}


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.__name__)
def test_of_normals_it_is_that_of_the_partial_correlation(problem, small):
    found = conditional_mutual_information(*problem(np.random.default_rng(0), 600), **SHORT)
    assert abs(found.value - PROBLEMS[problem]) < 3.5 * found.stderr < 0.4
    assert found.interval == pytest.approx(
        (found.value - 1.96 * found.stderr, found.value + 1.96 * found.stderr)
    )


def test_the_error_is_one_of_the_difference(small):
    """Of terms that move together with the rows; alone they would be twice as uncertain."""
    x, y, z = chain(np.random.default_rng(1), 300)
    found = conditional_mutual_information(x, y, z, **SHORT)
    terms = found.with_y, found.without_y
    alone = mutual_information(x, z, **SHORT)
    assert found.without_y.figures() == alone.figures()
    assert found.value == terms[0].value - terms[1].value
    difference = terms[0].influence - terms[1].influence
    rows = math.sqrt((difference**2).sum()) / 300
    assert rows < 0.5 * math.hypot(*(math.sqrt(t.stderr**2 - t.beside_rows**2) for t in terms))


def test_what_is_doubtful_of_a_term_and_what_is_wrong_of_a_side():
    g = np.random.default_rng(2)
    x, y, z = collider(g, 60)
    found = conditional_mutual_information(x, y, x + 1e-3 * z, steps=5)
    assert found.warnings and found.warnings[0].startswith("of I(X; (Y, Z)), ")
    assert found.summary().startswith("Beware: of I(X; (Y, Z))")
    for sides, message in (
        ((x, y, z[:-1]), "y has 60 rows and z has 59"),
        ((x, y, y), "column 1 of y and column 1 of z hold the same values"),
        ((x, pd.Series(y, name="b").to_frame(), np.ones(60)), "constant over all rows"),
    ):
        assert message in error_of(conditional_mutual_information, *sides)


@pytest.mark.slow
def test_intervals_hold_the_truth():
    """Twenty data sets of 500 rows of each problem, all but one in ten of which are held."""
    held = []
    for (problem, truth), seed in product(PROBLEMS.items(), range(20)):
        data = problem(np.random.default_rng(seed), 500)
        low, high = conditional_mutual_information(*data, steps=300, random_state=seed).interval
        held.append(low <= truth <= high)
    assert np.mean(held) >= 0.9, held
