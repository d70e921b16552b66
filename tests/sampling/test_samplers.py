"""Samplers, compositions and unknown pixels: exact scores give exact samples."""

import math

import pytest
import torch
from conftest import error_of
from exact import F64, ExactDensity, ExactModel, generator, normal, two_modes
from scipy import stats

from ebm_app import EBM
from ebm_app.completion import KnownPixels, complete
from ebm_app.compose import Mixture, Product, sample_composed
from ebm_app.likelihood import ProbabilityFlowDensity
from ebm_app.model import class_labels
from ebm_app.nets.density import density_of
from ebm_app.nets.protocols import LogDensity, SteinScore
from ebm_app.paths import LinearVPPath, VPPath
from ebm_app.sampling import SAMPLERS, AnnealedHMC, DPMSampler, PFODESampler
from ebm_app.sampling.base import Sampler
from ebm_app.sampling.flow import START
from ebm_app.utils.registry import make

MEAN, STD = 0.7, 0.5
PATHS = {"linear": LinearVPPath(), "vp": VPPath()}


def gaussian(path=PATHS["linear"], head=1, nodes=24, eps=1e-5, model=ExactModel):
    return density_of(model(path, eps, [[MEAN]], [STD], stein_channels=head), nodes)


def run(sampler, density, x0, seed=0):
    return list(sampler.iterate(density, x0, generator(seed)))


def moments(variance):
    """Return alpha, and mean and variance of p_t, at the time where v_t = 1 - alpha_t^2 is
    ``variance``."""
    alpha = (1 - variance) ** 0.5
    return alpha, alpha * MEAN, alpha**2 * STD**2 + variance


@pytest.mark.parametrize("make_sampler", [PFODESampler, DPMSampler])
@pytest.mark.parametrize("name, head, shape", [("linear", 0, (2,)), ("vp", 1, (1, 2, 2))])
def test_flow_samplers_are_exact_on_a_gaussian(name, head, shape, make_sampler):
    """Each x0 moves along an affine map, and the end is shrunk towards the mean.

    On the VP path N(0, I), from which the time integral starts, is not p_0: it needs a head.
    """
    density, x0 = gaussian(PATHS[name], head), normal((3, *shape))
    x = run(make_sampler(80, end_variance=1e-2), density, x0)[-1].x
    alpha, mean, variance = moments(1e-2)
    start, start_variance, *_ = density.model.moments(torch.tensor([START], dtype=F64))
    end = mean + (variance / start_variance.squeeze()).sqrt() * (x0 - start.squeeze())
    denoised = MEAN + alpha * STD**2 / variance * (end - mean)
    assert (x - denoised).abs().max() < 1e-3


def test_log_density_of_samples_matches_probability_flow():
    model = two_modes(PATHS["linear"], 1e-6, (3,), stein_channels=1)
    density = density_of(model)
    *_, last = run(PFODESampler(200, 1e-6, num_probes=0), density, normal((20, 3)))
    flow = ProbabilityFlowDensity(40, num_probes=0, start=START)(density, last.x, density.end)
    for expected in (flow.value, model.log_density(last.x, density.end)):
        assert (last.log_density - expected).abs().max() < 0.02


def test_frames_count_steps_and_evaluations():
    frames = run(PFODESampler(num_steps=6), gaussian(head=0), normal((2, 3)))
    assert [f.step for f in frames] == [1, 2, 3, 4, 5, 6]
    assert [f.nfe for f in frames] == [2, 3, 4, 5, 6, 8]  # the last one denoises
    # the number of temperatures grows with the square root of the dimension
    frames, more = (run(AnnealedHMC(), gaussian(), normal((3, d))) for d in (4, 16))
    assert abs(len(more) - 2 * len(frames)) <= 1
    assert len(frames) == frames[0].num_steps == AnnealedHMC().count_steps(gaussian(), 4) == 15
    assert [f.nfe for f in frames] == [*(5 * k for k in range(1, 15)), 5 * 15 + 4 * 5]
    assert all(0 <= f.acceptance <= 1 for f in frames)


