"""Features of images, against their equations."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import COLOUR, GREY, error_of
from torch.nn.functional import avg_pool2d

from ebm_app.anomaly.features import (
    FLOOR,
    SEED,
    Features,
    extract_features,
    noise_levels,
    noise_times,
)
from ebm_app.ebm import EBM
from ebm_app.nets.time_score import ModelOutput


def test_residuals_of_a_linear_score_in_closed_form(monkeypatch):
    """For s(x, t) = -x and alpha^2 + v = 1, the residual is alpha^2 e - alpha sqrt(v) y."""
    ebm = EBM(GREY).double().eval()
    monkeypatch.setattr(ebm.density, "output", lambda x, t: ModelOutput(x, -x, 3 + 0 * x))
    images = torch.randint(0, 17, (3, 1, 8, 8), dtype=torch.uint8)
    features, times = extract_features(ebm, images), noise_times(ebm)
    noise = torch.randn((len(times), 1, 8, 8), generator=torch.manual_seed(SEED)).double()
    u = torch.rand((1, 1, 8, 8), generator=torch.manual_seed(SEED)).double()
    y = ebm.dequantise(images, u.expand(3, -1, -1, -1)).y
    for index, time in enumerate(times):
        t = torch.tensor(time, dtype=torch.float64)
        alpha, variance = ebm.density.path.alpha(t), ebm.density.path.variance(t)
        residual = alpha**2 * noise[index] - alpha * variance.sqrt() * y
        expected = (residual.square()[:, 0] / (3 + FLOOR)).float()
        torch.testing.assert_close(features.squares[:, index], expected)
        x = alpha * y + variance.sqrt() * noise[index]
        torch.testing.assert_close(features.time_scores[:, index], x.sum((1, 2, 3)))
    torch.testing.assert_close(features.variances, torch.full((3, 4), 3.0).double())


def test_residuals_are_squares_without_predicted_variance(monkeypatch):
    ebm = EBM(COLOUR).eval()
    monkeypatch.setattr(ebm.density, "output", lambda x, t: ModelOutput(0 * x, 0 * x, None))
    features = extract_features(ebm, torch.zeros(2, 3, 4, 8, dtype=torch.uint8))
    noise = torch.randn((4, 3, 4, 8), generator=torch.manual_seed(SEED))
    torch.testing.assert_close(features.squares[0], noise.square().mean(1) / (1 + FLOOR))
    assert (features.variances == 1).all()


def test_noise_levels_are_signal_to_noise_ratios():
    ebm = EBM(GREY)
    t = torch.tensor(noise_times(ebm), dtype=torch.float64)
    path = ebm.density.path
    expected = (path.alpha(t).square() / path.variance(t)).log()
    torch.testing.assert_close(torch.tensor(noise_levels((1, 8, 8))).double(), expected)
    # the noise variance is proportional to the number of pixels
    shift = np.subtract(noise_levels((1, 14, 28)), noise_levels((1, 28, 28)))
    np.testing.assert_allclose(shift, np.log(2))


def test_vectors_are_log_means_of_quarters():
    squares, variances = torch.rand(2, 4, 8, 12) + 1, torch.rand(2, 4).double() + 1
    time_scores, sizes = torch.randn(2, 4).double(), torch.tensor([30.0, 400.0]).double()
    vectors = Features(squares, variances, time_scores, sizes).vectors()
    quarters = squares.double().unfold(2, 4, 4).unfold(3, 6, 6).mean((4, 5))
    columns = [(quarters + FLOOR).log().flatten(1), variances.log(), time_scores]
    torch.testing.assert_close(vectors, torch.cat([*columns, sizes.log()[:, None]], 1))


def test_maps_are_smoothed_over_a_square():
    squares = torch.rand(1, 2, 24, 24)
    smoothed = Features(squares, *torch.ones(3, 1, 2)).smoothed()
    torch.testing.assert_close(smoothed[:, :, 2:-2, 2:-2], avg_pool2d(squares, 5, 1))
    torch.testing.assert_close(smoothed[0, 0, 0, 0], squares[0, 0, :3, :3].mean())


@pytest.mark.parametrize("num_channels", [1, 2, 3])
def test_noise_is_larger_than_a_constant_image(num_channels):
    """In bytes as lossless WebP, which are those of the levels, not of the batch."""
    ebm = EBM(replace(GREY, image_shape=(num_channels, 8, 8), num_levels=256))
    images = torch.randint(256, (3, num_channels, 8, 8), dtype=torch.uint8)
    images[0] = 0
    sizes = extract_features(ebm, images).sizes
    assert sizes[0] < 60 < sizes[1:].min()
    assert torch.equal(sizes[1:], extract_features(ebm, images[1:]).sizes)


def test_model_without_stein_head_is_refused():
    ebm = EBM(replace(GREY, stein_head=False, prediction="normalised"))
    images = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    assert "Anomaly detection needs" in error_of(extract_features, ebm, images)
