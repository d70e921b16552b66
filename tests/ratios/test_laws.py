"""Intervals of mutual information on laws with known information, each by the estimator that is
advised for it."""

import math

import numpy as np
import pytest
from scipy.integrate import trapezoid
from scipy.special import entr
from scipy.stats import entropy, norm

from ebm_app import ClassifierRatio, CTSMRatio, mutual_information
from ebm_app.ratios import ctsm
from ebm_app.ratios.classifier import NetworkClassifier

#: Joint probabilities of two columns of three values
PROBABILITIES = np.array([[17, 4, 4], [4, 17, 4], [4, 4, 17]]) / 75
#: Standard deviation of the noise of the parabola
NOISE = 0.5


def gaussian(nats, dim):
    """Draws of X and Y (n, dim) whose pairs of columns share ``nats`` equally."""
    rho = math.sqrt(-math.expm1(-2 * nats / dim))

    def draw(numbers, num):
        x, noise = numbers.standard_normal((2, num, dim))
        return x, rho * x + math.sqrt(1 - rho**2) * noise

    return draw


def discrete(numbers, num):
    """Two columns by ``PROBABILITIES``."""
    x, y = np.divmod(numbers.choice(9, num, p=PROBABILITIES.ravel()), 3)
    return x, y


def parabola(numbers, num):
    """Y = X^2 + noise."""
    x, noise = numbers.standard_normal((2, num))
    return x, x**2 + NOISE * noise


def parabola_information():
    """I(X; Y) = h(Y) - h(noise) of the parabola, by quadrature."""
    x, y = np.linspace(-8, 8, 2_001), np.linspace(-4, 40, 10_001)
    density = sum(norm.pdf(a) * norm.pdf(y, a**2, NOISE) for a in x) * (x[1] - x[0])
    return float(trapezoid(entr(density), y) - norm(scale=NOISE).entropy())


def classifier():
    return ClassifierRatio(NetworkClassifier(steps=600), num_folds=3)


def short_ctsm():
    return CTSMRatio(steps=100)


#: Estimator, draws and I(X; Y) in nats
LAWS = {
    "gaussian_0_3x3": (classifier, gaussian(0, 3), 0),
    "gaussian_0.5_1x1": (classifier, gaussian(0.5, 1), 0.5),
    "gaussian_2_3x3": (classifier, gaussian(2, 3), 2),
    "discrete": (classifier, discrete, entropy(PROBABILITIES.ravel(), np.full(9, 1 / 9))),
    "parabola": (classifier, parabola, parabola_information()),
    "gaussian_2_3x3, ctsm": (short_ctsm, gaussian(2, 3), 2),
    "gaussian_10_20x20, ctsm": (short_ctsm, gaussian(10, 20), 10),
}


@pytest.mark.parametrize(("make", "draw", "truth"), LAWS.values(), ids=LAWS)
def test_interval_contains_the_information(make, draw, truth, monkeypatch):
    monkeypatch.setattr(ctsm, "BATCH_SIZE", 512)
    for seed in range(2):
        x, y = draw(np.random.default_rng(seed), 1_000)
        low, high = mutual_information(x, y, make(), random_state=seed).interval
        assert 0 <= low <= truth <= high < truth + max(0.2, 0.1 * truth)
