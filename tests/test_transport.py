"""Annealing: transports between distributions, distributions without transitions, the pilot."""

import math

import pytest
import torch
from exact import F64, generator, normal, z_score

from ebm_app.numerics.tensors import standard_normal_log_density, sum_except_batch
from ebm_app.sampling import hmc
from ebm_app.sampling.annealing import IntermediateDistribution, anneal, pilot, stay

SHAPE = (1, 2, 2)
STEP = torch.tensor(0.3, dtype=F64)


def gaussian(mean, std, log_z=0.0):
    """log N(mean, std^2 I) + log_z as a target."""

    def log_density(x):
        part = standard_normal_log_density((x - mean) / std) - math.log(std)
        return sum_except_batch(part) + log_z

    return hmc.target_from_log_density(log_density)


def affine(scale, shift):
    def move(x, generator):
        log_det = torch.full((len(x),), x[0].numel() * math.log(abs(scale)), dtype=F64)
        return scale * x + shift, log_det

    return move


def log_weight(x0, given, num_leapfrog_steps=3, seed=2):
    """The importance weight of the module's docstring, and the chains at the end."""
    total, before = 0.0, sum_except_batch(standard_normal_log_density(x0))
    for result in anneal(x0, given, num_leapfrog_steps, generator(seed)):
        total = total + result.entry_log_density + result.log_ratio - before
        before = result.state.log_density
    return total, result.state.position


#: mean, standard deviation and log Z of each distribution
GAUSSIANS = [(0.5, 0.8, 0.3), (1.0, 0.5, -1.0), (2.0, 0.2, 0.7)]


def distributions(num_steps, transports):
    targets = [gaussian(*moments) for moments in GAUSSIANS]
    return [
        IntermediateDistribution(target, std * STEP, num_steps, move)
        for target, (_, std, _), move in zip(targets, GAUSSIANS, transports, strict=True)
    ]


def exact_transports():
    gaussians = [(0.0, 1.0, 0.0), *GAUSSIANS]
    for (mean, std, _), (next_mean, next_std, _) in zip(
        gaussians[:-1], gaussians[1:], strict=True
    ):
        yield affine(next_std / std, next_mean - next_std / std * mean)


@pytest.mark.parametrize("num_steps", [0, 2])
def test_an_exact_transport_gives_every_chain_the_weight_z(num_steps):
    weight, x = log_weight(normal((50, *SHAPE)), distributions(num_steps, exact_transports()))
    assert torch.allclose(weight, torch.full_like(weight, GAUSSIANS[-1][2]), rtol=0, atol=1e-10)
    assert z_score((x - 2.0).flatten(1)) < 4.5


@pytest.mark.parametrize("num_steps", [0, 3])
def test_a_transport_that_is_only_nearly_right_is_weighed_for_it(num_steps):
    near = [affine(1.05 * 0.8, 0.45), affine(0.65, 0.6), affine(0.42, 1.6)]
    weight, x = log_weight(normal((6000, *SHAPE)), distributions(num_steps, near))
    ratio = (weight - GAUSSIANS[-1][2]).exp()
    assert z_score(ratio[:, None], 1.0) < 4 and ratio.std() > 0.1
    residual = (x - 2.0).flatten(1)
    assert z_score(ratio[:, None] * residual) < 4.5
    assert z_score(ratio[:, None] * residual.square(), 0.04) < 4.5


def test_a_distribution_without_transitions_is_read_and_no_more():
    x0, g = normal((5, *SHAPE)), generator()
    before = g.get_state()
    target, moved = gaussian(1.0, 0.5), affine(0.5, 1.0)
    (result,) = anneal(x0, [IntermediateDistribution(target, STEP, 0, moved)], 3, g)
    assert torch.equal(result.state.position, 0.5 * x0 + 1.0)
    assert torch.equal(result.entry_log_density, target.log_density(result.state.position))
    assert torch.equal(result.state.log_density, result.entry_log_density)
    assert result.acceptance.isnan() and result.nfe == 1
    assert torch.allclose(
        result.log_ratio, torch.full((5,), x0[0].numel() * math.log(0.5)).double()
    )
    assert torch.equal(g.get_state(), before)


def test_the_pilot_takes_the_median_of_its_chains():
    """Two chains in five lie where every proposal is refused; their scales go to nothing, and the
    step found is that of the others."""

    def log_density(x):
        wall = torch.where(x[:, 0].abs() < 50, 0.0, -1e12 * (x[:, 0] - 100).square())
        return sum_except_batch(standard_normal_log_density(x.clamp(-50, 50))) + wall

    target = hmc.Target(log_density, lambda x: -x.clamp(-50, 50))
    given, free = [IntermediateDistribution(target, STEP, 150)], normal((60, 3))
    stuck = torch.cat([free, normal((40, 3), 1) + torch.tensor([100.0, 0, 0], dtype=F64)])
    stuck[60:, 0] = 100.0
    alone, mixed = (next(pilot(x, given, 1, generator(3))) for x in (free, stuck))
    assert mixed.acceptance < 0.85 * alone.acceptance
    assert mixed.step_size.item() == pytest.approx(alone.step_size.item(), rel=0.3)
    assert alone.step_size.item() > 2 * STEP.item()


def test_scales_start_where_they_are_told_and_end_as_the_controller_says():
    """One of each chain, doubled after every transition, over two distributions."""
    given, scale = distributions(2, [stay] * 3)[:2], torch.tensor([0.1, 0.2], dtype=F64)
    results = list(anneal(normal((2, 3)), given, 1, generator(), lambda s, a: 2 * s, scale))
    assert torch.allclose(results[0].step_size, 4 * scale * 0.8 * STEP)
    assert torch.allclose(results[1].step_size, 16 * scale * 0.5 * STEP)
