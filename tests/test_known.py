"""Distributions of known mutual information, against the mean of their log ratios."""

import pytest
import torch
from exact import generator, z_score

from ebm_app.tabular.known import EXAMPLES


def normal_ratio(x, y, rho):
    """log p(x, y) / (p(x) p(y)) by torch.distributions, of the coordinates that are correlated."""
    joint = torch.distributions.MultivariateNormal(
        torch.zeros(2).double(), torch.tensor([[1, rho], [rho, 1]]).double()
    )
    alone = torch.distributions.Normal(0, 1)
    return joint.log_prob(torch.stack([x, y], -1)) - alone.log_prob(x) - alone.log_prob(y)


RATIOS = {
    "normal_1x1": lambda x, y: normal_ratio(x, y, 0.75).sum(1),
    "sparse_5x5": lambda x, y: normal_ratio(x[:, :2], y[:, :2], 0.8).sum(1),
    "discrete_uniform_4": lambda x, y: (
        -(sum((y >= k) & (y <= k + 2) for k in range(4)) / 4).log()[:, 0]
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_information_is_the_mean_log_ratio_of_the_draws(name):
    information, draw = EXAMPLES[name]
    x, y = draw(20_000, generator())
    assert x.shape == y.shape and x.dtype == y.dtype == torch.float64
    assert z_score(RATIOS[name](x, y), information) < 4
