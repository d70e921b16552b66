r"""Identities that every exact model of a time score satisfies, checked on a model at hand.

- E_{p_t}[s(x, t)] = 0 for every t, s = d/dt log p_t: measured on held-out data carried to time t
  by the path, in units of the clock, in which one component of s has unit scale.
- E_{p_0}[p_1(x) / p_0(x)] = 1: importance sampling from noise. In many dimensions a few draws
  carry all the weight; the check is then skipped.
- The noise that a Stein head predicts is of the right size (see ``noise_balance``).
- A finer quadrature changes nothing.
- The ratio integral equals the density of the model's probability-flow ODE, on average over
  held-out images.

A check passes where its value is 0 within a stated allowance and three standard errors.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.evaluation.checks import UNIT, Check, judge, skip
from ebm_app.evaluation.log_z.estimates import LogZ, from_forward
from ebm_app.evaluation.noise_balance import noise_check, noise_excess
from ebm_app.image_models.ebm import EBM
from ebm_app.io.errors import UserError
from ebm_app.likelihood import PFODEDensity, RatioIntegral
from ebm_app.likelihood.dequantisation import dequantisation_noise
from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.numerics.tensors import standard_error
from ebm_app.paths.clocks import ARC_LENGTH

#: allowances in bits per dim: of the mean time score summed over the clock, of the quadrature, and
#: of the disagreement of the integral and the probability-flow ODE
BALANCE, REFINEMENT, PF_ODE = 0.1, 0.005, 0.05
#: noise levels at which the predicted noise is taken
NOISE_NODES = 32
#: held-out points taken between two reports
PART = 16


class Balance(NamedTuple):
    """Mean of the time score per unit of the clock and dimension, (T,), and its standard errors
    (T,), at the shares (T,) of the clock; and the mean over these times of every
    image (B,), which a record does not keep."""

    shares: Tensor
    mean: Tensor
    stderr: Tensor
    by_image: Tensor | None = None


@dataclass(frozen=True)
class SelfTestBudget:
    """What a self-test may spend.

    Args:
        num_times: times at which the mean time score is taken. num_reference: draws of N(0, I).
        pf_ode: the density that the integral is compared with. seed: of all other noise.

    Raises:
        UserError: for fewer than two times or draws.
    """

    num_times: int = 32
    num_reference: int = 1000
    pf_ode: PFODEDensity = PFODEDensity()
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what has no standard error."""
        if min(self.num_times, self.num_reference) < 2:
            raise UserError("--num_times and --num_reference must be at least 2")

    def num_reports(self, num_images: int) -> int:
        """How often a self-test on so many images reports."""
        return self.num_times + 2 + 2 * (math.ceil(num_images / PART) + 1)


class SelfTestReport(NamedTuple):
    """A self-test so far: its stage, the mean time scores and the checks."""

    stage: str
    balance: Balance
    checks: tuple[Check, ...]


def iterate_checks(ebm: EBM, levels: Tensor, budget: SelfTestBudget) -> Iterator[SelfTestReport]:
    """All checks on held-out ``levels`` (B, C, H, W), B >= 2: a report after every time, and after
    every few images."""
    energy = ebm.energy
    generator = torch.Generator(ebm.device).manual_seed(budget.seed)
    noise = dequantisation_noise(1, levels, budget.seed)[0].to(ebm.device)
    levels = levels.to(ebm.device)
    x1 = ebm.dequantiser.training_points(levels, ebm.config.num_levels, ebm.space, noise)
    points = ebm.dequantise(levels, noise).y
    shape = (budget.num_reference, *points.shape[1:])
    x0 = torch.randn(shape, generator=generator, device=ebm.device)
    for found in iterate_balance(energy, x1, budget.num_times, generator):
        yield SelfTestReport(f"time {len(found.mean)} of {budget.num_times}", found, ())
    checks = (balance_check(energy, found), reference_check(energy, x0)[0])
    yield SelfTestReport("reference", found, checks)
    if energy.is_head(None):
        checks += (noise_check(noise_excess(energy, x1, NOISE_NODES, generator)),)
    yield SelfTestReport("predicted noise", found, checks)
    for name, differ, check in (
        ("finer nodes", refinement, refinement_check),
        ("pf_ode", lambda energy, x: pf_ode_gap(energy, x, budget.pf_ode), pf_ode_check),
    ):
        changes = []
        for part in points.split(PART):
            changes.append(differ(energy, part))
            done = sum(map(len, changes))
            yield SelfTestReport(f"{name}: image {done} of {len(points)}", found, checks)
        checks += (check(energy, torch.cat(changes)),)
        yield SelfTestReport(f"{name}: done", found, checks)


