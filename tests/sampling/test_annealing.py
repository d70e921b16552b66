"""The annealing loop: importance weights, transports and adapted steps."""

import math

import pytest
import torch
from exact import F64, generator, normal, target_of, z_score

from ebm_app.sampling.hmc import IntermediateDistribution, anneal, stay
from ebm_app.utils.tensors import standard_normal_log_density, sum_except_batch

SHAPE = (1, 2, 2)
STEP = torch.tensor(0.3, dtype=F64)
#: Mean, standard deviation and log Z of each distribution
GAUSSIANS = [(0.5, 0.8, 0.3), (1.0, 0.5, -1.0), (2.0, 0.2, 0.7)]


def gaussian(mean, std, log_z=0.0):
    """Return log N(mean, std^2 I) + log_z as a target."""
    return target_of(
        lambda x: (
            log_z + sum_except_batch(standard_normal_log_density((x - mean) / std) - math.log(std))
        )
    )


def affine(scale, shift):
    def move(x, generator):
        log_det = torch.full((len(x),), x[0].numel() * math.log(abs(scale)), dtype=F64)
        return scale * x + shift, log_det

    return move


def log_weight(x0, distributions):
    """Return the importance weights of the module docstring, and the chains at the end."""
    total = -sum_except_batch(standard_normal_log_density(x0))
    for record in anneal(x0, distributions, 3, generator(2)):
        total += record.log_ratio - record.entry.potential + record.state.potential
    return total - record.state.potential, record.state.position


def distributions(num_steps, transports):
    return [
        IntermediateDistribution(gaussian(*moments), moments[1] * STEP, num_steps, move)
        for moments, move in zip(GAUSSIANS, transports, strict=True)
    ]


@pytest.mark.parametrize("num_steps", [0, 3])
def test_weights_correct_an_inexact_transport(num_steps):
    near = [affine(1.05 * 0.8, 0.45), affine(0.65, 0.6), affine(0.42, 1.6)]
    weight, x = log_weight(normal((6000, *SHAPE)), distributions(num_steps, near))
    ratio = (weight - GAUSSIANS[-1][2]).exp()
    assert z_score(ratio[:, None], 1.0) < 4 and ratio.std() > 0.1
    residual = (x - 2.0).flatten(1)
    assert z_score(ratio[:, None] * residual) < 4.5
    assert z_score(ratio[:, None] * residual.square(), 0.04) < 4.5


def test_scales_are_inherited_by_later_distributions():
    """A scale per chain, doubled after every transition of the first two distributions."""
    first, second, third = distributions(2, [stay] * 3)
    first, second = (one._replace(adapt=lambda s, a: 2 * s) for one in (first, second))
    scale = torch.tensor([0.1, 0.2], dtype=F64)
    records = list(anneal(normal((2, 3)), [first, second, third], 1, generator(), scale))
    for record, factor in zip(records, (4 * 0.8, 16 * 0.5, 16 * 0.2), strict=True):
        assert torch.allclose(record.step_size, factor * scale * STEP)
        assert record.nfe == 3 and 0 <= record.acceptance <= 1
    tiny = [IntermediateDistribution(gaussian(1.5, 0.5), STEP, 1)]
    x0, scale = normal((20, *SHAPE)), torch.tensor([1e-6, 1.0], dtype=F64).repeat(10)
    (record,) = anneal(x0, tiny, 2, generator(), scale)
    distance = (record.state.position - x0).flatten(1).norm(dim=1)
    assert distance[::2].max() < 1e-4 < distance[1::2].mean()
