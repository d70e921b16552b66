"""Divergences by nearest neighbours: closed forms, and growth of infinite ones."""

import math

import numpy as np
import pytest

from ebm_app.ratios.information import dependence, normal_scores
from ebm_app.ratios.neighbours import divergence_of_neighbours, information_of_neighbours


def draws(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def information(x, y):
    x, y = (normal_scores(part.reshape(len(part), -1)) for part in (x, y))
    return information_of_neighbours(x, y)


def is_within(estimate, truth):
    return abs(estimate.value - truth) < 3 * estimate.stderr and estimate.is_resolved


def test_information_of_gaussians_matches_closed_form():
    x, noise = draws(2, 2_000)
    for rho in (0.0, 0.75, 0.99):
        estimate = information(x, rho * x + math.sqrt(1 - rho**2) * noise)
        assert is_within(estimate, -math.log1p(-(rho**2)) / 2) and estimate.stderr < 0.05


def test_information_of_discrete_columns_matches_closed_form():
    classes, noise = np.arange(2_000) % 2, draws(2_000)
    truth = math.log(2) - 0.0046  # of a fair bit and N(+-3, 1), by quadrature
    assert is_within(information(classes, 6.0 * classes + noise), truth)
    assert information(classes, classes).value == pytest.approx(math.log(2), abs=2e-3)
    grid = draws(2_000, 2, seed=3).round(1)  # independent, with ties
    assert information(*grid.T).value < 0.02


def test_divergence_of_gaussians_matches_closed_form():
    x0, x1 = draws(2_000, 2), draws(1_500, 2, seed=1)
    assert is_within(divergence_of_neighbours(x0, x1), 0.0)
    assert is_within(divergence_of_neighbours(x0, x1 + 0.5), 0.25)
    assert is_within(divergence_of_neighbours(x0, x1 / 2), 2 * (math.log(2) - 3 / 8))


X, Y, Z = draws(3, 1_000)
FUNCTIONS = {
    "square": (X, X**2),
    "sine": (X, np.sin(3 * X)),
    "inverse": (X**2, X),
    "product": (np.stack([X, Y], 1), X * Y),
    "norm": (np.stack([X, Y], 1), np.hypot(X, Y)),
    "half": (X, np.where(Z > 0, np.exp(X), Y)),
}


@pytest.mark.parametrize(("x", "y"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_information_of_functions_is_not_resolved(x, y):
    assert not information(x, y).is_resolved


def test_divergence_from_atoms_and_curves_is_not_resolved():
    x0 = draws(1_000, 2, seed=5)
    atoms = np.where(Z[:, None] > 0, 0.0, np.stack([X, Y], 1))
    for x1 in (atoms, np.stack([X, X**2 - 1], 1), np.stack([X, Y], 1).round()):
        assert not divergence_of_neighbours(x0, x1).is_resolved


def test_estimate_matches_for_many_and_few_rows():
    x, noise = draws(2, 20_000)
    assert is_within(information(x, x + noise), math.log(2) / 2)
    assert information(x[:12], noise[:12]).is_resolved


def test_dependence_is_near_one_for_functions_in_either_direction():
    assert dependence(X, X**2) > 0.98 and dependence(X**2, X) > 0.98
    assert abs(dependence(X, Y)) < 0.1
