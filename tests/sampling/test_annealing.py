"""Annealed chains of exact models, whose log Z is 0; denoising moves; log Z of known weights.

The data of the chains are 0.9 N(m e, s^2 I) + 0.1 N(-m e, s^2 I), wide enough for chains that
never move to have weights of a finite variance. Known weights are log w ~ N(m, s^2) forward, hence
N(m + s^2, s^2) in reverse, and log Z = m + s^2 / 2.
"""

import math
from dataclasses import replace

import pytest
import torch
from exact import F64, Exact, ExactDensity, ExactModel, generator, normal, z_score

from ebm_app.paths import LinearVPPath, VPPath
from ebm_app.sampling import annealing as module
from ebm_app.sampling.annealing import (
    METHODS,
    Annealing,
    denoise,
    denoising_step,
    diffuse,
    fit,
    make_chains,
    run_forward,
    run_reverse,
    tune,
    with_steps,
)
from ebm_app.sampling.log_z import bennett, from_forward, from_reverse
from ebm_app.utils.random import BatchNoise

PLAIN = Annealing(num_temperatures=16, steps_per_temperature=4, num_leapfrog_steps=1)
SETTINGS = {"ais": PLAIN, "diffused": replace(PLAIN, steps_per_temperature=1)}


@pytest.fixture(autouse=True)
def large_blocks(monkeypatch):
    monkeypatch.setattr(module, "BLOCK_SIZE", 1000)


def mixture(shape):
    direction = torch.full(shape, 1.4 / math.sqrt(math.prod(shape)), dtype=F64)
    means = torch.stack([direction, -direction])
    return ExactModel(LinearVPPath(), 0.01, means, (0.8, 0.8), (0.9, 0.1), stein_channels=1)


def chains_of(density, name, num):
    """Return chains, with ``num`` exact samples at the last time as data."""
    model = density.model
    t = torch.full((num,), density.end, dtype=F64)
    data = model.sample(t, (num, *model.means.shape[1:]), 5).xt
    return make_chains(density, SETTINGS[name], data, 3)


@pytest.mark.parametrize(
    "name, factor, num",
    [("ais", 0.22, 1500), ("diffused", 1.0, 1000)],
)
def test_log_z_is_zero_in_both_directions(name, factor, num, float64):
    """Also for chains that hardly move. The mean log-weights of AIS and RAISE bracket log Z."""
    chains = chains_of(ExactDensity(mixture((16,))), name, num)
    chains = tune(with_steps(chains) if name == "diffused" else chains, num)
    chains = chains._replace(step_sizes=factor * chains.step_sizes)
    u, v = run_forward(chains, num).log_weight, run_reverse(chains, chains.points).log_weight
    below, above = from_forward(u), from_reverse(v)
    for estimate in (below, above):
        assert abs(estimate.log_z) < 3 * estimate.stderr < 0.6
    errors = [w.std().item() / math.sqrt(num) for w in (u, v)]
    if name == "ais":
        assert below.mean_log_weight < -4 * errors[0] and above.mean_log_weight > 4 * errors[1]
    else:  # the reverse moves are the exact reverse of the forward moves
        assert 0.6 < errors[1] / errors[0] < 1.5
    combined = bennett(u[:100], v[:100])
    assert abs(combined.log_z) < 3.5 * combined.stderr


@pytest.mark.parametrize("name", METHODS)
def test_methods_find_log_z_by_the_time_integral(name, float64):
    energy = Exact(mixture((1, 4, 4)), 24)
    kind = "diffused" if name == "diffused" else "ais"
    result = METHODS[name](chains_of(energy, kind, 300), 300)
    assert abs(result.estimate.log_z) < 3.5 * result.estimate.stderr < 1
    assert 0.3 < result.acceptance < 1
    assert (result.reverse is None) == (name != "diffused")


TIMES = (0.3, 0.5)


@pytest.mark.parametrize("path", [LinearVPPath(), VPPath()])
def test_fitted_move_of_gaussian_data_has_weight_one(path):
    """For isotropic data each kernel is the exact reverse of the other if the variance fits. The
    points are scaled to the mean square of the marginal."""
    model = ExactModel(path, 1e-5, torch.zeros(1, 1, 2, 2, dtype=F64), [0.6], [1.0])
    step, x = denoising_step(model.exact_score, path, *TIMES), normal((50, 1, 2, 2))
    square = -1 / (model.exact_score(x, TIMES[0]) / x).mean()
    x = x * (square / x.square().mean()).sqrt()
    least = step.variance
    step = fit(step, model.exact_score(x, TIMES[0]).square().mean().item())
    y, log_ratio = denoise(step, x, BatchNoise(generator(1)))
    assert step.variance > 1.02 * least and (y - x).abs().max() > 0.1
    before, after = (model.log_density(*a) for a in zip((x, y), TIMES, strict=True))
    assert (after - before + log_ratio).abs().max() < 1e-10
    back, log_ratio = diffuse(step, y, BatchNoise(generator(2)))
    assert (model.log_density(back, TIMES[0]) - after + log_ratio).abs().max() < 1e-10
    again, _ = denoise(step, x, BatchNoise(generator(1)))
    assert torch.equal(again, y)
    assert denoise(step, x.float(), BatchNoise(generator(1)))[1].dtype == F64


