"""Distances between feature sets and between classes, nearest images, and the share of copies."""

import math

import pytest
import torch
from exact import F64, generator, normal

from ebm_app.evaluation.frechet import copy_share, frechet_distance, nearest, sample_quality


def rows_of(mean, factor, num=40, seed=0):
    """(num, D) whose mean and covariance are exactly ``mean`` (D,) and F F^T, F (D, D)."""
    z = normal((num, len(mean)), seed)
    z = z - z.mean(0)
    z = torch.linalg.solve_triangular(torch.linalg.cholesky(torch.cov(z.T)), z.T, upper=False).T
    return z @ factor.T + mean


@pytest.mark.parametrize("num", [4, 8, 300])
def test_equal_sets_have_distance_zero(num):
    """Fewer rows than the 8 dimensions too, whose covariance is singular."""
    features = normal((num, 8))
    assert abs(frechet_distance(features, features)) < 1e-10
    assert abs(frechet_distance(features, features.flip(0))) < 1e-10


def test_two_dimensions_without_common_axes():
    """For 2 x 2 matrices, tr (A B)^{1/2} = (tr A B + 2 (det A B)^{1/2})^{1/2}."""
    f, g, mean = normal((2, 2), 1), normal((2, 2), 2), torch.zeros(2, dtype=F64)
    a, b = f @ f.T, g @ g.T
    root = math.sqrt((a @ b).trace() + 2 * math.sqrt(torch.linalg.det(a @ b)))
    exact = (a.trace() + b.trace()).item() - 2 * root
    assert frechet_distance(rows_of(mean, f), rows_of(mean, g)) == pytest.approx(exact, rel=1e-9)


def test_classes_are_counted_and_the_clear_ones():
    logits = torch.tensor([[0.0, math.log(3)], [math.log(10), 0.0], [0.0, 0.0], [5.0, 5.0]])
    features = normal((4, 3))
    found = sample_quality(features, logits, features + 1)
    assert found == pytest.approx({"frechet": 3, "class_balance": 1 / 3, "clear_share": 0.25})


def test_neighbours_are_the_nearest_by_root_mean_square():
    others = torch.rand((40, 1, 3, 2), generator=generator())
    images = torch.rand((7, 1, 3, 2), generator=generator(1))
    distances, indices = nearest(images, others, chunk_size=2)
    all_distances = (images[:, None] - others[None]).double().square().mean((2, 3, 4)).sqrt()
    expected = all_distances.min(1)
    torch.testing.assert_close(distances, expected.values)
    assert torch.equal(indices, expected.indices)


def test_copies_show_and_fresh_draws_do_not():
    held_out = torch.rand(20_000, generator=generator(), dtype=torch.float64) + 1
    fresh = torch.rand(20_000, generator=generator(1), dtype=torch.float64) + 1
    assert copy_share(fresh, held_out) == pytest.approx(0.01, abs=0.003)
    fresh[:5_000] = 0
    assert copy_share(fresh, held_out) == pytest.approx(0.2575, abs=0.003)
