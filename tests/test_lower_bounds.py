"""Bounds of mutual information, what every row moves them by, and nearest neighbours."""

import math

import numpy as np
import pytest
import torch
from exact import generator, z_score
from scipy import special

from ebm_app.tabular.known import EXAMPLES
from ebm_app.tabular.lower_bounds import (
    PairRatios,
    best_weights,
    donsker_varadhan,
    influences,
    log_normaliser,
    weighted,
)
from ebm_app.tabular.neighbours import neighbour_information

SHIFTS = [1, 3, 4]


def pair_ratios(num=9, seed=0):
    g = generator(seed)
    joint = torch.randn(num, generator=g, dtype=torch.float64)
    return PairRatios(
        joint, torch.randn(len(SHIFTS), num, generator=g, dtype=torch.float64), SHIFTS
    )


def test_bounds_are_their_formulas():
    ratios = pair_ratios()
    mean = ratios.apart.exp().mean().item()
    assert log_normaliser(ratios) == pytest.approx(math.log(mean))
    assert donsker_varadhan(ratios) == pytest.approx(ratios.joint.mean().item() - math.log(mean))


def test_influences_are_the_derivatives_by_the_weights_of_rows():
    ratios = pair_ratios()
    num = len(ratios.joint)
    index = torch.arange(num)
    y_rows = torch.stack([index.roll(-s) for s in SHIFTS])

    def bound(weight):
        pairs = weight * weight[y_rows]
        joint = (weight * ratios.joint).sum() / weight.sum()
        return joint - ((pairs * ratios.apart.exp()).sum() / pairs.sum()).log()

    ones = torch.ones(num, dtype=torch.float64)
    assert bound(ones).item() == pytest.approx(donsker_varadhan(ratios))
    derivative = torch.func.grad(bound)(ones) * num
    torch.testing.assert_close(influences(ratios), derivative)


def test_the_exact_ratio_has_no_normaliser_and_its_bound_is_the_information():
    rho, (information, draw) = 0.75, EXAMPLES["normal_1x1"]
    x, y = (part[:, 0] for part in draw(20_000, generator()))

    def exact(a, b):
        squares = rho**2 * (a**2 + b**2) - 2 * rho * a * b
        return information - squares / (2 * (1 - rho**2))

    shifts = list(range(1, 21))
    apart = torch.stack([exact(x, y.roll(-shift)) for shift in shifts])
    ratios = PairRatios(exact(x, y), apart, shifts)
    assert abs(log_normaliser(ratios)) < 0.02
    bound = donsker_varadhan(ratios)
    assert z_score(influences(ratios) + bound, information) < 4


def test_the_best_weights_have_the_largest_bound():
    """Of normals, half and one and a half times the exact ratio, in equal shares."""
    rho, num, shifts = 0.75, 3_000, [1, 2, 3]
    x, y = (part[:, 0] for part in EXAMPLES["normal_1x1"][1](num, generator(1)))

    def both(a, b):
        exact = (rho * a * b - rho**2 * (a**2 + b**2) / 2) / (1 - rho**2)
        return torch.stack([0.5 * exact, 1.5 * exact])

    parts = PairRatios(both(x, y), torch.stack([both(x, y.roll(-s)) for s in shifts], 1), shifts)
    weights = best_weights(parts)
    assert weights.tolist() == pytest.approx([0.5, 0.5], abs=0.1)
    best = donsker_varadhan(weighted(parts, weights))
    for share in (0.3, 0.7):
        other = torch.tensor([share, 1 - share], dtype=torch.float64)
        assert best > donsker_varadhan(weighted(parts, other))


@pytest.mark.parametrize("dims", [(1, 1), (2, 1)])
def test_neighbours_by_all_distances(dims):
    numbers = np.random.default_rng(0)
    x, y = (numbers.standard_normal((60, dim)) for dim in dims)
    k, total = 3, 0.0
    for i in range(60):
        of_x, of_y = (np.abs(part - part[i]).max(1) for part in (x, y))
        both = np.sort(np.maximum(of_x, of_y))[k]  # the first is the row itself
        total += sum(special.psi((part < both).sum()) for part in (of_x, of_y))
    expected = special.psi(k) + special.psi(60) - total / 60
    assert neighbour_information(x, y, k) == pytest.approx(expected, rel=1e-12)
