"""The variational bound: attained by an exact score, lower by a known amount for another."""

import pytest
import torch
from exact import ExactModel, SineDiffusion, normal, two_modes, z_score

from ebm_app import EBM
from ebm_app.data.images import load_images
from ebm_app.likelihood import VariationalBound, elbo
from ebm_app.nets.density import SteinHeadDensity, density_of
from ebm_app.paths import LinearVPPath, VPPath
from ebm_app.utils.tensors import sum_except_batch

PATHS = [LinearVPPath(), VPPath()]


@pytest.mark.parametrize(
    ("path", "shape", "t"),
    [
        pytest.param(PATHS[0], (1, 4, 4), 1 - 1e-4, marks=pytest.mark.process),
        (PATHS[1], (2,), 0.9),
        (SineDiffusion(), (2,), 0.5),
    ],
    ids=["linear late", "vp", "not variance preserving"],
)
def test_elbo_of_an_exact_score_is_the_log_density(path, shape, t):
    """Within the stated standard error, which matches the spread over examples."""
    model = two_modes(path, 1e-4, shape, stein_channels=1)
    x = torch.cat([model.data((40, *shape)), normal((40, *shape), 1)])
    found = VariationalBound(num_draws=30)(density_of(model), x, t)
    deviation = found.value - model.log_density(x, t)
    assert z_score(deviation[:, None]) < 4
    share = deviation.square().mean() / found.error.square().mean()
    assert share.sqrt() == pytest.approx(1, abs=0.35)


@pytest.mark.parametrize("shape", [(3,), (2, 3, 3)])
def test_components_sum_and_draws_are_averaged(shape):
    model = two_modes(LinearVPPath(), 1e-4, shape, stein_channels=1)
    density, x = density_of(model), normal((3, *shape))
    one, many = (VariationalBound(num_draws=draws)(density, x, 0.9) for draws in (1, 64))
    for estimate in (one, many):
        total = sum_except_batch(estimate.components)
        assert torch.allclose(total, estimate.value, rtol=1e-12)
    assert (one.nfe, many.nfe) == (16, 1024) and VariationalBound(9)(density, x, 0.9).nfe == 9
    assert (many.error < one.error.max() / 4).all()


def test_control_variate_is_unbiased_and_reduces_noise():
    """Also with a wrong variance, or without one. The stated error is too large in all cases, by
    most where the guess is worst."""

    class Scaled(ExactModel):
        factor = 0.5

        def forward(self, x, t):
            output = super().forward(x, t)
            return output._replace(variance=self.factor * output.variance)

    model = Scaled(LinearVPPath(), 1e-4, [[-1.2], [1.2]], (0.1, 0.1), (0.3, 0.7), 1)
    model.means = model.means.expand(2, 16)
    x = model.data((1500, 16))
    density, exact = density_of(model), model.log_density(x, 0.99)

    def deviation(density):
        estimate = VariationalBound(num_nodes=24)(density, x, 0.99)
        deviation = estimate.value - exact
        assert z_score(deviation[:, None]) < 4
        square = deviation.square().mean()
        return square.sqrt(), (square / estimate.error.square().mean()).sqrt()

    wrong, wrong_share = deviation(density)
    plain, plain_share = deviation(SteinHeadDensity(model))
    model.factor = 1.0
    right, right_share = deviation(density)
    assert right < wrong < plain / 2
    assert 0.7 < right_share < 1 and 0.7 < wrong_share < 1 and 0.4 < plain_share < 1


def test_few_nodes_rely_on_the_neighbour_with_more_noise(monkeypatch):
    ebm, images = EBM.from_pretrained("digits"), load_images("digits").validation[:16]

    def spread():
        options = {"noise": torch.full((1, 16, 1, 8, 8), 0.5), "num_nodes": 8}
        bits = [ebm.likelihood(images, **options, seed=seed).bits_per_dim for seed in range(10)]
        return torch.stack(bits).var(0).mean().sqrt()

    weighted = spread()
    monkeypatch.setattr(elbo, "CLEARER_OF_8", 0.5)
    assert weighted < 0.9 * spread()


def test_error_covers_two_thirds_of_repeats_on_digits():
    ebm, num = EBM.from_pretrained("digits"), 12
    images = load_images("digits").validation[:16]
    noise = torch.full((1, 16, 1, 8, 8), 0.5)
    repeats = [ebm.likelihood(images, "elbo", noise=noise, seed=seed) for seed in range(num)]
    values, errors = (torch.stack([repeat[i] for repeat in repeats]) for i in (0, 2))
    deviation = (values - values.mean(0)) * (num / (num - 1)) ** 0.5
    spread = values.var(0).mean().sqrt().item()
    assert errors.square().mean().sqrt().item() == pytest.approx(spread, rel=0.2)
    assert (deviation.abs() < errors).double().mean().item() == pytest.approx(0.68, abs=0.08)
