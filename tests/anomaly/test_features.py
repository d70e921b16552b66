"""Features of images, against their equations."""

import numpy as np
import torch
from conftest import GREY

from ebm_app.anomaly import (
    FLOOR,
    SEED,
    SMALL,
    extract_features,
    image_statistics,
    noise_levels,
    noise_times,
)
from ebm_app.ebm import EBM
from ebm_app.nets.model import ModelOutput


def test_residuals_of_a_linear_score_in_closed_form(monkeypatch):
    """For s(x, t) = -x and alpha^2 + v = 1, the residual is alpha^2 e - alpha sqrt(v) y."""
    ebm = EBM(GREY).double().eval()
    monkeypatch.setattr(ebm.model, "output", lambda x, t: ModelOutput(x, -x, 3 + 0 * x))
    images = torch.randint(0, 17, (3, 1, 8, 8), dtype=torch.uint8)
    features, times = extract_features(ebm, images), noise_times(ebm)
    noise = torch.randn((len(times), 1, 8, 8), generator=torch.manual_seed(SEED)).double()
    u = torch.rand((1, 1, 8, 8), generator=torch.manual_seed(SEED)).double()
    uniform = u.expand(3, -1, -1, -1)
    y = ebm.dequantiser.points(images, ebm.cells, uniform, ebm.model).y
    for index, time in enumerate(times):
        t = torch.tensor(time, dtype=torch.float64)
        alpha, variance = ebm.model.path.alpha(t), ebm.model.path.variance(t)
        residual = alpha**2 * noise[index] - alpha * variance.sqrt() * y
        expected = (residual.square()[:, 0] / (3 + FLOOR)).float()
        torch.testing.assert_close(features.squares[:, index], expected)
        x = alpha * y + variance.sqrt() * noise[index]
        torch.testing.assert_close(features.time_scores[:, index], x.sum((1, 2, 3)))
    torch.testing.assert_close(features.variances, torch.full((3, 4), 3.0).double())


def test_noise_levels_are_signal_to_noise_ratios():
    ebm = EBM(GREY)
    t = torch.tensor(noise_times(ebm), dtype=torch.float64)
    path = ebm.model.path
    expected = (path.alpha(t).square() / path.variance(t)).log()
    torch.testing.assert_close(torch.tensor(noise_levels((1, 8, 8))).double(), expected)
    # the noise variance is proportional to the number of pixels
    shift = np.subtract(noise_levels((1, 14, 28)), noise_levels((1, 28, 28)))
    np.testing.assert_allclose(shift, np.log(2))


def test_differences_of_pixels_in_closed_form():
    """Of a linear ramp, whose pooled pixels differ by the scale times the slope."""
    ramp = 0.05 * torch.arange(16).double().expand(1, 1, 8, 16)
    scales = torch.tensor([1.0, 2, 4]).double()
    expected = ((0.05 * scales).square() / 2 + SMALL).log()
    torch.testing.assert_close(image_statistics(ramp)[0, 1:], expected)
