"""HMC: invariance from exact samples, and adaptation."""

import math

import pytest
import torch
from exact import F64, generator, target_of, z_score

from ebm_app.sampling import hmc
from ebm_app.utils.random import BatchNoise
from ebm_app.utils.tensors import standard_error, sum_except_batch

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


def test_adapt_settles_at_the_target_acceptance():
    aim, known, g, rates = 0.65, Logistic(), generator(), []
    h = torch.tensor(0.2, dtype=F64)
    state = hmc.init(known.sample(g, 400), known.target())
    for _ in range(250):
        state, probability = hmc.step(state, known.target(), h, 3, BatchNoise(g))
        h = hmc.adapt(h, probability, aim)
        rates.append(probability)
    assert abs(torch.stack(rates[-100:]).mean() - aim) < 0.03
    each = hmc.adapt(torch.tensor([1.0, 2.0]), torch.tensor([0.9, 0.1]), 0.5)
    torch.testing.assert_close(each, torch.tensor([1.1**0.8, 2 * 1.1**-0.8]))
