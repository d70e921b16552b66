"""The spiral and the Swiss roll are undone by maps that are known otherwise."""

import math

import numpy as np
import pytest
import torch
from conftest import error_of
from mi_helpers import PAIR, draws
from scipy import stats
from scipy.linalg import expm

from ebm_app.ratios.mi_embeddings import Spiral, SwissRoll, spiral
from ebm_app.ratios.mi_gaussians import CorrelatedNormal
from ebm_app.ratios.mi_tasks import Transformed

pytestmark = pytest.mark.usefixtures("float64")

UNIFORM = Transformed(PAIR, "normal_cdf")
SPARSE = CorrelatedNormal((0.8, 0.8), 4, 3)


def rotation(dim, first, angle):
    generator = np.zeros((dim, dim))
    generator[first, first + 1], generator[first + 1, first] = -1, 1
    return expm(angle * generator)


@pytest.mark.parametrize("base", [SPARSE, Transformed(SPARSE, "normal_cdf")], ids=repr)
def test_spiral_is_undone_by_the_opposite_rotation(base):
    task = Spiral(base)
    assert (task.dim_x, task.dim_y) == (4, 3)
    assert task.mutual_information == base.mutual_information
    for first, before, after in zip((0, 1), draws(base, 50), draws(task, 50), strict=True):
        dim = before.shape[1]
        norms = np.linalg.norm(after, axis=1)
        np.testing.assert_allclose(norms, np.linalg.norm(before, axis=1), rtol=1e-14)
        for point, image, norm in zip(before, after, norms, strict=True):
            angle = norm**2 / dim
            np.testing.assert_allclose(rotation(dim, first, angle) @ point, image, atol=1e-13)
            np.testing.assert_allclose(rotation(dim, first, -angle) @ image, point, atol=1e-13)


def test_spiral_by_hand():
    """|x|^2 / d = pi / 2 turns (a, b) into (-b, a); other coordinates stay."""
    point = torch.tensor([[0.5, 1.0, 0.0, 2.0]])
    point[0, 2] = math.sqrt(2 * math.pi - 5.25)
    for first, expected in (
        (0, [-1.0, 0.5, point[0, 2], 2.0]),
        (2, [0.5, 1.0, -2.0, point[0, 2]]),
    ):
        np.testing.assert_allclose(spiral(point, first)[0], expected, atol=1e-15)


def test_swiss_roll_inverts():
    task = SwissRoll(UNIFORM)
    assert (task.dim_x, task.dim_y) == (2, 1)
    assert task.mutual_information == PAIR.mutual_information
    (x, y), (rolled, same) = draws(UNIFORM), draws(task)
    t = 21 * np.linalg.norm(rolled, axis=1)
    np.testing.assert_allclose((t / (1.5 * math.pi) - 1) / 2, x[:, 0], atol=1e-14)
    direction = np.stack([np.cos(t), np.sin(t)], 1)
    np.testing.assert_allclose(21 * rolled, t[:, None] * direction, atol=1e-12)
    assert np.array_equal(same, y) and stats.kstest(y[:, 0], "uniform").pvalue > 1e-3
    assert stats.kstest(t, stats.uniform(1.5 * math.pi, 3 * math.pi).cdf).pvalue > 1e-3


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda: Spiral(CorrelatedNormal((), 1, 3)), "X has 1 dimensions and Y has 3"),
        (lambda: Spiral(CorrelatedNormal((), 2, 2)), "X has 2 dimensions and Y has 2"),
        (lambda: SwissRoll(SPARSE), "X has 4 dimensions"),
        (lambda: draws(SwissRoll(PAIR), 50), "outside [0, 1]"),
    ],
)
def test_bad_arguments(make, reason):
    assert reason in error_of(make)
