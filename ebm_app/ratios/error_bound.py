r"""Terms of the paper's error bound (arXiv:2502.02300, Theorem 4), for pairs of known densities.

The integral of the time score s(x, t) over t is approximated by the mean of a learned one s' at K
equidistant times t_i. The learned density p'_1 then satisfies

    KL(p_1, p'_1)^2 <= E_{p_1} L(x)^2 / (2 K^2)  +  2 E_{p_1, t_i} (s(x, t) - s'(x, t))^2,

where L(x) is the Lipschitz constant of s(x, .) in t. All terms are in nats^2.
"""

import torch
from torch import Tensor

from ebm_app.paths import GaussianPath
from ebm_app.ratios.densities import DensityPair
from ebm_app.ratios.methods import NUM_NODES, TimeScoreRatio
from ebm_app.utils.quadrature import rule_on

#: Intervals in t over which the Lipschitz constant is the largest difference quotient
NUM_INTERVALS = 500


def discretisation_term(
    pair: DensityPair, path: GaussianPath, x: Tensor, num_times: int = NUM_NODES
) -> float:
    """Return the first term of the bound, at points x (N, D) of p_1 and for K = ``num_times``."""
    t = torch.linspace(*path.interval(0.0), NUM_INTERVALS + 1, dtype=torch.float64)
    scores = torch.stack([pair.time_score(path, x, time) for time in t])
    quotients = scores.diff(dim=0).abs() / t.diff()[:, None]
    return quotients.amax(0).square().mean().item() / (2 * num_times**2)


@torch.no_grad()
def time_score_error(ratio: TimeScoreRatio, pair: DensityPair, x: Tensor) -> float:
    """Return the mean squared error of the time score over points x (N, D) of p_1 and uniform
    times. Twice this value is the second term of the bound."""
    model = ratio.model
    rule = rule_on(NUM_NODES, *model.interval)
    squares = [
        (ratio.time_score(x, t) - pair.time_score(model.path, x, t)).square().mean()
        for t in rule.nodes
    ]
    return (torch.stack(squares).cpu() @ rule.weights / rule.weights.sum()).item()