@pytest.mark.parametrize("name", SAMPLERS)
def test_samples_depend_on_start_and_generator_alone(name):
    sampler = SAMPLERS[name](**{SAMPLERS[name].counts: 3})
    density, x0, before = gaussian(eps=1e-3), normal((4, 2)), torch.random.get_rng_state()
    one, same, other = (run(sampler, density, x0, seed)[-1].x for seed in (0, 0, 1))
    assert torch.equal(one, same) and not one.requires_grad
    assert torch.equal(one, other) == (name != "annealed_hmc")  # the flows add no noise
    assert torch.equal(before, torch.random.get_rng_state())
    assert run(sampler, density, x0.float())[-1].x.dtype == torch.float32


def smallest_p_value(x, y):
    """Return the smallest p-value, times their number, of two-sample Kolmogorov-Smirnov tests of
    the line of the modes, the norms and 20 random projections."""
    x, y = x.flatten(1), y.flatten(1)
    axes = torch.cat([normal((x.shape[1], 20), 3), torch.ones(x.shape[1], 1, dtype=F64)], 1)
    columns = [torch.cat([z @ axes, z.norm(dim=1, keepdim=True)], 1).T.numpy() for z in (x, y)]
    values = [stats.ks_2samp(a, b).pvalue for a, b in zip(*columns, strict=True)]
    return min(values) * len(values)


