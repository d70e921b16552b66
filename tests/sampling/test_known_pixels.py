"""Draws of unknown components given known ones, against exact conditional distributions."""

import pytest
import torch
from exact import F64, ExactModel, generator, normal

from ebm_app import EBM
from ebm_app.completion import complete, known_mask
from ebm_app.nets.density import density_of
from ebm_app.nets.time_score import ModelOutput
from ebm_app.paths import LinearVPPath
from ebm_app.sampling.known import KnownEnergy
from ebm_app.sampling.samplers import AnnealedHMC
from ebm_app.utils.errors import UserError

D, KNOWN, NUM = 16, 6, 2000


class CorrelatedGaussian(ExactModel):
    """N(mean, covariance) in 16 dimensions."""

    def __init__(self):
        super().__init__(LinearVPPath(), 1e-5, [[0.0]], [1.0], stein_channels=1)
        root = normal((D, D), 1) / 4
        self.mean, self.covariance = normal((D,), 2), root @ root.T + 0.1 * torch.eye(D, dtype=F64)

    def forward(self, x, t):
        alpha, v = t[0], self.path.variance(t[0])
        matrix = alpha**2 * self.covariance + v * torch.eye(D, dtype=F64)
        score = -torch.linalg.solve(matrix, (x - alpha * self.mean).T).T
        return ModelOutput(torch.zeros_like(x), score)


def draw(model, known, seed=0, **settings):
    mask = torch.arange(D) < KNOWN
    energy = KnownEnergy(
        density_of(model, 16),
        torch.where(mask, known, 1e3).expand(NUM, D),
        mask.expand(NUM, D),
    )
    sampler = AnnealedHMC(end_variance=1e-3, **settings)
    *_, last = sampler.iterate(energy, normal((NUM, D), seed + 1), generator(seed + 2))
    return last.x[:, KNOWN:]


def test_draws_given_a_part_of_a_gaussian_have_the_exact_mean_and_covariance():
    model = CorrelatedGaussian()
    mean, full = model.mean, model.covariance
    known = mean + torch.linalg.cholesky(full) @ normal((D,), 3)
    gain = torch.linalg.solve(full[:KNOWN, :KNOWN], full[:KNOWN, KNOWN:]).T
    exact_mean = mean[KNOWN:] + gain @ (known - mean)[:KNOWN]
    exact = full[KNOWN:, KNOWN:] - gain @ full[:KNOWN, KNOWN:]
    x = draw(model, known, num_temperatures=120, final_steps=20)
    deviation = (x.mean(0) - exact_mean) / (exact.diagonal() / NUM).sqrt()
    assert deviation.abs().max() < 4
    found = torch.cov(x.T)
    error = ((exact.square() + torch.outer(exact.diagonal(), exact.diagonal())) / NUM).sqrt()
    assert ((found - exact) / error).abs().max() < 4.5


@pytest.mark.process
def test_draws_given_a_part_of_a_mixture_have_the_exact_weights_means_and_deviations():
    means = torch.stack([torch.full((D,), 0.5, dtype=F64), torch.full((D,), -0.5, dtype=F64)])
    means[:, :KNOWN] *= 0.3  # the known part tells little of the mode
    model = ExactModel(LinearVPPath(), 1e-5, means, (0.4, 0.4), (0.5, 0.5), stein_channels=1)
    known = torch.full((D,), 0.05, dtype=F64)
    logs = -(known[:KNOWN] - means[:, :KNOWN]).square().sum(1) / (2 * 0.4**2)
    share = torch.softmax(logs, 0)[0].item()
    x = draw(model, known, num_temperatures=200)
    is_first = x.mean(1) > 0
    assert is_first.double().mean().item() == pytest.approx(share, abs=4 * 0.5 / NUM**0.5)
    for sign, rows in ((1, x[is_first]), (-1, x[~is_first])):
        assert (rows.mean(0) - sign * 0.5).abs().max() < 4.5 * 0.4 / len(rows) ** 0.5
        assert rows.std().item() == pytest.approx(0.4, rel=0.03)


def test_an_image_keeps_its_known_pixels_and_mistakes_are_told():
    ebm = EBM.from_pretrained("digits")
    images = ebm.sample(2, num_steps=3)
    mask = torch.zeros(8, 8, dtype=torch.bool)
    mask[:4] = True
    found = complete(ebm, images, mask, num_temperatures=4)
    assert torch.equal(found[:, :, :4], images[:, :, :4])
    other = torch.where(mask, images, 0.0)
    assert torch.equal(complete(ebm, other, mask, num_temperatures=4), found)
    for bad in (mask.float(), mask[:3], torch.ones(3, 1, 8, 8, dtype=torch.bool)):
        with pytest.raises(UserError, match="mask"):
            complete(ebm, images, bad)
    with pytest.raises(UserError, match="no component is a pixel"):
        complete(EBM.from_pretrained("mnist-latent"), torch.zeros(1, 1, 28, 28), mask)
    for settings in ({"score": "integral"}, {"acceptance": "energy"}, {"steps": 3}):
        with pytest.raises(UserError):
            complete(ebm, images, mask, num_temperatures=4, **settings)
    assert known_mask(mask, (2, 1, 8, 8)).shape == (2, 1, 8, 8)
