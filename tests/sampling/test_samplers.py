"""Samplers: with exact scores the samples are distributed as the data at the end of the path."""

import math

import pytest
import torch
from exact import F64, ExactModel, generator, normal, z_score
from scipy import stats

from ebm_app.nets.density import density_of
from ebm_app.paths import LinearVPPath, VPPath
from ebm_app.sampling.samplers import SAMPLERS, AnnealedHMC, DPMSampler, PFODESampler, Sampler
from ebm_app.utils.errors import UserError
from ebm_app.utils.registry import make

MEAN, STD = 0.7, 0.5
PATHS = {"linear": LinearVPPath(), "vp": VPPath()}


def gaussian(path=PATHS["linear"], head=1, nodes=24, eps=1e-5, model=ExactModel):
    return density_of(model(path, eps, [[MEAN]], [STD], stein_channels=head), nodes)


def run(sampler, energy, x0, seed=0):
    return list(sampler.iterate(energy, x0, generator(seed)))


def moments(energy, variance):
    """alpha, and mean and variance of p_t at the time where v_t is ``variance``; v = 1 - alpha^2
    on these paths."""
    alpha = (1 - variance) ** 0.5
    return alpha, alpha * MEAN, alpha**2 * STD**2 + variance


@pytest.mark.parametrize("make_sampler", [PFODESampler, DPMSampler])
@pytest.mark.parametrize(
    "name, score, shape", [("linear", "integral", (2,)), ("vp", "head", (1, 2, 2))]
)
def test_the_flow_and_tweedie_are_exact_on_a_gaussian(name, score, shape, make_sampler):
    """Point by point: x0 moves along an affine map, whose end is shrunk towards the mean.

    The integral is left out on the VP path, where N(0, I), from which it starts, is not p_0.
    """
    energy, x0 = gaussian(PATHS[name], head=score == "head"), normal((3, *shape))
    sampler = make_sampler(80, end_variance=1e-2)
    x = run(sampler, energy, x0)[-1].x
    alpha, mean, variance = moments(energy, 1e-2)
    start, start_variance, *_ = energy.model.moments(torch.tensor([sampler.start], dtype=F64))
    end = mean + (variance / start_variance.squeeze()).sqrt() * (x0 - start.squeeze())
    denoised = MEAN + alpha * STD**2 / variance * (end - mean)
    assert (x - denoised).abs().max() < 1e-3


def test_frames_count_steps_and_evaluations():
    frames = run(PFODESampler(num_steps=6), gaussian(head=0), normal((2, 3)))
    assert [f.step for f in frames] == [1, 2, 3, 4, 5, 6]
    assert [f.nfe for f in frames] == [2, 4, 6, 8, 10, 13]  # the last denoises
    assert all(f.num_steps == 6 and f.x.shape == (2, 3) and f.acceptance is None for f in frames)
    # temperatures grow with the root of the dimension
    frames, more = (run(AnnealedHMC(), gaussian(), normal((3, d))) for d in (4, 16))
    assert abs(len(more) - 2 * len(frames)) <= 1 and len(frames) == 15
    assert [f.step for f in frames] == list(range(1, 16)) and frames[0].num_steps == 15
    assert [f.nfe for f in frames] == [*(5 * k for k in range(1, 15)), 5 * 15 + 4 * 5]
    assert all(0 <= f.acceptance <= 1 and f.x.shape == (3, 4) for f in frames)
    assert AnnealedHMC().count_steps(gaussian(), 4) == 15


class Biased(ExactModel):
    """An exact energy, but a Stein head that is off by a third and a shift."""

    def forward(self, x, t):
        output = super().forward(x, t)
        return output._replace(score=output.score / 1.5 + 0.3)


@pytest.mark.parametrize(
    "path, settings",
    [
        ("linear", {}),
        ("vp", {"score": "integral", "acceptance": "none"}),
        ("vp", {"score": "head", "acceptance": "energy"}),
    ],
    ids=["work", "none", "energy"],
)
def test_annealed_hmc_draws_the_denoised_marginal_of_a_gaussian(path, settings):
    """The mean of x_1 given x_t has the variance of the data times that of its share in x_t."""
    energy = gaussian(PATHS[path])
    sampler = AnnealedHMC(num_temperatures=30, end_variance=0.01, **settings)
    x = run(sampler, energy, normal((1500, 1, 2, 2)))[-1].x
    alpha, _, variance = moments(energy, 0.01)
    residual = x.flatten(1) - MEAN
    assert z_score(residual) < 4.5
    assert z_score(residual.square(), (alpha * STD**2) ** 2 / variance) < 4.5


