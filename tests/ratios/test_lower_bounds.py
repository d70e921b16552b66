"""Known mutual information, bounds of it, what every row moves them by, and neighbours."""

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


def normal_ratio(x, y, rho):
    """log p(x, y) / (p(x) p(y)) by torch.distributions, of the coordinates that are correlated."""
    joint = torch.distributions.MultivariateNormal(
        torch.zeros(2).double(), torch.tensor([[1, rho], [rho, 1]]).double()
    )
    alone = torch.distributions.Normal(0, 1)
    parts = joint.log_prob(torch.stack([x, y], -1)) - alone.log_prob(x) - alone.log_prob(y)
    return parts.sum(1)


RATIOS = {
    "normal_1x1": lambda x, y: normal_ratio(x, y, 0.75),
    "sparse_5x5": lambda x, y: normal_ratio(x[:, :2], y[:, :2], 0.8),
    "discrete_uniform_4": lambda x, y: (
        -(sum((y >= k) & (y <= k + 2) for k in range(4)) / 4).log()[:, 0]
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_known_information_is_the_mean_log_ratio_of_the_draws(name):
    information, draw = EXAMPLES[name]
    x, y = draw(20_000, generator())
    assert x.shape == y.shape and x.dtype == y.dtype == torch.float64
    assert z_score(RATIOS[name](x, y), information) < 4


def test_the_exact_ratio_has_no_normaliser_and_its_bound_is_the_information():
    (information, draw), exact = EXAMPLES["normal_1x1"], RATIOS["normal_1x1"]
    x, y = draw(20_000, generator())
    shifts = list(range(1, 21))
    apart = torch.stack([exact(x, y.roll(-shift, 0)) for shift in shifts])
    ratios = PairRatios(exact(x, y), apart, shifts)
    assert abs(log_normaliser(ratios)) < 0.02
    bound = donsker_varadhan(ratios)
    assert z_score(influences(ratios) + bound, information) < 4


def test_the_best_weights_have_the_largest_bound():
    """Of normals, half and one and a half times the exact ratio, in equal shares."""
    x, y = EXAMPLES["normal_1x1"][1](3_000, generator(1))
    pairs = torch.stack([RATIOS["normal_1x1"](x, y.roll(-s, 0)) for s in range(4)])
    both = torch.stack([0.5 * pairs, 1.5 * pairs])
    parts = PairRatios(both[:, 0], both[:, 1:], [1, 2, 3])
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