SAMPLED = {
    "pf_ode": PFODESampler(30),
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


def test_invalid_settings_raise_user_errors():
    assert "annealed_hmc" in error_of(make, SAMPLERS, Sampler, "sampler", "gibbs", {})
    for name, settings in (("pf_ode", {"final_steps": 3}), ("annealed_hmc", {"score": "no"})):
        assert next(iter(settings)) in error_of(make, SAMPLERS, Sampler, "", name, settings)
    error_of(run, PFODESampler(end_variance=1.0), gaussian(), normal((2, 2)))


D, NUM = 16, 1000


def normal_density(mean, std, path=None):
    return ExactDensity(ExactModel(path or LinearVPPath(), 1e-5, [[mean]], [std]))


def draw(composition, **settings):
    sampler = AnnealedHMC(end_variance=1e-4, num_temperatures=60, final_steps=20, **settings)
    *_, last = sampler.iterate(composition, normal((NUM, D), 1), generator(2))
    return last.x


@pytest.mark.parametrize(
    ("weights", "settings"),
    [((1.0, 1.0), {}), ((2.0, -0.5), {"acceptance": "energy", "score": "integral"})],
)
def test_product_of_gaussians_has_its_moments(weights, settings):
    x = draw(Product([normal_density(0.5, 0.4), normal_density(-0.3, 0.8)], weights), **settings)
    precisions = torch.tensor(weights, dtype=F64) / torch.tensor([0.4, 0.8], dtype=F64).square()
    precision = precisions.sum()
    mean = (precisions * torch.tensor([0.5, -0.3], dtype=F64)).sum() / precision
    assert (x.mean(0) - mean).abs().max() < 4 * (1 / precision / NUM).sqrt()
    assert x.var().item() == pytest.approx(1 / precision.item(), rel=4 * (2 / NUM / D) ** 0.5)


@pytest.mark.parametrize("acceptance", ["work", "energy"])
def test_power_of_a_gaussian_has_its_moments(acceptance):
    x = draw(normal_density(0.5, 0.4), power=2, acceptance=acceptance, steps_per_temperature=3)
    variance = 0.4**2 / 2
    assert (x.mean(0) - 0.5).abs().max() < 4 * (variance / NUM) ** 0.5
    assert x.var().item() == pytest.approx(variance, rel=4 * (2 / NUM / D) ** 0.5)


def test_last_step_of_a_power_removes_all_noise():
    x = draw(normal_density(0.5, 1e-4), power=2.0)  # the noise at the end is 7e-3
    assert (x - 0.5).abs().max() < 1e-3


def test_mixture_has_the_masses_and_moments_of_its_parts():
    mixture = Mixture([normal_density(0.5, 0.4), normal_density(-0.5, 0.4)], [0.3, 0.7])
    assert isinstance(mixture, LogDensity) and isinstance(mixture, SteinScore)
    x = draw(mixture, acceptance="energy")
    is_first = x.mean(1) > 0
    assert is_first.double().mean().item() == pytest.approx(0.3, abs=4 * (0.21 / NUM) ** 0.5)
    for sign, rows in ((1, x[is_first]), (-1, x[~is_first])):
        assert (rows.mean(0) - sign * 0.5).abs().max() < 4.5 * 0.4 / len(rows) ** 0.5
        assert rows.std().item() == pytest.approx(0.4, rel=0.03)


def test_images_of_a_composition_and_refused_weights():
    ebm = EBM.from_pretrained("digits")
    densities = [ebm.density, ebm.density]
    images = sample_composed(ebm, Product(densities, [1.5, -0.5]), 2, num_temperatures=2)
    assert images.shape == (2, 1, 8, 8)
    squared = sample_composed(ebm, Product(densities, [1.0, 1.0]), 2, num_temperatures=2)
    power = AnnealedHMC(num_temperatures=2, power=2.0)
    torch.testing.assert_close(squared, ebm.sample(2, power))
    assert "1 weights for 2" in error_of(Product, densities, [1.0])
    for kind in (Product, Mixture):
        assert "positive" in error_of(kind, densities, [1.0, -1.0])
    assert "paths" in error_of(
        Mixture, [normal_density(0, 1), normal_density(0, 1, VPPath())], [0.5, 0.5]
    )


KNOWN = 6


def test_conditional_of_a_mixture_has_masses_and_moments():
    num = 2000
    means = torch.stack([torch.full((D,), 0.5, dtype=F64), torch.full((D,), -0.5, dtype=F64)])
    means[:, :KNOWN] *= 0.3  # the known pixels are nearly uninformative on the mode
    model = ExactModel(LinearVPPath(), 1e-5, means, (0.4, 0.4), (0.5, 0.5), stein_channels=1)
    known = torch.full((D,), 0.05, dtype=F64)
    logs = -(known[:KNOWN] - means[:, :KNOWN]).square().sum(1) / (2 * 0.4**2)
    share = torch.softmax(logs, 0)[0].item()
    mask = (torch.arange(D) < KNOWN).expand(num, D)
    known_pixels = KnownPixels(density_of(model, 16), torch.where(mask, known, 1e3), mask)
    sampler = AnnealedHMC(end_variance=1e-3, num_temperatures=200)
    *_, last = sampler.iterate(known_pixels, normal((num, D), 1), generator(2))
    x = last.x[:, KNOWN:]
    is_first = x.mean(1) > 0
    assert is_first.double().mean().item() == pytest.approx(share, abs=4 * 0.5 / num**0.5)
    for sign, rows in ((1, x[is_first]), (-1, x[~is_first])):
        assert (rows.mean(0) - sign * 0.5).abs().max() < 4.5 * 0.4 / len(rows) ** 0.5
        assert rows.std().item() == pytest.approx(0.4, rel=0.03)


def test_completion_keeps_known_pixels_and_refuses_mistakes():
    ebm = EBM.from_pretrained("digits")
    images = ebm.sample(2, num_steps=3)
    mask = torch.zeros(8, 8, dtype=torch.bool)
    mask[:4] = True
    completed = complete(ebm, images, mask, num_temperatures=4)
    assert torch.equal(completed[:, :, :4], images[:, :, :4])
    other = torch.where(mask, images, 0.0)
    assert torch.equal(complete(ebm, other, mask, num_temperatures=4), completed)
    labels = class_labels("random", 2, ebm.config.classes(), seed=1)
    options = {"seed": 1, "num_temperatures": 4}
    drawn = complete(ebm, images, mask, labels="random", **options)
    assert torch.equal(drawn, complete(ebm, images, mask, labels=labels, **options))
    for bad in (mask.float(), mask[:3]):
        assert "mask" in error_of(complete, ebm, images, bad)
    latent = EBM.from_pretrained("mnist-latent")
    assert "latent space" in error_of(complete, latent, torch.zeros(1, 1, 28, 28), mask)
    for settings in ({"score": "integral"}, {"acceptance": "energy"}):
        error_of(complete, ebm, images, mask, num_temperatures=4, **settings)