def test_the_energy_decides_whichever_score_drives():
    """A wrong head misleads the flow, and the work of its field; the energy refuses it."""
    energy, x0 = gaussian(model=Biased), normal((1500, 2))
    settings = {"num_temperatures": 20, "final_steps": 40, "end_variance": 0.01, "score": "head"}
    by_energy, by_work = (
        abs(run(AnnealedHMC(acceptance=name, **settings), energy, x0)[-1].x.mean().item() - MEAN)
        for name in ("energy", "work")
    )
    flowed = run(PFODESampler(), energy, x0)[-1].x
    assert by_energy < 0.1 < by_work and z_score(flowed.flatten(1) - MEAN) > 10


@pytest.mark.parametrize("name", SAMPLERS)
def test_samples_depend_on_the_start_and_the_generator_alone_and_keep_their_precision(name):
    sampler = make(SAMPLERS, Sampler, "sampler", name, {SAMPLERS[name].counts: 3})
    energy, x0, before = gaussian(eps=1e-3), normal((4, 2)), torch.random.get_rng_state()
    one, same, other = (run(sampler, energy, x0, seed)[-1].x for seed in (0, 0, 1))
    assert torch.equal(one, same) and not one.requires_grad
    assert torch.equal(one, other) == (name != "annealed_hmc")  # a flow adds no noise
    assert torch.equal(before, torch.random.get_rng_state())
    assert run(sampler, energy, x0.float())[-1].x.dtype == torch.float32


def smallest_p_value(x, y):
    """Of two-sample Kolmogorov-Smirnov tests of the line of the modes, of the norms and of 20
    random projections, times their number."""
    x, y = x.flatten(1), y.flatten(1)
    axes = torch.cat([normal((x.shape[1], 20), 3), torch.ones(x.shape[1], 1, dtype=F64)], 1)
    columns = [torch.cat([z @ axes, z.norm(dim=1, keepdim=True)], 1).T.numpy() for z in (x, y)]
    values = [stats.ks_2samp(a, b).pvalue for a, b in zip(*columns, strict=True)]
    return min(values) * len(values)


@pytest.mark.parametrize(
    "sampler",
    [
        PFODESampler(30),
        DPMSampler(30),
        DPMSampler(60, noise=1),
        AnnealedHMC(),
        pytest.param(
            AnnealedHMC(steps_per_temperature=2, acceptance="energy"), marks=pytest.mark.process
        ),
    ],
    ids=["pf_ode", "dpm", "dpm noise", "work", "energy"],
)
def test_samples_of_a_mixture_are_like_exact_ones_with_the_masses_of_its_modes(sampler):
    """In 16 dimensions with modes of 0.9 and 0.1; what differs by little is told."""
    shape, num = (1, 4, 4), 3000
    direction = torch.full(shape, 1.5 / 4, dtype=F64)
    means, stds = torch.stack([direction, -direction]), (0.5, 0.5)
    model = ExactModel(LinearVPPath(), 1e-4, means, stds, (0.9, 0.1), stein_channels=1)
    x = run(sampler, density_of(model, 32), normal((num, *shape), 7), 8)[-1].x
    data = model.data((num, *shape), 9)
    assert smallest_p_value(x, data) > 0.01
    heavy = torch.softmax(model.modes(x, 1 - 1e-4)[0], 0)[0].mean().item()
    assert math.isclose(heavy, 0.9, abs_tol=0.02)
    assert all(smallest_p_value(other, data) < 1e-3 for other in (1.06 * x, x.abs(), x + 0.06))


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("gibbs", {}, "unknown sampler 'gibbs': choose one of annealed_hmc, dpm, pf_ode"),
        ("pf_ode", {"final_steps": 3}, "setting of the sampler pf_ode 'final_steps'"),
        ("pf_ode", {"num_steps": 0}, "num_steps must be greater than or equal to 1, got 0"),
        ("pf_ode", {"start": 0.9999}, "lower start"),
        ("pf_ode", {"end_variance": 1.0}, "end_variance 1.0"),
        ("annealed_hmc", {"acceptance": "never"}, "unknown acceptance 'never'"),
    ],
)
def test_settings_that_make_no_run_are_the_users_mistake(name, settings, message):
    with pytest.raises(UserError, match=message):
        run(make(SAMPLERS, Sampler, "sampler", name, settings), gaussian(head=0), normal((2, 2)))
