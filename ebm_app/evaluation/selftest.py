r"""Checks, on held-out images, of identities that every exact model satisfies.

- The mean time score E_{p_t}[d/dt log p_t(x)] is 0 at every t. It is estimated on held-out data at
  time t of the path, per unit of arc length, so that one term of the time score has unit variance.
- The noise that a Stein head predicts has the right size (see ``noise_excess``).
- The default estimator agrees on average with the density of the probability flow.

A check passes if its value is 0 within an allowance plus three standard errors.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.ebm import EBM
from ebm_app.likelihood import ESTIMATORS, ProbabilityFlowDensity
from ebm_app.likelihood.bits import to_bits_per_dim
from ebm_app.likelihood.elbo import START
from ebm_app.likelihood.noise import dequantisation_noise
from ebm_app.nets.density import SteinHeadDensity
from ebm_app.nets.protocols import SteinScore, TimeScore, require
from ebm_app.paths.base import ARC_LENGTH
from ebm_app.utils.errors import UserError
from ebm_app.utils.processes import Wrap
from ebm_app.utils.quadrature import rule_on
from ebm_app.utils.tensors import standard_error, sum_except_batch

#: Allowances in bits per dim: for the mean time score integrated over the path, for the predicted
#: noise, and for the difference between the default estimator and the probability flow
BALANCE, PREDICTED_NOISE, FLOW_DIFFERENCE = 0.1, 0.02, 0.05
#: Times at which the mean time score is estimated
NUM_TIMES = 32
#: Quadrature nodes of the predicted noise
NOISE_NODES = 32
#: Images per batch of the density estimators
BATCH_SIZE = 16


class Check(NamedTuple):
    """Result of one check, in bits per dim. ``value`` should be 0 within ``allowance`` plus three
    times its standard error ``stderr``."""

    name: str
    passed: bool
    value: float
    stderr: float
    allowance: float
    note: str


def judge(name: str, values: Tensor, allowance: float, note: str) -> Check:
    """Return the check of a mean over images, from values (B,) in bits per dim."""
    value, stderr = values.double().mean().item(), standard_error(values).item()
    if not (math.isfinite(value) and math.isfinite(stderr)):
        raise UserError(f"The check '{name}' is not finite. The training of the model diverged.")
    return Check(name, abs(value) <= allowance + 3 * stderr, value, stderr, allowance, note)


class Balance(NamedTuple):
    """Mean time score at T times.

    Attributes:
        shares: (T,), shares of the arc length at these times.
        mean: (T,), mean over images in nats per dimension and unit of arc length.
        stderr: (T,), its standard error.
        by_image: (B,), mean over the times for each image.
    """

    shares: Tensor
    mean: Tensor
    stderr: Tensor
    by_image: Tensor


def run_checks(
    ebm: EBM, levels: Tensor, seed: int, wrap: Wrap = iter
) -> tuple[Balance, list[Check]]:
    """Return the mean time score and the results of all checks.

    Args:
        levels: held-out grey levels (B, C, H, W), B >= 2.
        seed: seed of all noise.
        wrap: wraps the times, and then the batches, for a progress bar.
    """
    density = require(ebm.density, TimeScore, "the self-test")
    generator = torch.Generator(ebm.device).manual_seed(seed)
    noise = dequantisation_noise(1, levels, seed)[0].to(ebm.device)
    levels = levels.to(ebm.device)
    x1 = ebm.dequantiser.training_points(levels, ebm.cells, noise)
    balance = mean_time_score(density, x1, NUM_TIMES, generator, wrap)
    ends = torch.tensor([density.start, density.end], dtype=torch.float64)
    start, end = density.path.arc_length(ends).tolist()
    # error of log Z in bits; per image, because all times share the same images
    bits = balance.by_image * (end - start) / math.log(2)
    checks = [judge("mean time score", bits, BALANCE, "integrated over the path")]
    if isinstance(density, SteinHeadDensity):
        note = "excess of the path integral over the bound; positive if the noise is too large"
        excess = noise_excess(density, x1, NOISE_NODES, generator)
        checks.append(judge("predicted noise", excess, PREDICTED_NOISE, note))
    default, flow = ESTIMATORS[ebm.default_estimator](), ProbabilityFlowDensity(seed=seed)
    gaps = []
    for batch in wrap(ebm.dequantise(levels, noise).y.split(BATCH_SIZE)):
        values = [estimator(density, batch, density.end).value for estimator in (default, flow)]
        gaps.append(to_bits_per_dim((values[0] - values[1]).cpu(), batch[0].numel()))
    name, note = f"{ebm.default_estimator} against probability_flow", "first minus second"
    checks.append(judge(name, torch.cat(gaps), FLOW_DIFFERENCE, note))
    return balance, checks


@torch.no_grad()
def mean_time_score(
    density: TimeScore, x1: Tensor, num_times: int, generator: torch.Generator, wrap: Wrap = iter
) -> Balance:
    """Estimate E_{p_t}[d/dt log p_t] at times evenly spaced in arc length, on data ``x1`` (B, *)
    in the space of the path."""
    path, scores = density.path, []
    times = ARC_LENGTH.times(path, density.start, density.end, num_times + 1)[1:-1]
    for t in wrap(times):
        x0 = torch.randn(x1.shape, generator=generator, device=x1.device, dtype=x1.dtype)
        time = t.expand(len(x1)).to(x1.device)
        scores.append(density.time_score(path.sample(x0, x1, time).xt, time).cpu())
    scale = path.time_score_variance(times).rsqrt() / x1[0].numel()
    table = torch.stack(scores) * scale[:, None]
    shares = torch.linspace(0, 1, num_times + 2)[1:-1].double()
    stderr = torch.stack([standard_error(row) for row in table])
    return Balance(shares, table.mean(1), stderr, table.mean(0))


@torch.no_grad()
def noise_excess(
    density: SteinScore, x1: Tensor, num_nodes: int, generator: torch.Generator
) -> Tensor:
    r"""Return 1/2 int E[e_s . (e_s - e)] dl for points ``x1`` (B, *) in the space of the path.

    The integral is (B,) float64, in bits per dim, with one draw of e per node.

    At x_t = alpha_t x_1 + sqrt(v_t) e an exact head predicts e_s = E[e | x_t], so the integrand is
    0 at every l = log(alpha_t^2 / v_t). The integral is the excess of the path integral over the
    variational bound if the predicted variance is right. The training loss is less sensitive: a
    head that is too large by a factor 1 + q adds q^2 to the loss, but q to this integral. l starts
    where that of the bound does, because there is no signal at t = 0.

    >>> from ebm_app import EBM
    >>> density = EBM.from_pretrained("digits").density
    >>> noise_excess(density, torch.zeros(2, 1, 8, 8), 4, torch.Generator()).shape
    torch.Size([2])
    """
    path = density.path
    first = max(density.start, START)
    ends = torch.tensor([first, density.end], dtype=torch.float64)
    rule = rule_on(num_nodes, *(2 * path.alpha(ends).log() - path.variance(ends).log()).tolist())
    total = torch.zeros(len(x1), dtype=torch.float64, device=x1.device)
    for l_node, weight in zip(rule.nodes.tolist(), rule.weights.tolist(), strict=True):
        t = path.time_of_ratio(math.exp(-l_node / 2))
        time = torch.tensor(t, dtype=torch.float64)
        deviation = path.variance(time).sqrt().item()
        e = torch.randn(x1.shape, generator=generator, device=x1.device, dtype=x1.dtype)
        score = density.score(path.alpha(time).item() * x1 + deviation * e, t)
        predicted = -deviation * score.double()
        total += weight / 2 * sum_except_batch(predicted * (predicted - e))
    return to_bits_per_dim(-total.cpu(), x1[0].numel())
