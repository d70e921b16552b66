"""Products and mixtures of models, against exact Gaussians and mixtures in 16 dimensions."""

import pytest
import torch
from conftest import error_of
from exact import F64, ExactDensity, ExactModel, generator, normal

from ebm_app import EBM
from ebm_app.compose import Mixture, Product, sample_composed
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
