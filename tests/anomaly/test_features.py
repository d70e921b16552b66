"""Features of images: residuals in closed form, symmetric copies."""

import math

import pytest
import torch
from conftest import GREY

from ebm_app.anomaly.features import GREY as LEVELS
from ebm_app.anomaly.features import extract_features, image_statistics, noise_times
from ebm_app.anomaly.features import symmetric_copies as copies
from ebm_app.ebm import EBM
from ebm_app.nets.time_score import ModelOutput


def test_residuals_of_a_linear_score_in_closed_form(monkeypatch):
    """For s(x, t) = -x and alpha^2 + v = 1, e - e_s = alpha^2 e - alpha sqrt(v) y, and all copies
    have the same loss."""
    ebm = EBM(GREY).double().eval()

    monkeypatch.setattr(ebm.density, "output", lambda x, t: ModelOutput(0 * x, -x, None))
    images = torch.randint(0, 17, (3, 1, 8, 8), dtype=torch.uint8)
    features, times = extract_features(ebm, images), noise_times(ebm)
    noise = torch.randn((len(times), 1, 8, 8), generator=torch.manual_seed(0)).double()
    u = torch.rand((1, 1, 8, 8), generator=torch.manual_seed(0)).double().expand(3, -1, -1, -1)
    y = ebm.dequantise(images, u).y
    for index, time in enumerate(times):
        t = torch.tensor(time, dtype=torch.float64)
        alpha, v = ebm.density.path.alpha(t), ebm.density.path.variance(t)
        residual = alpha**2 * noise[index] - alpha * v.sqrt() * y
        torch.testing.assert_close(features.squares[:, index], residual.square().mean(1))
    losses = features.squares[:, : len(LEVELS[0])].sum((1, 2, 3)) / 2
    torch.testing.assert_close(features.losses, losses[:, None].expand(-1, 8))


def test_statistics_of_a_checkerboard_in_closed_form():
    """Neighbours differ by 1, and the means of 2 x 2 and 4 x 4 squares are all 1/2."""
    board = (torch.arange(8)[:, None] + torch.arange(8)) % 2
    (statistics,) = image_statistics(board.expand(1, 3, 8, 8).double())
    std = (64 / 63 / 4) ** 0.5
    expected = [0.5] * 3 + [math.log(std + 0.01)] * 3 + [math.log(d + 1e-5) for d in (1, 0, 0)]
    found = torch.cat([statistics[:6], statistics[7:]])
    torch.testing.assert_close(found, torch.tensor(expected).double())
    simpler = image_statistics(torch.zeros(1, 3, 8, 8))
    assert simpler[0, 6] < statistics[6]


@pytest.mark.parametrize(("shape", "num"), [((1, 2, 2), 8), ((1, 2, 3), 4), ((3, 2, 2), 1)])
def test_copies_keep_the_shape_and_differ(shape, num):
    image = torch.arange(float(torch.Size(shape).numel())).view(shape)
    rotated = copies(image)
    assert len({tuple(x.flatten().tolist()) for x in rotated}) == len(rotated) == num
    assert all(x.shape == shape for x in rotated) and torch.equal(rotated[0], image)
