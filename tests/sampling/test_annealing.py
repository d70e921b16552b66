"""The annealing loop: importance weights, transports and adapted steps."""

import math

import pytest
import torch
from exact import F64, generator, normal, target_of, z_score

from ebm_app.sampling.annealing import IntermediateDistribution, anneal, stay
from ebm_app.utils.tensors import standard_error, standard_normal_log_density, sum_except_batch

SHAPE = (1, 2, 2)
STEP = torch.tensor(0.3, dtype=F64)
# Mean, standard deviation and log Z of each distribution
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


def log_weight(x0, distributions, num_leapfrog_steps=3, seed=2):
    """Return the importance weights of the module docstring, and the chains at the end."""
    total = -sum_except_batch(standard_normal_log_density(x0))
    for record in anneal(x0, distributions, num_leapfrog_steps, generator(seed)):
        total += record.log_ratio - record.entry.potential + record.state.potential
    return total - record.state.potential, record.state.position


def distributions(num_steps, transports):
    return [
        IntermediateDistribution(gaussian(*moments), moments[1] * STEP, num_steps, move)
        for moments, move in zip(GAUSSIANS, transports, strict=True)
    ]


def exact_transports():
    gaussians = [(0.0, 1.0, 0.0), *GAUSSIANS]
    for (mean, std, _), (next_mean, next_std, _) in zip(
        gaussians[:-1], gaussians[1:], strict=True
    ):
        yield affine(next_std / std, next_mean - next_std / std * mean)


@pytest.mark.parametrize("num_steps", [0, 2])
def test_exact_transport_gives_every_chain_weight_z(num_steps):
    weight, x = log_weight(normal((50, *SHAPE)), distributions(num_steps, exact_transports()))
    assert torch.allclose(weight, torch.full_like(weight, GAUSSIANS[-1][2]), rtol=0, atol=1e-10)
    assert z_score((x - 2.0).flatten(1)) < 4.5


@pytest.mark.parametrize("num_steps", [0, 3])
def test_weights_correct_an_inexact_transport(num_steps):
    near = [affine(1.05 * 0.8, 0.45), affine(0.65, 0.6), affine(0.42, 1.6)]
    weight, x = log_weight(normal((6000, *SHAPE)), distributions(num_steps, near))
    ratio = (weight - GAUSSIANS[-1][2]).exp()
    assert z_score(ratio[:, None], 1.0) < 4 and ratio.std() > 0.1
    residual = (x - 2.0).flatten(1)
    assert z_score(ratio[:, None] * residual) < 4.5
    assert z_score(ratio[:, None] * residual.square(), 0.04) < 4.5


def test_weights_give_the_masses_of_separate_modes():
    """The modes are ten standard deviations apart. Z = 2 pi, since the target omits two
    constants."""
    log_share = torch.tensor([0.25, 0.75], dtype=F64).log()
    mean = torch.tensor([-2.5, 2.5], dtype=F64)

    def at(b):
        def log_density(x):
            modes = log_share - math.log(0.5) - 0.5 * ((x[:, :1] - mean) / 0.5) ** 2
            target = torch.logsumexp(modes, 1) - 0.5 * x[:, 1] ** 2
            return (1 - b) * sum_except_batch(standard_normal_log_density(x)) + b * target

        return target_of(log_density)

    path = [
        IntermediateDistribution(at(float(b)), 0.9 - 0.5 * b, 2)
        for b in torch.linspace(0, 1, 21, dtype=F64)[1:]
    ]
    weight, x = log_weight(normal((3000, 2), 3), path, 4, 4)
    is_left, weight = (x[:, 0] < 0).double(), torch.exp(weight - math.log(2 * math.pi))
    assert z_score(weight, 1.0) < 4 and standard_error(weight) < 0.04
    assert z_score(weight * is_left, 0.25) < 4 and z_score(is_left, 0.25) > 8
    assert z_score(weight * x[:, 1] ** 2, 1.0) < 4


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
