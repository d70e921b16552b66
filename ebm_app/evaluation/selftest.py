r"""Identities that every exact model of a time score satisfies, checked on a model at hand.

- E_{p_t}[s(x, t)] = 0 for every t, s = d/dt log p_t: measured on held-out data carried to time t
  by the path, in units of the clock, in which one component of s has unit scale.
- E_{p_0}[p_1(x) / p_0(x)] = 1: importance sampling from noise. Hopeless in many dimensions, where
  its effective sample size says so.
- A finer quadrature changes nothing.
- The ratio integral equals the density of the model's own flow, on average over held-out images.

A check passes where its figure is within what its own error and a stated allowance permit.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ebm_app.ebm import EBM
from ebm_app.errors import UserError
from ebm_app.likelihood import PFODEDensity
from ebm_app.likelihood.dequantisation import dequantisation_noise
from ebm_app.log_z.estimates import LogZ, from_forward
from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.numerics import standard_error, sum_except_batch
from ebm_app.probability_flow.ode import clock_grid

#: allowances in bits per dim: of the mean time score summed over the clock, of the quadrature, and
#: of the disagreement of the integral and the flow
BALANCE, REFINEMENT, FLOW = 0.1, 0.005, 0.05
#: held-out points that are scored between two reports
PART = 16


class Check(NamedTuple):
    """One identity: ``value`` should be 0 within ``stderr`` and ``allowance``; in ``unit``."""

    name: str
    value: float
    stderr: float
    allowance: float
    unit: str
    passed: bool
    note: str


class Balance(NamedTuple):
    """Mean of the time score per unit of the clock and dimension, (T,), and its standard errors
    (T,), at the shares (T,) of the clock."""

    shares: Tensor
    mean: Tensor
    stderr: Tensor


@dataclass(frozen=True)
class Budget:
    """What a self-test may spend.

    Args:
        num_times: times at which the mean time score is taken. num_reference: draws of N(0, I).
        flow: the flow that the integral is compared with. seed: of all other noise.

    Raises:
        UserError: for fewer than two times or draws.
    """

    num_times: int = 32
    num_reference: int = 1000
    flow: PFODEDensity = PFODEDensity()
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what has no standard error."""
        if min(self.num_times, self.num_reference) < 2:
            raise UserError("--num_times and --num_reference must be at least 2")

    def num_reports(self, num_images: int) -> int:
        """How often a self-test on so many images reports."""
        return self.num_times + 1 + 2 * (math.ceil(num_images / PART) + 1)


class Report(NamedTuple):
    """How far a self-test has come: what it is at, the mean time scores and the checks so far."""

    stage: str
    balance: Balance
    checks: tuple[Check, ...]


def iterate_checks(ebm: EBM, levels: Tensor, budget: Budget) -> Iterator[Report]:
    """All checks on held-out ``levels`` (B, C, H, W), B >= 2: a report after every time, and after
    every few images that are scored."""
    energy, config = ebm.energy, ebm.config
    generator = torch.Generator(ebm.device).manual_seed(budget.seed)
    noise = dequantisation_noise(1, levels, budget.seed)[0]
    x1 = ebm.dequantiser.training_points(levels, config.num_levels, ebm.space, noise)
    points = ebm.dequantiser.points(
        levels, config.num_levels, ebm.space, noise, energy.path, energy.end
    ).y.to(ebm.device)
    shape = (budget.num_reference, *points.shape[1:])
    x0 = torch.randn(shape, generator=generator, device=ebm.device)
    for found in iterate_balance(energy, x1.to(ebm.device), budget.num_times, generator):
        yield Report(f"time {len(found.mean)} of {budget.num_times}", found, ())
    checks = (balance_check(energy, found), reference_check(energy, x0, points[0].numel())[0])
    yield Report("noise scored", found, checks)
    for name, differ, check in (
        ("finer nodes", refinement, refinement_check),
        ("flow", lambda energy, x: pf_ode_gap(energy, x, budget.flow), pf_ode_check),
    ):
        changes = []
        for change in _in_parts(differ, energy, points):
            changes.append(change)
            done = sum(map(len, changes))
            yield Report(f"{name}: image {done} of {len(points)}", found, checks)
        checks += (check(energy, torch.cat(changes)),)
        yield Report(f"{name}: done", found, checks)


def iterate_balance(
    energy: TimeScoreEnergy, x1: Tensor, num_times: int, generator: torch.Generator
) -> Iterator[Balance]:
    """E_{p_t}[s] at one time after the other of a grid, on data ``x1`` (B, *) of the path's
    space."""
    path = energy.path
    times = clock_grid(path, energy.start, energy.end, num_times + 2)[1:-1]
    shares = torch.linspace(0, 1, num_times + 2)[1:-1].double()
    scale = path.time_score_variance(times).rsqrt() / x1[0].numel()
    means, errors = [], []
    for t, unit in zip(times, scale, strict=True):
        x0 = torch.randn(x1.shape, generator=generator, device=x1.device, dtype=x1.dtype)
        time = t.expand(len(x1)).to(x1.device)
        with torch.no_grad():
            score = energy.model.time_score(path.sample(x0, x1, time).xt, time).double() * unit
        means.append(score.mean().cpu())
        errors.append(standard_error(score).cpu())
        yield Balance(shares[: len(means)], torch.stack(means), torch.stack(errors))


