"""Samples of unknown pixels given known ones, against exact conditional distributions."""

import pytest
import torch
from conftest import error_of
from exact import F64, ExactModel, generator, normal

from ebm_app import EBM
from ebm_app.completion import KnownPixels, complete
from ebm_app.model import class_labels
from ebm_app.nets.density import density_of
from ebm_app.paths import LinearVPPath
from ebm_app.sampling import AnnealedHMC

D, KNOWN, NUM = 16, 6, 2000


def test_conditional_of_a_mixture_has_masses_and_moments():
    means = torch.stack([torch.full((D,), 0.5, dtype=F64), torch.full((D,), -0.5, dtype=F64)])
    means[:, :KNOWN] *= 0.3  # the known pixels are nearly uninformative on the mode
    model = ExactModel(LinearVPPath(), 1e-5, means, (0.4, 0.4), (0.5, 0.5), stein_channels=1)
    known = torch.full((D,), 0.05, dtype=F64)
    logs = -(known[:KNOWN] - means[:, :KNOWN]).square().sum(1) / (2 * 0.4**2)
    share = torch.softmax(logs, 0)[0].item()
    mask = (torch.arange(D) < KNOWN).expand(NUM, D)
    known_pixels = KnownPixels(density_of(model, 16), torch.where(mask, known, 1e3), mask)
    sampler = AnnealedHMC(end_variance=1e-3, num_temperatures=200)
    *_, last = sampler.iterate(known_pixels, normal((NUM, D), 1), generator(2))
    x = last.x[:, KNOWN:]
    is_first = x.mean(1) > 0
    assert is_first.double().mean().item() == pytest.approx(share, abs=4 * 0.5 / NUM**0.5)
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