def iterate_balance(
    energy: TimeScoreEnergy, x1: Tensor, num_times: int, generator: torch.Generator
) -> Iterator[Balance]:
    """E_{p_t}[s] at one time after the other of a grid, on data ``x1`` (B, *) of the path's
    space."""
    path = energy.path
    times = ARC_LENGTH.grid(path, energy.start, energy.end, num_times + 2)[1:-1]
    shares = torch.linspace(0, 1, num_times + 2)[1:-1].double()
    scale = path.time_score_variance(times).rsqrt() / x1[0].numel()
    means, errors, total = [], [], torch.zeros(len(x1), dtype=torch.float64)
    for t, unit in zip(times, scale, strict=True):
        x0 = torch.randn(x1.shape, generator=generator, device=x1.device, dtype=x1.dtype)
        time = t.expand(len(x1)).to(x1.device)
        with torch.no_grad():
            score = energy.model.time_score(path.sample(x0, x1, time).xt, time).double() * unit
        if not score.isfinite().all():
            raise UserError(
                f"the time score is not finite at t = {t.item()}: the training of the model has "
                "diverged"
            )
        means.append(score.mean().cpu())
        errors.append(standard_error(score).cpu())
        total = total + score.cpu()
        done = len(means)
        yield Balance(shares[:done], torch.stack(means), torch.stack(errors), total / done)


def balance_check(energy: TimeScoreEnergy, found: Balance) -> Check:
    """The mean time score, integrated over the clock: what log Z would be off by. The same images
    are taken at all times, so that the standard error is that over images."""
    ends = torch.tensor([energy.start, energy.end], dtype=torch.float64)
    length = (energy.path.clock(ends)[1] - energy.path.clock(ends)[0]).item() / math.log(2)
    value = found.mean.mean().item() * length
    stderr = standard_error(found.by_image).item() * length
    return judge("mean time score", value, stderr, BALANCE, UNIT, "summed over the clock")


def reference_check(energy: TimeScoreEnergy, x0: Tensor) -> tuple[Check, LogZ]:
    """E_{p_0}[p_1/p_0] = 1 on draws ``x0`` (N, *) of N(0, I), in bits per dim of log Z; skipped
    where its error is larger than what is allowed."""
    estimate, scale = from_forward(energy.log_ratio(x0).value.cpu()), _bits_scale(x0)
    name, note = "E[p_1/p_0]", f"ESS {estimate.ess:.1f} of {estimate.num}"
    if not estimate.stderr / scale <= BALANCE:
        return skip(name, f"{note}: too few to say anything, see python evaluate/ais.py"), estimate
    check = judge(name, estimate.log_z / scale, estimate.stderr / scale, BALANCE, UNIT, note)
    return check, estimate


def refinement(energy: TimeScoreEnergy, x: Tensor) -> Tensor:
    """By how much four times as many nodes change the log ratio (B,) at held-out points (B, *), in
    bits per dim."""
    fine = energy.with_nodes(4 * energy.num_nodes)
    return (energy.log_ratio(x).value - fine.log_ratio(x).value) / _bits_scale(x)


def refinement_check(energy: TimeScoreEnergy, changes: Tensor) -> Check:
    """The default rule against one of four times as many nodes, by the changes (B,)."""
    note = f"{energy.num_nodes} against {4 * energy.num_nodes} nodes, root mean square"
    value = changes.square().mean().sqrt().item()
    return judge("quadrature", value, 0.0, REFINEMENT, UNIT, note)


def pf_ode_gap(energy: TimeScoreEnergy, x: Tensor, pf_ode: PFODEDensity) -> Tensor:
    """Bits per dim (B,) by the ratio integral less those by the probability-flow ODE, on held-out
    points (B, *)."""
    ratio = RatioIntegral()(energy, x, energy.end).value
    return (pf_ode(energy, x, energy.end).value - ratio) / _bits_scale(x)


def pf_ode_check(energy: TimeScoreEnergy, gaps: Tensor) -> Check:
    """The ratio integral against the density of the probability-flow ODE, by the gaps (B,)."""
    note = "bits by the ratio less bits by the probability-flow ODE"
    value, stderr = gaps.mean().item(), standard_error(gaps).item()
    return judge("ratio against pf_ode", value, stderr, PF_ODE, UNIT, note)


def _bits_scale(x: Tensor) -> float:
    """Nats of one bit per dim."""
    return x[0].numel() * math.log(2)