def balance_check(energy: TimeScoreEnergy, found: Balance) -> Check:
    """The mean time score, integrated over the clock: what log Z would be off by."""
    ends = torch.tensor([energy.start, energy.end], dtype=torch.float64)
    length = (energy.path.clock(ends)[1] - energy.path.clock(ends)[0]).item() / math.log(2)
    value = found.mean.mean().item() * length
    stderr = (found.stderr.square().sum().sqrt() / len(found.mean)).item() * length
    return _check(
        "mean time score", value, stderr, BALANCE, "bits per dim", "summed over the clock"
    )


def reference_check(energy: TimeScoreEnergy, x0: Tensor, num_dims: int) -> tuple[Check, LogZ]:
    """E_{p_0}[p_1/p_0] = 1 on draws ``x0`` (N, *) of N(0, I), in bits per dim of log Z.

    Where few draws carry the weight the figure says nothing, and the check is not made.
    """
    estimate = from_forward(energy.log_ratio(x0).value.cpu())
    scale = num_dims * math.log(2)
    note = f"ESS {estimate.ess:.1f} of {estimate.num}"
    if estimate.warnings:
        note += ": too few to say anything, see python evaluate/ais.py"
        return Check("E[p_1/p_0]", math.nan, math.nan, math.nan, "", True, note), estimate
    value, stderr = estimate.log_z / scale, estimate.stderr / scale
    return _check("E[p_1/p_0]", value, stderr, BALANCE, "bits per dim", note), estimate


def refinement(energy: TimeScoreEnergy, x: Tensor) -> Tensor:
    """By how much four times as many nodes change the log ratio (B,) at held-out points (B, *), in
    bits per dim."""
    fine = energy.with_nodes(4 * energy.num_nodes)
    return (energy.log_ratio(x).value - fine.log_ratio(x).value) / _scale(x)


def refinement_check(energy: TimeScoreEnergy, changes: Tensor) -> Check:
    """The default rule against one of four times as many nodes, by the changes (B,)."""
    note = f"{energy.num_nodes} against {4 * energy.num_nodes} nodes, root mean square"
    value = changes.square().mean().sqrt().item()
    return _check("quadrature", value, 0.0, REFINEMENT, "bits per dim", note)


def pf_ode_gap(energy: TimeScoreEnergy, x: Tensor, flow: PFODEDensity) -> Tensor:
    """Bits per dim (B,) by the ratio integral less those by the flow, on held-out points
    (B, *)."""
    density = sum_except_batch(energy.path.reference_log_density(x)) + energy.log_ratio(x).value
    return (flow(energy, x, energy.end).value - density) / _scale(x)


def pf_ode_check(energy: TimeScoreEnergy, gaps: Tensor) -> Check:
    """Ratio integral less flow density, by the gaps (B,)."""
    note = "bits by the ratio less bits by the flow"
    value, stderr = gaps.mean().item(), standard_error(gaps).item()
    return _check("ratio against flow", value, stderr, FLOW, "bits per dim", note)


def describe(check: Check) -> str:
    """A check in one line."""
    if not check.unit:
        return f"--   {check.name:20} {check.note}"
    return (
        f"{'ok  ' if check.passed else 'FAIL'} {check.name:20} {check.value:+.4f} +- "
        f"{check.stderr:.4f} {check.unit}, allowed {check.allowance}; {check.note}"
    )


def as_record(check: Check) -> dict[str, Any]:
    """A check as JSON, without the figures of one that was not made."""
    return {
        key: value
        for key, value in check._asdict().items()
        if not (isinstance(value, float) and math.isnan(value))
    }


def from_record(record: dict[str, Any]) -> Check:
    """The check that :func:`as_record` wrote."""
    unknown = dict.fromkeys(("value", "stderr", "allowance"), math.nan)
    return Check(**unknown | record)


def _in_parts(
    differ: Callable[[TimeScoreEnergy, Tensor], Tensor], energy: TimeScoreEnergy, points: Tensor
) -> Iterator[Tensor]:
    return (differ(energy, part) for part in points.split(PART))


def _scale(x: Tensor) -> float:
    return x[0].numel() * math.log(2)


def _check(
    name: str, value: float, stderr: float, allowance: float, unit: str, note: str
) -> Check:
    passed = abs(value) <= allowance + 3 * stderr
    return Check(name, value, stderr, allowance, unit, passed, note)
