"""Samples of unknown pixels given known ones, against exact conditional distributions."""

import pytest
import torch
from exact import F64, ExactModel, generator, normal

from ebm_app import EBM
from ebm_app.completion import complete, expand_mask
from ebm_app.nets.density import density_of
from ebm_app.paths import LinearVPPath
from ebm_app.sampling.known import KnownPixels
from ebm_app.sampling.samplers import AnnealedHMC
from ebm_app.utils.errors import UserError

D, KNOWN, NUM = 16, 6, 2000


class CorrelatedGaussian:
    """The Stein score of N(mean, covariance) in 16 dimensions."""

    def __init__(self):
        self.path, self.start, self.end = LinearVPPath(), 0.0, 1 - 1e-5
        root = normal((D, D), 1) / 4
        self.mean, self.covariance = normal((D,), 2), root @ root.T + 0.1 * torch.eye(D, dtype=F64)

    def score(self, x, t):
        matrix = t**2 * self.covariance + (1 - t**2) * torch.eye(D, dtype=F64)
        return -torch.linalg.solve(matrix, (x - t * self.mean).T).T

    def score_cost(self, t):
        return 1


def draw(model, known, seed=0, **settings):
    mask = torch.arange(D) < KNOWN
    known = torch.where(mask, known, 1e3).expand(NUM, D)
    sampler = AnnealedHMC(end_variance=1e-3, **settings)
    frames = sampler.iterate(
        KnownPixels(model, known, mask.expand(NUM, D)),
        normal((NUM, D), seed + 1),
        generator(seed + 2),
    )
    *_, last = frames
    return last.x[:, KNOWN:]


def test_conditional_of_a_gaussian_has_mean_and_covariance():
    model = CorrelatedGaussian()
    mean, full = model.mean, model.covariance
    known = mean + torch.linalg.cholesky(full) @ normal((D,), 3)
    gain = torch.linalg.solve(full[:KNOWN, :KNOWN], full[:KNOWN, KNOWN:]).T
    exact_mean = mean[KNOWN:] + gain @ (known - mean)[:KNOWN]
    exact = full[KNOWN:, KNOWN:] - gain @ full[:KNOWN, KNOWN:]
    x = draw(model, known, num_temperatures=120, final_steps=20)
    deviation = (x.mean(0) - exact_mean) / (exact.diagonal() / NUM).sqrt()
    assert deviation.abs().max() < 4
    error = ((exact.square() + torch.outer(exact.diagonal(), exact.diagonal())) / NUM).sqrt()
    assert ((torch.cov(x.T) - exact) / error).abs().max() < 4.5


@pytest.mark.process
def test_conditional_of_a_mixture_has_masses_and_moments():
    means = torch.stack([torch.full((D,), 0.5, dtype=F64), torch.full((D,), -0.5, dtype=F64)])
    means[:, :KNOWN] *= 0.3  # the known pixels are nearly uninformative on the mode
    model = ExactModel(LinearVPPath(), 1e-5, means, (0.4, 0.4), (0.5, 0.5), stein_channels=1)
    known = torch.full((D,), 0.05, dtype=F64)
    logs = -(known[:KNOWN] - means[:, :KNOWN]).square().sum(1) / (2 * 0.4**2)
    share = torch.softmax(logs, 0)[0].item()
    x = draw(density_of(model, 16), known, num_temperatures=200)
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
    for bad in (mask.float(), mask[:3], torch.ones(3, 1, 8, 8, dtype=torch.bool)):
        with pytest.raises(UserError, match="mask"):
            complete(ebm, images, bad)
    with pytest.raises(UserError, match="latent space"):
        complete(EBM.from_pretrained("mnist-latent"), torch.zeros(1, 1, 28, 28), mask)
    for settings in ({"score": "integral"}, {"acceptance": "energy"}, {"steps": 3}):
        with pytest.raises(UserError):
            complete(ebm, images, mask, num_temperatures=4, **settings)
    assert expand_mask(mask, (2, 1, 8, 8)).shape == (2, 1, 8, 8)
