"""HMC: invariance from exact samples, adaptation, and the weights of annealed chains."""

import math

import pytest
import torch
from exact import F64, generator, normal, target_of, z_score

from ebm_app.sampling import hmc
from ebm_app.utils.random import BatchNoise
from ebm_app.utils.tensors import standard_error, standard_normal_log_density, sum_except_batch

CHAINS, TRANSITIONS = 20_000, 4
IMAGE = (2, 2, 3)


class Logistic:
    """Independent logistic pixels (B, 2, 2, 3): variance pi^2 / 3, fourth moment 7 pi^4 / 15."""

    values = torch.tensor([0.0, math.pi**2 / 3, 7 * math.pi**4 / 15, 2 * math.log(2)], dtype=F64)
    expected = values.repeat_interleave(math.prod(IMAGE))

    def target(self):
        softplus = torch.nn.functional.softplus
        return target_of(lambda x: sum_except_batch(-x - 2 * softplus(-x)))

    def sample(self, g, n=CHAINS):
        return torch.logit(torch.rand(n, *IMAGE, generator=g, dtype=F64))

    def statistics(self, x):
        return torch.cat([x, x**2, x**4, x.abs()], 1).flatten(1)


FIELDS = {
    "exact": lambda gradient: gradient,
    "rotated": lambda gradient: lambda x: 1.1 * gradient(x) - 0.2 * gradient(x).roll(1, -1),
}


@pytest.mark.parametrize("distort", FIELDS.values(), ids=FIELDS)
def test_metropolis_is_exact_for_any_field(distort):
    """Samples stay exact with the accept step, and do not without it."""
    known, g = Logistic(), generator(1)
    target = known.target()
    target = target._replace(field=distort(target.field))
    state = hmc.init(known.sample(g), target)
    free, field = state.position, state.field
    h = 1.1 * (0.8 + 0.4 * torch.rand(CHAINS, generator=g, dtype=F64))
    for _ in range(TRANSITIONS):
        before = state.position
        state, probability = hmc.step(state, target, h, 3, BatchNoise(g))
        has_moved = (state.position != before).flatten(1).any(1).double()
        assert 0.3 < probability.mean() < 0.97
        assert (has_moved - probability).mean().abs() < 4 * 0.5 / math.sqrt(CHAINS)
        momentum = torch.randn(free.shape, generator=g, dtype=F64)
        free, _, field = hmc.leapfrog(free, momentum, field, target.field, 1.2 * h, 3)
    assert z_score(known.statistics(state.position), known.expected) < 4
    assert z_score(known.statistics(free), known.expected) > 8
    torch.testing.assert_close(state, hmc.init(state.position, target))
    state, _ = hmc.step(
        hmc.init(free[:8].float().requires_grad_(), target), target, h[:8], 3, BatchNoise(g)
    )
    assert state.position.dtype == torch.float32 and not state.position.requires_grad


def test_non_finite_proposals_are_rejected():
    """For Gamma(3, 1), log x is NaN for x < 0, and so is the field."""
    target = target_of(lambda x: sum_except_batch(2 * x.sqrt().square().log() - x))
    g, count = generator(1), 0
    exact = -torch.rand(CHAINS, 3, generator=g, dtype=F64).log().sum(1, keepdim=True)
    state = hmc.init(exact, target)
    for _ in range(TRANSITIONS):
        state, probability = hmc.step(
            state, target, torch.tensor(0.8, dtype=F64), 2, BatchNoise(g)
        )
        count, x = count + int((probability == 0).sum()), state.position[:, 0]
    assert count > 1000 and x.min() > 0
    for k, moment in (1, 3), (2, 12), (3, 60):
        assert abs((x**k).mean() - moment) < 4 * standard_error(x**k)


def test_work_leaves_a_gaussian_invariant():
    """The trapezoidal rule of the work is exact for the linear field of a Gaussian."""
    x, g, target = normal((6000, 4), 4), generator(5), hmc.Target(lambda y: -y)
    state = hmc.init(x, target)
    for _ in range(4):
        state, probability = hmc.step(
            state, target, torch.tensor(0.9, dtype=F64), 3, BatchNoise(g)
        )
    y = state.position
    assert z_score(torch.cat([y, y.square() - 1], 1)) < 4 and 0.2 < probability.mean() < 0.95
    assert z_score(y * x, 1.0) > 10  # the chains have moved


@pytest.mark.parametrize("shape, start, aim", [((), 0.2, 0.65), ((400,), 4.0, 0.8)])
def test_adapt_settles_at_the_target_acceptance(shape, start, aim):
    known, g, h, rates = Logistic(), generator(), torch.full(shape, start, dtype=F64), []
    state = hmc.init(known.sample(g, 400), known.target())
    for _ in range(250):
        state, probability = hmc.step(state, known.target(), h, 3, BatchNoise(g))
        h = hmc.adapt(h, probability, aim)
        rates.append(probability)
    assert abs(torch.stack(rates[-100:]).mean() - aim) < 0.03
    each = hmc.adapt(torch.tensor([1.0, 2.0]), torch.tensor([0.9, 0.1]), 0.5)
    torch.testing.assert_close(each, torch.tensor([1.1**0.8, 2 * 1.1**-0.8]))


POINT = (1, 2, 2)
STEP = torch.tensor(0.3, dtype=F64)
#: Mean, standard deviation and log Z of each distribution
GAUSSIANS = [(0.5, 0.8, 0.3), (1.0, 0.5, -1.0), (2.0, 0.2, 0.7)]


def gaussian(mean, std, log_z=0.0):
    """Return log N(mean, std^2 I) + log_z as a target."""

    def log_density(x):
        logs = standard_normal_log_density((x - mean) / std) - math.log(std)
        return log_z + sum_except_batch(logs)

    return target_of(log_density)


def affine(scale, shift):
    log_det = torch.full((6000,), math.prod(POINT) * math.log(scale), dtype=F64)
    return lambda x, noise: (scale * x + shift, log_det)


def log_weight(x0, distributions):
    """Return the importance weights of the module docstring, and the chains at the end."""
    total = -sum_except_batch(standard_normal_log_density(x0))
    for record in hmc.anneal(x0, distributions, 3, BatchNoise(generator(2))):
        total += record.log_ratio - record.entry.potential + record.state.potential
    return total - record.state.potential, record.state.position


def gaussians(num_steps, transports):
    return [
        hmc.IntermediateDistribution(gaussian(*moments), moments[1] * STEP, num_steps, move)
        for moments, move in zip(GAUSSIANS, transports, strict=True)
    ]


@pytest.mark.parametrize("num_steps", [0, 3])
def test_weights_correct_an_inexact_transport(num_steps):
    near = [affine(1.05 * 0.8, 0.45), affine(0.65, 0.6), affine(0.42, 1.6)]
    weight, x = log_weight(normal((6000, *POINT)), gaussians(num_steps, near))
    ratio = (weight - GAUSSIANS[-1][2]).exp()
    assert z_score(ratio[:, None], 1.0) < 4 and ratio.std() > 0.1
    residual = (x - 2.0).flatten(1)
    assert z_score(ratio[:, None] * residual) < 4.5
    assert z_score(ratio[:, None] * residual.square(), 0.04) < 4.5
