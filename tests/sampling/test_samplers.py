"""Samplers: exact scores give exact samples."""

import math
from functools import partial

import pytest
import torch
from exact import (
    F64,
    Exact,
    ExactDensity,
    ExactModel,
    generator,
    normal,
)
from scipy import stats

from ebm_app.paths import LinearVPPath, VPPath
from ebm_app.sampling import AnnealedHMC, DPMSampler, ProbabilityFlowSampler
from ebm_app.sampling.samplers import START
from ebm_app.utils.random import BatchNoise

MEAN, STD = 0.7, 0.5
PATHS = {"linear": LinearVPPath(), "vp": VPPath()}


def gaussian(path=PATHS["linear"], head=1, nodes=24, t_margin=1e-5, model=ExactModel):
    return Exact(model(path, t_margin, [[MEAN]], [STD], stein_channels=head), nodes)


def run(sampler, density, x0, seed=0):
    return list(sampler.iterate(density, x0, BatchNoise(generator(seed))))


def moments(variance):
    """Return alpha, and mean and variance of p_t, at the time where v_t = 1 - alpha_t^2 is
    ``variance``."""
    alpha = (1 - variance) ** 0.5
    return alpha, alpha * MEAN, alpha**2 * STD**2 + variance


RK4 = partial(ProbabilityFlowSampler, method="rk4")
DOPRI5 = partial(ProbabilityFlowSampler, method="dopri5")
EXACT = [(ProbabilityFlowSampler, 80), (RK4, 16), (DOPRI5, 80), (DPMSampler, 80)]


@pytest.mark.parametrize("make_sampler, num_steps", EXACT)
@pytest.mark.parametrize("name, head, shape", [("linear", 0, (2,)), ("vp", 1, (1, 2, 2))])
def test_flow_samplers_are_exact_on_a_gaussian(name, head, shape, make_sampler, num_steps):
    """Each x0 moves along an affine map, and the end is shrunk towards the mean.

    On the VP path N(0, I), from which the time integral starts, is not p_0: it needs a head.
    """
    density, x0 = gaussian(PATHS[name], head), normal((3, *shape))
    x = run(make_sampler(num_steps, end_variance=1e-2), density, x0)[-1].x
    alpha, mean, variance = moments(1e-2)
    start, start_variance, *_ = density.model.moments(torch.tensor([START], dtype=F64))
    end = mean + (variance / start_variance.squeeze()).sqrt() * (x0 - start.squeeze())
    denoised = MEAN + alpha * STD**2 / variance * (end - mean)
    assert (x - denoised).abs().max() < 1e-3


def test_frames_count_steps_and_evaluations():
    frames = run(ProbabilityFlowSampler(num_steps=6), gaussian(), normal((2, 3)))
    assert [f.step for f in frames] == [1, 2, 3, 4, 5, 6]
    assert [f.nfe for f in frames] == [2, 3, 4, 5, 6, 8]  # the last one denoises
    frames = run(RK4(num_steps=3), gaussian(), normal((2, 3)))
    assert [(f.step, f.nfe) for f in frames] == [(1, 4), (2, 8), (3, 13)]
    rough, fine = (
        run(DOPRI5(rtol=tolerance, atol=tolerance), gaussian(), normal((2, 3)))
        for tolerance in (1e-2, 1e-5)
    )
    assert [f.step for f in rough] == [25] and rough[0].nfe < fine[0].nfe
    # the number of temperatures grows with the square root of the dimension
    frames, more = (run(AnnealedHMC(), gaussian(), normal((3, d))) for d in (4, 16))
    assert abs(len(more) - 2 * len(frames)) <= 1
    assert len(frames) == frames[0].num_steps == 15
    assert [f.nfe for f in frames] == [*(5 * k for k in range(1, 15)), 5 * 15 + 4 * 5]
    assert all(0 <= f.acceptance <= 1 for f in frames)


def smallest_p_value(x, y):
    """Return the smallest p-value, times their number, of two-sample Kolmogorov-Smirnov tests of
    the line of the modes, the norms and 20 random projections."""
    x, y = x.flatten(1), y.flatten(1)
    axes = torch.cat([normal((x.shape[1], 20), 3), torch.ones(x.shape[1], 1, dtype=F64)], 1)
    columns = [torch.cat([z @ axes, z.norm(dim=1, keepdim=True)], 1).T.numpy() for z in (x, y)]
    values = [stats.ks_2samp(a, b).pvalue for a, b in zip(*columns, strict=True)]
    return min(values) * len(values)


SAMPLED = {
    "probability_flow": ProbabilityFlowSampler(30),
    "dpm noise": DPMSampler(60, noise=1),
    "work": AnnealedHMC(),
    "energy": AnnealedHMC(steps_per_temperature=2, acceptance="energy"),
}


@pytest.mark.parametrize("sampler", SAMPLED.values(), ids=SAMPLED)
def test_samples_of_a_mixture_match_exact_samples(sampler):
    """In 16 dimensions, with masses 0.9 and 0.1. The test detects small differences."""
    shape, num = (1, 4, 4), 3000
    direction = torch.full(shape, 1.5 / 4, dtype=F64)
    means, stds = torch.stack([direction, -direction]), (0.5, 0.5)
    model = ExactModel(LinearVPPath(), 1e-4, means, stds, (0.9, 0.1))
    x = run(sampler, ExactDensity(model), normal((num, *shape), 7), 8)[-1].x
    data = model.data((num, *shape), 9)
    assert smallest_p_value(x, data) > 0.01
    heavy = torch.softmax(model.modes(x, 1 - 1e-4)[0], 0)[0].mean().item()
    assert math.isclose(heavy, 0.9, abs_tol=0.02)
    assert all(smallest_p_value(other, data) < 1e-3 for other in (1.06 * x, x.abs(), x + 0.06))


@pytest.mark.parametrize("sampler", [AnnealedHMC, ProbabilityFlowSampler, DPMSampler])
def test_samplers_remove_the_noise_of_the_last_time(sampler):
    """The samples are E[x1 | x], which vary less than the data."""
    x = run(sampler(end_variance=0.3), gaussian(), normal((2000, 4)), 3)[-1].x
    alpha, _, variance = moments(0.3)
    expected = alpha**2 * STD**4 / variance
    assert abs(x.var().item() / expected - 1) < 0.1 and abs(x.mean().item() - MEAN) < 0.02


@pytest.mark.parametrize("step_size, advice", [(50.0, "smaller"), (1e-3, "larger")])
def test_chains_that_hardly_move_warn(step_size, advice):
    """A healthy run does not: pytest raises warnings of the package."""
    with pytest.warns(UserWarning, match=f"{advice} step_size"):
        run(AnnealedHMC(step_size=step_size), gaussian(), normal((20, 4)))
