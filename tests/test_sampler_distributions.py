"""Samples of every sampler against exact samples, in 16 dimensions with modes of 0.9 and 0.1."""

import math

import pytest
import torch
from exact import F64, ExactModel, generator, normal
from scipy import stats

from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.paths import LinearVPPath
from ebm_app.sampling.samplers import AnnealedHMC, PFODESampler

NUM = 3000
SAMPLERS = {
    "heun": PFODESampler(30),
    "rk4": PFODESampler(12, solver="rk4"),
    "annealed_hmc": AnnealedHMC(),
    "annealed_hmc, energy": AnnealedHMC(steps_per_temperature=2, acceptance="energy"),
}


def mixture(shape):
    direction = torch.full(shape, 1.5 / math.sqrt(math.prod(shape)), dtype=F64)
    means = torch.stack([direction, -direction])
    return ExactModel(LinearVPPath(), 1e-4, means, (0.5, 0.5), (0.9, 0.1), stein_channels=1)


def smallest_p_value(x, y):
    """Of two-sample Kolmogorov-Smirnov tests of the line of the modes, of the norms and of 20
    random projections, times their number."""
    x, y = x.flatten(1), y.flatten(1)
    axes = torch.cat([normal((x.shape[1], 20), 3), torch.ones(x.shape[1], 1, dtype=F64)], 1)
    columns = [torch.cat([z @ axes, z.norm(dim=1, keepdim=True)], 1).T.numpy() for z in (x, y)]
    values = [stats.ks_2samp(a, b).pvalue for a, b in zip(*columns, strict=True)]
    return min(values) * len(values)


def mass(model, x):
    """The mean posterior weight of the heavy mode, in the data."""
    return torch.softmax(model.modes(x, 1 - 1e-4)[0], 0)[0].mean().item()


CASES = [("heun", (16,)), *((name, (1, 4, 4)) for name in SAMPLERS if name != "heun")]
SLOW = "annealed_hmc, energy"


@pytest.mark.parametrize(
    "name, shape",
    [pytest.param(*case, marks=[pytest.mark.slow] * (case[0] == SLOW)) for case in CASES],
)
def test_samples_have_the_distribution_and_the_modes_of_the_data(name, shape):
    """That of p_t at variance 1e-3 for the chains, which differs from the data's by less than
    these samples can tell, as does the shrinkage of the denoised ones."""
    model = mixture(shape)
    x0 = normal((NUM, *shape), 7)
    *_, last = SAMPLERS[name].iterate(TimeScoreEnergy(model, 32), x0, generator(8))
    assert smallest_p_value(last.x, model.data((NUM, *shape), 9)) > 0.01
    assert mass(model, last.x) == pytest.approx(0.9, abs=0.02)


def test_these_tests_tell_what_is_not_a_sample():
    shape = (1, 4, 4)
    model = mixture(shape)
    data = model.data((NUM, *shape), 9)
    assert smallest_p_value(model.data((NUM, *shape), 10), data) > 0.01
    off = [normal((NUM, *shape)), 1.06 * data, data.abs(), data + 0.06]
    assert all(smallest_p_value(x, model.data((NUM, *shape), 10)) < 1e-3 for x in off)
    few = PFODESampler(3)
    *_, rough = few.iterate(TimeScoreEnergy(model, 32), normal((NUM, *shape), 7), generator(8))
    assert smallest_p_value(rough.x, data) < 1e-3
