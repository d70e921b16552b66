"""Measures of images: Fréchet distance, copies, classes, the classifier."""

import math

import pytest
import torch
from exact import F64, generator, normal

from ebm_app.data.datasets import load_images
from ebm_app.evaluation.classifier import train_classifier
from ebm_app.evaluation.frechet import copied_fraction, frechet_distance, sample_quality


def rows_of(factor, num=40):
    """Rows (num, D) with mean 0 and covariance F F^T exactly, for F (D, D)."""
    z = normal((num, len(factor)))
    z = z - z.mean(0)
    z = torch.linalg.solve_triangular(torch.linalg.cholesky(torch.cov(z.T)), z.T, upper=False).T
    return z @ factor.T


@pytest.mark.parametrize("num", [4, 300])
def test_equal_sets_have_distance_zero(num):
    """Also for fewer rows than the 8 dimensions, whose covariance is singular."""
    features = normal((num, 8))
    assert abs(frechet_distance(features, features.flip(0))) < 1e-10


def test_distance_in_two_dimensions_matches_closed_form():
    """For 2 x 2 matrices, tr (A B)^{1/2} = (tr A B + 2 (det A B)^{1/2})^{1/2}."""
    f, g, mean = normal((2, 2), 1), normal((2, 2), 2), torch.tensor([3.0, 4.0], dtype=F64)
    a, b = f @ f.T, g @ g.T
    root = math.sqrt((a @ b).trace() + 2 * math.sqrt(torch.linalg.det(a @ b)))
    exact = 25 + (a.trace() + b.trace()).item() - 2 * root
    assert frechet_distance(rows_of(f) + mean, rows_of(g)) == pytest.approx(exact, rel=1e-9)


def test_classes_and_confident_predictions_are_counted():
    logits = torch.tensor([[0.0, math.log(3)], [math.log(10), 0.0], [0.0, 0.0], [5.0, 5.0]])
    features = normal((4, 3))
    quality = sample_quality(features, logits, features + 1)
    assert quality == pytest.approx(
        {"frechet": 3, "class_balance": 1 / 3, "confident_fraction": 0.25}
    )


def test_copies_are_counted():
    held_out = torch.rand(20_000, generator=generator(), dtype=F64) + 1
    drawn = torch.rand(20_000, generator=generator(1), dtype=F64) + 1
    assert copied_fraction(drawn, held_out) == pytest.approx(0.01, abs=0.003)
    drawn[:5_000] = 0
    assert copied_fraction(drawn, held_out) == pytest.approx(0.2575, abs=0.003)


@pytest.fixture(scope="module")
def digits():
    return load_images("digits")


def test_classifier_learns_the_digits(digits):
    train, _, test = digits.labels
    images = digits.display(digits.test)
    classifier = train_classifier(digits.display(digits.train), train, 10, seed=0, num_steps=150)
    features, logits = classifier.features_and_logits(images, batch_size=100)
    assert (logits.argmax(1) == test).double().mean() > 0.95
    assert features.shape == (297, 64) and not features.requires_grad
    assert torch.allclose(features, classifier.features(images), atol=1e-4)
    assert torch.allclose(logits, classifier(images), atol=1e-4)
