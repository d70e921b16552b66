"""Products and mixtures of models, and unknown pixels, against exact densities."""

import pytest
import torch
from conftest import error_of
from exact import F64, ExactDensity, ExactModel, generator, normal

from ebm_app import EBM
from ebm_app.completion import KnownPixels, complete
from ebm_app.compose import Mixture, Product, sample_composed
from ebm_app.model import class_labels
from ebm_app.nets.density import density_of
from ebm_app.nets.protocols import LogDensity, SteinScore
from ebm_app.paths import LinearVPPath, VPPath
from ebm_app.sampling import AnnealedHMC

D, NUM = 16, 1000


def gaussian(mean, std, path=None):
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
    x = draw(Product([gaussian(0.5, 0.4), gaussian(-0.3, 0.8)], weights), **settings)
    precisions = torch.tensor(weights, dtype=F64) / torch.tensor([0.4, 0.8], dtype=F64).square()
    precision = precisions.sum()
    mean = (precisions * torch.tensor([0.5, -0.3], dtype=F64)).sum() / precision
    assert (x.mean(0) - mean).abs().max() < 4 * (1 / precision / NUM).sqrt()
    assert x.var().item() == pytest.approx(1 / precision.item(), rel=4 * (2 / NUM / D) ** 0.5)


def test_mixture_has_the_masses_and_moments_of_its_parts():
    mixture = Mixture([gaussian(0.5, 0.4), gaussian(-0.5, 0.4)], [0.3, 0.7])
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
    assert "1 weights for 2" in error_of(Product, densities, [1.0])
    for kind in (Product, Mixture):
        assert "positive" in error_of(kind, densities, [1.0, -1.0])
    assert "paths" in error_of(Mixture, [gaussian(0, 1), gaussian(0, 1, VPPath())], [0.5, 0.5])


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