@pytest.mark.parametrize("factor", [1.0, 0.7])
def test_weights_are_exact_for_any_score(factor):
    """From samples of either side, the mean weight is 1 in both directions, and backward moves
    have the distribution of the earlier time."""
    means = torch.tensor([[-0.8, 0.0, 0.0], [0.8, 0.0, 0.0]], dtype=F64)
    model = ExactModel(LinearVPPath(), 1e-5, means, [0.3, 0.3], [0.3, 0.7])
    score = lambda x, t: factor * model.exact_score(x, t)  # noqa: E731
    step = denoising_step(score, LinearVPPath(), *TIMES)
    x, y = (model.sample(torch.full((20000,), t, dtype=F64), (20000, 3), 4).xt for t in TIMES)
    moved, forward = denoise(step, x, BatchNoise(generator(50)))
    noised, backward = diffuse(step, y, BatchNoise(generator(60)))
    weights = (
        model.log_density(moved, TIMES[1]) - model.log_density(x, TIMES[0]) + forward,
        model.log_density(noised, TIMES[0]) - model.log_density(y, TIMES[1]) + backward,
    )
    for weight in weights:
        assert weight.std() > 0.05 and z_score(weight.exp()[:, None], 1.0) < 4
    moments = torch.cat([noised, noised.square()], 1)
    assert z_score(moments, torch.cat([x, x.square()], 1).mean(0)) < 5


MEAN = -3.0


def forward(num, spread, seed=0):
    return MEAN + spread * normal((num,), seed)


def reverse(num, spread, seed=1):
    return MEAN + spread**2 + spread * normal((num,), seed)


def weighted(num, spread, tilt, seed):
    """Return reverse log-weights drawn from N(m + tilt, s^2) instead of N(m + s^2, s^2), and the
    log importance weights of their starting points."""
    u = MEAN + tilt + spread * normal((num,), seed)
    return u, ((u - MEAN - tilt) ** 2 - (u - MEAN - spread**2) ** 2) / (2 * spread**2)


#: Estimate of a spread and a seed
ESTIMATES = {
    "forward": lambda spread, seed: from_forward(forward(200, spread, seed)),
    "bennett": lambda spread, seed: bennett(
        forward(40, spread, 2 * seed), reverse(40, spread, 2 * seed + 1)
    ),
    "reverse, weighted": lambda spread, seed: from_reverse(*weighted(200, spread, 0.2, seed)),
    "bennett, weighted": lambda spread, seed: bennett(
        forward(30, spread, seed + 500), *weighted(30, spread, 0.2, seed)
    ),
}


@pytest.mark.parametrize("estimate", ESTIMATES.values(), ids=ESTIMATES)
def test_stderr_covers_log_z(estimate):
    """Two standard errors cover log Z, and their mean square is that of the error."""
    estimates, truth = [estimate(0.8, 10 + seed) for seed in range(60)], MEAN + 0.8**2 / 2
    errors = torch.tensor([found.log_z - truth for found in estimates], dtype=F64)
    stated = torch.tensor([found.stderr for found in estimates], dtype=F64)
    assert 0.88 <= (errors.abs() < 2 * stated).double().mean() <= 1
    assert 0.75 < (errors.square().mean() / stated.square().mean()).sqrt() < 1.3


@pytest.mark.parametrize("shift", [-5000.0, 5000.0])
def test_log_z_is_exact_for_constant_weights(shift):
    u = torch.full((20,), 1.5 + shift, dtype=F64)
    for estimate in (from_forward(u), from_reverse(u), bennett(u, u[:7])):
        assert estimate.log_z == pytest.approx(1.5 + shift, abs=1e-9)
        assert estimate.stderr < 1e-9 and not estimate.warnings
    assert from_forward(u).ess == pytest.approx(20)


def test_unreliable_weights_warn():
    for call, weights in ((from_forward, forward), (from_reverse, reverse)):
        assert call(weights(500, 4.0)).warnings == ()
        assert "wide" in call(weights(500, 10.0)).warnings[0]
    assert "overlap" in bennett(forward(100, 8.0), reverse(100, 8.0)).warnings[0]
    u = torch.zeros(1000, dtype=F64)
    u[0] = 6.5  # one dominant weight enters the standard error
    assert from_forward(u).log_z > 0.5 and from_forward(u).stderr > 0.9 * from_forward(u).log_z
