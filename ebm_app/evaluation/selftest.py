r"""Identities that every exact model of a time score satisfies, checked on a model at hand.

- E_{p_t}[s(x, t)] = 0 for every t, s = d/dt log p_t: measured on held-out data carried to time t
  by the path, in units of the clock, in which one component of s has unit scale.
- The noise that a Stein head predicts is of the right size (see ``noise_excess``).
- The density of the estimator that leads equals that of the model's probability-flow ODE, on
  average over held-out images.

A check passes where its value is 0 within a stated allowance and three standard errors.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.ebm import EBM
from ebm_app.likelihood import ESTIMATORS, ProbabilityFlowDensity, VariationalBound
from ebm_app.likelihood.bits import to_bits_per_dim
from ebm_app.likelihood.dequantisation import dequantisation_noise
from ebm_app.nets.protocols import JointScore, SteinScore, TimeScore, require
from ebm_app.paths.schedules import ARC_LENGTH
from ebm_app.utils.errors import UserError
from ebm_app.utils.quadrature import rule_on
from ebm_app.utils.tensors import standard_error, sum_except_batch

#: allowances in bits per dim: of the mean time score summed over the clock, of the predicted
#: noise, and of the disagreement of the leading estimator and the probability-flow ODE
BALANCE, PREDICTED_NOISE, PF_ODE = 0.1, 0.02, 0.05
#: noise levels at which the predicted noise is taken
NOISE_NODES = 32
#: held-out points taken between two reports
PART = 16


class Check(NamedTuple):
    """One identity: ``value`` should be 0 within ``allowance`` and three times ``stderr``, all in
    bits per dim."""

    name: str
    passed: bool
    value: float
    stderr: float
    allowance: float
    note: str

    def describe(self) -> str:
        """In one line."""
        return (
            f"{'passed' if self.passed else 'FAILED':8}{self.name:20} {self.value:+.4f} ± "
            f"{self.stderr:.4f} bits per dim, allowed {self.allowance} and 3 errors; {self.note}"
        )


def judge(name: str, values: Tensor, allowance: float, note: str) -> Check:
    """The check of the mean over images of values (B,).

    Raises:
        UserError: where it is not finite.
    """
    value, stderr = values.double().mean().item(), standard_error(values).item()
    if not (math.isfinite(value) and math.isfinite(stderr)):
        raise UserError(f"{name}: not finite, the training of the model has diverged")
    return Check(name, abs(value) <= allowance + 3 * stderr, value, stderr, allowance, note)


class Balance(NamedTuple):
    """Mean of the time score per unit of the clock and dimension, (T,), and its standard errors
    (T,), at the shares (T,) of the clock; and the mean over these times of every image (B,)."""

    shares: Tensor
    mean: Tensor
    stderr: Tensor
    by_image: Tensor


def num_reports(num_times: int, num_images: int) -> int:
    """How often ``iterate_checks`` reports."""
    return num_times + math.ceil(num_images / PART) + 1


def iterate_checks(
    ebm: EBM, levels: Tensor, num_times: int, pf_ode: ProbabilityFlowDensity, seed: int
) -> Iterator[tuple[Balance, list[Check]]]:
    """All checks on held-out ``levels`` (B, C, H, W), B >= 2: the mean time scores so far after
    every time and every few images, and at the end the checks too.

    Args:
        num_times: times at which the mean time score is taken.
        pf_ode: the density that the leading estimator is compared with.
        seed: of all other noise.
    """
    energy = require(ebm.density, TimeScore, "the self-test")
    generator = torch.Generator(ebm.device).manual_seed(seed)
    noise = dequantisation_noise(1, levels, seed)[0].to(ebm.device)
    levels = levels.to(ebm.device)
    x1 = ebm.dequantiser.training_points(levels, ebm.config.num_levels, ebm.space, noise)
    points = ebm.dequantise(levels, noise).y
    for found in iterate_balance(energy, x1, num_times, generator):
        yield found, []
    checks = [balance_check(energy, found)]
    if isinstance(energy, JointScore):
        note = "the integral along noisy copies less the bound; more if the noise is too large"
        excess = noise_excess(energy, x1, NOISE_NODES, generator)
        checks.append(judge("predicted noise", excess, PREDICTED_NOISE, note))
    leading, gaps = ESTIMATORS[ebm.default_estimator](), []
    for part in points.split(PART):
        gap = leading(energy, part, energy.end).value - pf_ode(energy, part, energy.end).value
        gaps.append(to_bits_per_dim(gap.cpu(), part[0].numel()))
        yield found, []
    note = "bits by the first less bits by the probability-flow ODE"
    checks.append(judge(f"{ebm.default_estimator} against pf_ode", torch.cat(gaps), PF_ODE, note))
    yield found, checks


def iterate_balance(
    energy: TimeScore, x1: Tensor, num_times: int, generator: torch.Generator
) -> Iterator[Balance]:
    """E_{p_t}[s] at one time after the other of a grid, on data ``x1`` (B, *) of the path's
    space."""
    path = energy.path
    times = ARC_LENGTH.times(path, energy.start, energy.end, num_times + 1)[1:-1]
    shares = torch.linspace(0, 1, num_times + 2)[1:-1].double()
    scale = path.time_score_variance(times).rsqrt() / x1[0].numel()
    scores: list[Tensor] = []
    for t, unit in zip(times, scale, strict=True):
        x0 = torch.randn(x1.shape, generator=generator, device=x1.device, dtype=x1.dtype)
        time = t.expand(len(x1)).to(x1.device)
        with torch.no_grad():
            score = energy.time_score(path.sample(x0, x1, time).xt, time) * unit
        scores.append(score.cpu())
        table = torch.stack(scores)
        stderr = torch.stack([standard_error(row) for row in table])
        yield Balance(shares[: len(scores)], table.mean(1), stderr, table.mean(0))


def balance_check(energy: TimeScore, found: Balance) -> Check:
    """The mean time score, integrated over the clock: what log Z would be off by. The same images
    are taken at all times, so that the standard error is that over images."""
    ends = energy.path.arc_length(torch.tensor([energy.start, energy.end], dtype=torch.float64))
    length = (ends[1] - ends[0]).item() / math.log(2)
    return judge("mean time score", found.by_image * length, BALANCE, "summed over the clock")


@torch.no_grad()
def noise_excess(
    energy: SteinScore, x1: Tensor, num_nodes: int, generator: torch.Generator
) -> Tensor:
    r"""1/2 int E[e_s . (e_s - e)] dl of every point ``x1`` (B, *) of the path's space, by one draw
    of e at each node: (B,) float64, in bits per dim.

    At x_t = alpha_t x_1 + sqrt(v_t) e an exact head gives e_s = E[e | x_t], so that the integrand
    is 0 at every l = log(alpha_t^2 / v_t). By this integral the one along noisy copies of the data
    lies above the variational bound, where the predicted variance is right. The loss hardly sees
    it: a head that is too large by a share q adds q^2 to the loss, and q to the integral. At t = 0
    there is no signal; l begins where that of the bound does.

    >>> from ebm_app import EBM
    >>> energy = EBM.from_pretrained("digits").density
    >>> noise_excess(energy, torch.zeros(2, 1, 8, 8), 4, torch.Generator()).shape
    torch.Size([2])
    """
    path = energy.path
    first = max(energy.start, VariationalBound.start)
    ends = torch.tensor([first, energy.end], dtype=torch.float64)
    rule = rule_on(num_nodes, *(2 * path.alpha(ends).log() - path.variance(ends).log()).tolist())
    total = torch.zeros(len(x1), dtype=torch.float64, device=x1.device)
    for l_node, weight in zip(rule.nodes.tolist(), rule.weights.tolist(), strict=True):
        t = path.time_of_ratio(math.exp(-l_node / 2))
        time = torch.tensor(t, dtype=torch.float64)
        deviation = path.variance(time).sqrt().item()
        e = torch.randn(x1.shape, generator=generator, device=x1.device, dtype=x1.dtype)
        score = energy.score(path.alpha(time).item() * x1 + deviation * e, t)
        predicted = -deviation * score.double()
        total += weight / 2 * sum_except_batch(predicted * (predicted - e))
    return to_bits_per_dim(-total.cpu(), x1[0].numel())
