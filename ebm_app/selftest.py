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
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ebm_app.energy import TimeScoreEnergy
from ebm_app.estimators import FlowDensity
from ebm_app.log_z import LogZ, from_forward
from ebm_app.numerics import standard_error, sum_except_batch
from ebm_app.pf_ode import clock_grid

#: allowances in bits per dim: of the mean time score summed over the clock, of the quadrature, and
#: of the disagreement of the integral and the flow
BALANCE, REFINEMENT, FLOW = 0.1, 0.005, 0.05


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


def balance(
    energy: TimeScoreEnergy, x1: Tensor, num_times: int, generator: torch.Generator
) -> Balance:
    """E_{p_t}[s] over a grid of times, on data ``x1`` (B, *) of the path's space."""
    path = energy.path
    times = clock_grid(path, energy.start, energy.end, num_times + 2)[1:-1]
    scale = path.time_score_variance(times).rsqrt() / x1[0].numel()
    means, errors = [], []
    for t, unit in zip(times, scale, strict=True):
        x0 = torch.randn(x1.shape, generator=generator, device=x1.device, dtype=x1.dtype)
        time = t.expand(len(x1)).to(x1.device)
        with torch.no_grad():
            score = energy.model.time_score(path.sample(x0, x1, time).xt, time).double() * unit
        means.append(score.mean().cpu())
        errors.append(standard_error(score).cpu())
    shares = torch.linspace(0, 1, num_times + 2)[1:-1].double()
    return Balance(shares, torch.stack(means), torch.stack(errors))


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


def refinement_check(energy: TimeScoreEnergy, x: Tensor) -> Check:
    """The default rule against one of four times as many nodes, on held-out points (B, *)."""
    fine = energy.with_nodes(4 * energy.num_nodes)
    change = (energy.log_ratio(x).value - fine.log_ratio(x).value) / _scale(x)
    note = f"{energy.num_nodes} against {fine.num_nodes} nodes, root mean square"
    value = change.square().mean().sqrt().item()
    return _check("quadrature", value, 0.0, REFINEMENT, "bits per dim", note)


def flow_check(energy: TimeScoreEnergy, x: Tensor, flow: FlowDensity) -> Check:
    """Ratio integral less flow density, on held-out points (B, *)."""
    density = sum_except_batch(energy.reference(x)) + energy.log_ratio(x).value
    gap = (flow(energy, x, energy.end).value - density) / _scale(x)
    return _check(
        "ratio against flow",
        gap.mean().item(),
        standard_error(gap).item(),
        FLOW,
        "bits per dim",
        "bits by the ratio less bits by the flow",
    )


def as_record(check: Check) -> dict[str, Any]:
    """A check as JSON, without the figures of one that was not made."""
    return {
        key: value
        for key, value in check._asdict().items()
        if not (isinstance(value, float) and math.isnan(value))
    }


def _scale(x: Tensor) -> float:
    return x[0].numel() * math.log(2)


def _check(
    name: str, value: float, stderr: float, allowance: float, unit: str, note: str
) -> Check:
    passed = abs(value) <= allowance + 3 * stderr
    return Check(name, value, stderr, allowance, unit, passed, note)
