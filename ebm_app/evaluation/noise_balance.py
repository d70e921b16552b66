r"""Whether the noise that a Stein head predicts is neither too large nor too small.

At x_t = alpha_t x_1 + sqrt(v_t) e an exact head gives e_s = E[e | x_t], so that at every t

    E[e_s . (e_s - e)] = 0.

By half its integral over l = log(alpha_t^2 / v_t) the integral along noisy copies of the data lies
above the variational bound, where the predicted variance is right. The loss hardly sees it: a head
that is too large by a share q adds q^2 to the loss, and q to the integral.
"""

import math

import torch
from torch import Tensor

from ebm_app.evaluation.checks import UNIT, Check, judge
from ebm_app.likelihood import VariationalBound
from ebm_app.likelihood.bits import to_bits_per_dim
from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.numerics.quadrature import rule_on
from ebm_app.numerics.tensors import standard_error, sum_except_batch

#: allowance in bits per dim
PREDICTED_NOISE = 0.02


@torch.no_grad()
def noise_excess(
    energy: TimeScoreEnergy, x1: Tensor, num_nodes: int, generator: torch.Generator
) -> Tensor:
    """1/2 int E[e_s . (e_s - e)] dl of every point ``x1`` (B, *) of the path's space, by one draw
    of e at each node: (B,) float64, in bits per dim. At t = 0 there is no signal; the integral
    over l begins where that of the bound does.

    >>> from ebm_app import EBM
    >>> energy = EBM.from_pretrained("digits").energy
    >>> noise_excess(energy, torch.zeros(2, 1, 8, 8), 4, torch.Generator()).shape
    torch.Size([2])
    """
    path = energy.path
    ends = torch.tensor(
        [max(energy.start, VariationalBound.start), energy.end], dtype=torch.float64
    )
    first, last = (2 * path.alpha(ends).log() - path.variance(ends).log()).tolist()
    rule = rule_on(num_nodes, first, last)
    total = torch.zeros(len(x1), dtype=torch.float64, device=x1.device)
    for l_node, weight in zip(rule.nodes.tolist(), rule.weights.tolist(), strict=True):
        t = path.time_of_ratio(math.exp(-l_node / 2))
        time = torch.tensor(t, dtype=torch.float64)
        deviation = path.variance(time).sqrt().item()
        e = torch.randn(x1.shape, generator=generator, device=x1.device, dtype=x1.dtype)
        score = energy.output(path.alpha(time).item() * x1 + deviation * e, t).score
        predicted = -deviation * score.double()
        total += weight / 2 * sum_except_batch(predicted * (predicted - e))
    return to_bits_per_dim(-total.cpu(), x1[0].numel())


def noise_check(excess: Tensor) -> Check:
    """The mean of ``noise_excess`` (B,)."""
    note = "by which the integral along noisy copies exceeds the bound; more if it is too large"
    value, stderr = excess.mean().item(), standard_error(excess).item()
    return judge("predicted noise", value, stderr, PREDICTED_NOISE, UNIT, note)
